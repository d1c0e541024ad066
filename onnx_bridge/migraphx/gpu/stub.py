"""The libraries of a GPU, without one: ``hip.cpp`` and ``libraries.cpp``, built for the library that needs them.

They are one file with the names of all. It exports each symbol that its client needs, in the version that the client
asks for; what the sources lack raises an exception that names it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from onnx_bridge.core.files.digest import file_digest
from onnx_bridge.migraphx.compiler import build, digest, kept_folder, run_tool

SOURCES = (Path(__file__).parent / "hip.cpp", Path(__file__).parent / "libraries.cpp")
LIBRARY = "libgpustub.so"
_PURPOSE = "compiling for a GPU that is not there"
_LIBRARIES = re.compile(r"lib(amdhip64|MIOpen|rocblas|hipblaslt|migraphx_device)\.so")
_SYMBOLS = re.compile(r"(__)?hip(?!rtc)|_Z\d+hip|miopen|rocblas_|_ZN13hipblaslt_ext|_ZN8migraphx\w+3gpu6device")
_ABSENT = """\
#include <stdexcept>
#define ABSENT(function, symbol) \\
    extern "C" __attribute__((weak, visibility("default"))) int function() __asm__(symbol); \\
    int function() { throw std::runtime_error(symbol ": not available without a GPU"); }
"""


def stub_version() -> str:
    """Return a text that changes with the sources of the stub."""
    return digest(SOURCES)[:10]


def stub_libraries(client: Path) -> Path:
    """Return the folder of the libraries of a GPU that a library needs; they are built if needed.

    Args:
        client: the library, as MIGraphX's libmigraphx_gpu.so.

    Raises:
        RuntimeNotFound: there is no compiler.
        RuntimeFailure: the compiler fails.
    """

    def fill(folder: Path) -> None:
        symbols = [symbol.split("@") for symbol in _needed_symbols(client)]
        functions = "".join(f'ABSENT(absent{number}, "{name}")\n' for number, (name, *_) in enumerate(symbols))
        (folder / "absent.cpp").write_text(_ABSENT + functions)
        versions: dict[str, list[str]] = {}
        for name, *version in symbols:
            for label in version:
                versions.setdefault(label, []).append(name)
        lines = [f"{label} {{ global: {'; '.join(names)}; }};\n" for label, names in versions.items()]
        (folder / "versions.map").write_text("".join(lines))
        options = ["-fvisibility=hidden", f"-Wl,--version-script={folder / 'versions.map'}"]
        build(SOURCES[0], folder / LIBRARY, [*SOURCES[1:], folder / "absent.cpp", *options], purpose=_PURPOSE)
        for soname in _needed_libraries(client):
            (folder / soname).symlink_to(LIBRARY)

    return kept_folder("gpu-stub", f"{stub_version()}-{file_digest(client)[:10]}", fill)


def _needed_symbols(client: Path) -> Iterator[str]:
    """Yield the symbols of a GPU's libraries that a library imports, with ``@VERSION`` if they have one."""
    for line in run_tool(["nm", "-D", "--undefined-only", client], _PURPOSE).stdout.splitlines():
        symbol = line.split()[-1]
        if _SYMBOLS.match(symbol):
            yield symbol


def _needed_libraries(client: Path) -> Iterator[str]:
    printed = run_tool(["readelf", "--dynamic", "--wide", client], _PURPOSE).stdout
    for soname in re.findall(r"\(NEEDED\).*\[(.*)\]", printed):
        if _LIBRARIES.match(soname):
            yield soname
