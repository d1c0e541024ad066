"""The machine as a shared library: built by g++ from the sources beside this module, once for a size of waves."""

from __future__ import annotations

import ctypes
import functools
import hashlib
import shutil
import subprocess
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from filelock import FileLock

from onnx_bridge.core.errors import RuntimeFailure, RuntimeNotFound
from onnx_bridge.core.files.user_cache import cache_dir

SOURCES = Path(__file__).parent / "machine"
_UNITS = ("machine.cpp", "scalar.cpp", "vector.cpp", "memory.cpp")
_OPTIONS = (
    *("-std=c++20", "-O2", "-ftree-vectorize", "-fvect-cost-model=dynamic", "-march=native", "-fPIC"),
    # one rounding for each operation of the GPU; errno and traps do not matter
    *("-ffp-contract=off", "-fno-math-errno", "-fno-trapping-math", "-fvisibility=hidden", "-pthread"),
)
_LINK = ("-shared", "-static-libstdc++", "-static-libgcc", "-pthread")


@functools.cache
def library(wave: int) -> ctypes.CDLL:
    """Return the machine for waves of 32 or 64 lanes; it is built if needed.

    Raises:
        RuntimeNotFound: this machine has no g++.
        RuntimeFailure: the library cannot be built.
    """
    return ctypes.CDLL(str(build(wave)))


def build(wave: int) -> Path:
    """Return the path of the library, which is built unless it is in the cache."""
    folder = cache_dir() / "emulation"
    built = folder / f"machine{wave}-{_digest()[:16]}.so"
    if built.is_file():
        return built
    compiler = shutil.which("g++")
    if compiler is None:
        raise RuntimeNotFound("this machine has no g++, which the emulator needs", hint="install g++")
    folder.mkdir(parents=True, exist_ok=True)
    with FileLock(folder / f".lock-{wave}"), tempfile.TemporaryDirectory(dir=folder, prefix=".new-") as new:
        if not built.is_file():
            objects = [Path(new) / f"{unit}.o" for unit in _UNITS]
            commands = [
                [compiler, *_OPTIONS, f"-DWAVE={wave}", "-c", str(SOURCES / unit), "-o", str(to)]
                for unit, to in zip(_UNITS, objects, strict=True)
            ]
            with ThreadPoolExecutor(2) as threads:
                list(threads.map(_run, commands))
            linked = Path(new) / "machine.so"
            _run([compiler, *_LINK, *map(str, objects), "-o", str(linked)])
            linked.replace(built)
    return built


def _run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, encoding="utf-8", errors="replace", check=False)
    if done.returncode:
        raise RuntimeFailure("the emulator cannot be built", where=str(SOURCES), output=done.stderr)


@functools.cache
def _digest() -> str:
    """Return a digest of the sources, the options and the processor, for which the library is built."""
    sources = b"".join(path.read_bytes() for path in sorted(SOURCES.iterdir()))
    processor = next((line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("flags")), "")
    return hashlib.sha256(sources + repr((_OPTIONS, _LINK, processor)).encode()).hexdigest()
