"""This project's C++, built by the machine's g++ when it is first needed, and kept in the cache folder."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from filelock import FileLock

from onnx_bridge.core.errors import RuntimeFailure, RuntimeNotFound
from onnx_bridge.core.files.user_cache import BuiltKind, cache_dir
from onnx_bridge.core.system_tools import environment, last_error

_COMPILER = ("g++",)


def kept_folder(kind: BuiltKind, name: str, fill: Callable[[Path], None]) -> Path:
    """Return a folder in the cache; if there is none, let ``fill`` fill it, which is complete then or not there.

    Args:
        kind: the folder of all of its kind.
        name: its name, which changes with what it is built from.
        fill: writes into the folder that it is given.
    """
    folder = cache_dir() / kind
    kept = folder / name
    if not kept.is_dir():
        folder.mkdir(parents=True, exist_ok=True)
        with FileLock(folder / ".lock"), tempfile.TemporaryDirectory(dir=folder, prefix=".new-") as new:
            if not kept.is_dir():
                (built := Path(new) / "built").mkdir()
                fill(built)
                built.rename(kept)
    return kept


def digest(sources: Iterable[Path]) -> str:
    """Return a text that changes with the sources."""
    return hashlib.sha256(b"".join(source.read_bytes() for source in sources)).hexdigest()


def build(source: Path, library: Path, options: Sequence[str | Path] = (), *, purpose: str) -> None:
    """Compile a source file into a shared library.

    Args:
        options: further options and files for the compiler.
        purpose: what needs the library, for the error ("rehearsing the gpu target").

    Raises:
        RuntimeNotFound: there is no compiler.
        RuntimeFailure: the source cannot be compiled.
    """
    compile_source(source, ["-std=c++17", "-O1", "-fPIC", "-shared", "-o", library, *options], purpose=purpose)


def compile_source(source: Path, options: Sequence[str | Path], *, purpose: str) -> None:
    """Run g++ on a source file, or on what is compiled of one; arguments and errors are those of `build`."""
    done = run_tool([*_COMPILER, source, *options], purpose)
    if done.returncode:
        what = f"{source.name} cannot be built: {last_error(done.stderr)}"
        raise RuntimeFailure(what, where=str(source.parent), output=done.stderr)


def run_tool(command: Sequence[str | Path], purpose: str) -> subprocess.CompletedProcess[str]:
    """Run the compiler, or a program that comes with it; raises RuntimeNotFound if this machine does not have it."""
    name = str(command[0])
    if (program := shutil.which(name)) is None:
        raise RuntimeNotFound(f"this machine has no {name}, which {purpose} needs", hint="on Debian: apt install g++")
    arguments = [program, *map(str, command[1:])]
    return subprocess.run(arguments, capture_output=True, encoding="utf-8", env=environment(), check=False)
