"""The machine as a shared library: built by g++ from the sources beside this module, once for a size of waves."""

from __future__ import annotations

import ctypes
import functools
import hashlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from onnx_bridge.core.native_code import compile_source, digest, kept_folder

SOURCES = Path(__file__).parent / "machine"
_UNITS = ("machine.cpp", "scalar.cpp", "vector.cpp", "memory.cpp")
_OPTIONS = (
    *("-std=c++20", "-O2", "-ftree-vectorize", "-fvect-cost-model=dynamic", "-march=native", "-fPIC"),
    # one rounding for each operation of the GPU; errno and traps do not matter
    *("-ffp-contract=off", "-fno-math-errno", "-fno-trapping-math", "-fvisibility=hidden", "-pthread"),
)
_LINK = ("-shared", "-static-libstdc++", "-static-libgcc", "-pthread")
_LIBRARY, _PURPOSE = "machine.so", "the emulator"


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

    def fill(folder: Path) -> None:
        objects = [folder / f"{unit}.o" for unit in _UNITS]

        def unit(name: str, made: Path) -> None:
            compile_source(SOURCES / name, [*_OPTIONS, f"-DWAVE={wave}", "-c", "-o", made], purpose=_PURPOSE)

        with ThreadPoolExecutor(2) as threads:
            list(threads.map(unit, _UNITS, objects))
        compile_source(objects[0], [*objects[1:], *_LINK, "-o", folder / _LIBRARY], purpose=_PURPOSE)
        for made in objects:
            made.unlink()

    return kept_folder("emulation", machine_name(wave), fill) / _LIBRARY


def machine_name(wave: int) -> str:
    """Return a name that changes with the sources of the machine, and with what it is built by and for."""
    return f"machine{wave}-{_digest()[:16]}"


@functools.cache
def _digest() -> str:
    """Return a digest of the sources, the options and the processor, for which the library is built."""
    processor = next((line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("flags")), "")
    sources = digest(sorted(SOURCES.iterdir()))
    return hashlib.sha256(repr((sources, _OPTIONS, _LINK, processor)).encode()).hexdigest()
