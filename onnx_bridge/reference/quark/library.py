"""The library of AMD Quark's custom operators, which ONNX Runtime needs for models that have them.

Quark compiles it when it is first imported, which needs a compiler and some twenty seconds: the import happens once, in
a process of its own, and the path is cached. The library needs PyTorch's libraries to be loaded, which takes far less
time than importing PyTorch.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib.util
import subprocess
import sys
from importlib import metadata
from pathlib import Path

from onnx_bridge.core.files.user_cache import cache_dir
from onnx_bridge.reference.quark.build import held_lock
from passes.core.doubts import Doubts, cached

_FIND = """
from onnx_bridge.core.errors import InputError
from onnx_bridge.reference.quark.build import compilation
try:
    with compilation():
        from quark.onnx import get_library_path
    print(); print('found', get_library_path())
except InputError as error:
    print(); print('locked', error.where)
"""
_TIMEOUT = 600.0
_NEEDED = ("libc10.so", "libtorch_cpu.so")


@cached()
def library() -> Path | None:
    """Return the library's file; None if Quark is not installed or cannot compile it.

    Raises InputError if another process does not finish compiling it.
    """
    try:
        version = metadata.version("amd-quark")
    except metadata.PackageNotFoundError:
        return None
    with contextlib.suppress(metadata.PackageNotFoundError):
        version += f"-torch-{metadata.version('torch')}"
    noted = cache_dir() / f"quark-{version}"
    with contextlib.suppress(OSError):
        if (path := Path(noted.read_text())).is_file():
            return path
    located = _locate()
    if located is not None:
        with contextlib.suppress(OSError):
            noted.parent.mkdir(parents=True, exist_ok=True)
            noted.write_text(str(located))
    return located


def _locate() -> Path | None:
    """Return the path that Quark reports; None if importing Quark fails."""
    try:
        done = subprocess.run(
            [sys.executable, "-c", _FIND], capture_output=True, encoding="utf-8", errors="replace", timeout=_TIMEOUT
        )
    except subprocess.TimeoutExpired:
        Doubts.add()
        return None
    if done.returncode < 0:
        Doubts.add()
    words = dict(line.partition(" ")[::2] for line in done.stdout.splitlines())
    if "locked" in words:
        raise held_lock(Path(words["locked"]))
    path = Path(words.get("found", ""))
    return path if path.is_file() else None


def load_torch() -> bool:
    """Load the libraries that it is linked to; False if one is missing. Older versions are not linked to PyTorch.

    It has to be done before the library is registered.
    """
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        return True
    try:
        for name in _NEEDED:
            ctypes.CDLL(str(Path(spec.origin).parent / "lib" / name), mode=ctypes.RTLD_GLOBAL)
    except OSError:
        return False
    return True
