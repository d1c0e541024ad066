"""The libraries of a GPU, without one: ``hip.cpp`` and ``libraries.cpp``, built for the libraries that need them.

The compiler of kernels is real; ``hiprtc.cpp`` stands before it, and keeps what it compiles.

They are one file with the names of all. It exports each symbol that its clients need, in the version that they ask for;
 what the sources lack raises an exception that names it.
"""

from __future__ import annotations

import mmap
import re
from collections.abc import Sequence
from pathlib import Path

from onnx_bridge.core.files.known_digests import known_digest
from onnx_bridge.core.native_code import build, digest, kept_folder, run_tool

SOURCES = tuple(Path(__file__).parent / name for name in ("hip.cpp", "libraries.cpp", "hiprtc.cpp"))
LIBRARY = "libgpustub.so"
_NO_MIOPEN = "compiled without MIOpen"
"""What stands in a program instead of MIOpen's choice of a kernel."""
_PURPOSE = "compiling for a GPU that is not there"
_LIBRARIES = re.compile(r"lib(amdhip64|MIOpen|rocblas|hipblaslt)\.so")
_COMPILER, _COMPILER_SYMBOL = "libhiprtc.so", re.compile(r"hiprtc\w+")
_SYMBOLS = re.compile(r"(__)?hip(?!rtc)|_Z\d+hip|miopen|rocblas_|_ZN13hipblaslt_ext")
_ABSENT = """\
[[noreturn]] void absent(const char* symbol);
#define ABSENT(function, symbol) \\
    extern "C" __attribute__((weak, visibility("default"))) int function() __asm__(symbol); \\
    int function() { absent(symbol); }
"""


def stub_version() -> str:
    """Return a text that changes with the sources of the stub."""
    return digest(SOURCES)[:10]


def has_all_kernels(program: Path) -> bool:
    """Return whether a saved program has the kernels of its convolutions, if there are any."""
    with program.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        return content.find(_NO_MIOPEN.encode()) < 0


def stub_libraries(clients: Sequence[Path]) -> Path:
    """Return the folder of the libraries of a GPU that others need; they are built if needed.

    Args:
        clients: the others, as MIGraphX's libmigraphx_gpu.so. What loads the stub by path finds it by the first name.

    Raises:
        RuntimeNotFound: there is no compiler.
        RuntimeFailure: the compiler fails.
    """

    def fill(folder: Path) -> None:
        symbols = [symbol.split("@") for symbol in _needed_symbols(clients)]
        functions = "".join(f'ABSENT(absent{number}, "{name}")\n' for number, (name, *_) in enumerate(symbols))
        (folder / "absent.cpp").write_text(_ABSENT + functions)
        versions: dict[str, list[str]] = {}
        for name, *version in symbols:
            for label in version:
                versions.setdefault(label, []).append(name)
        lines = [f"{label} {{ global: {'; '.join(names)}; }};\n" for label, names in versions.items()]
        (folder / "versions.map").write_text("".join(lines))
        sources = [*SOURCES[1:], folder / "absent.cpp"]
        sonames = _needed_libraries(clients)
        link = f"-Wl,-soname,{sonames[0]}", f"-Wl,--version-script={folder / 'versions.map'}"
        options = ["-fvisibility=hidden", f'-DNO_MIOPEN="{_NO_MIOPEN}"', *link]
        build(SOURCES[0], folder / LIBRARY, [*sources, *options], purpose=_PURPOSE)
        for soname in (*sonames, *_kept_compiler(clients)):
            (folder / soname).symlink_to(LIBRARY)

    return kept_folder("gpu-stub", "-".join([stub_version(), *(known_digest(client)[:10] for client in clients)]), fill)


def _needed_symbols(clients: Sequence[Path]) -> list[str]:
    """Return the symbols of a GPU's libraries that others import, with ``@VERSION`` if they have one."""
    return [symbol for symbol in _imported(clients) if _SYMBOLS.match(symbol)]


def _imported(clients: Sequence[Path]) -> list[str]:
    printed = [run_tool(["nm", "-D", "--undefined-only", client], _PURPOSE).stdout for client in clients]
    return [*dict.fromkeys(line.split()[-1] for text in printed for line in text.splitlines())]


def _kept_compiler(clients: Sequence[Path]) -> list[str]:
    """Return the name of the compiler's library, if ``hiprtc.cpp`` has all that others import of it."""
    known = set(_COMPILER_SYMBOL.findall(SOURCES[-1].read_text()))
    needed = {symbol for symbol in _imported(clients) if _COMPILER_SYMBOL.match(symbol)}
    return [name for name in _sonames(clients) if name.startswith(_COMPILER)] if needed <= known else []


def _needed_libraries(clients: Sequence[Path]) -> list[str]:
    return [soname for soname in _sonames(clients) if _LIBRARIES.match(soname)]


def _sonames(clients: Sequence[Path]) -> list[str]:
    printed = [run_tool(["readelf", "--dynamic", "--wide", client], _PURPOSE).stdout for client in clients]
    return [*dict.fromkeys(soname for text in printed for soname in re.findall(r"\(NEEDED\).*\[(.*)\]", text))]
