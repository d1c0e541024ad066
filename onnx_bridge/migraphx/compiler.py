"""Compiling the project's own C++ sources into libraries, with the machine's g++."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from onnx_bridge.core.errors import RuntimeFailure, RuntimeNotFound
from onnx_bridge.migraphx.install.system_tools import environment, last_error

_COMPILER = ("g++", "-std=c++17", "-O1", "-fPIC", "-shared")


def build(source: Path, library: Path, options: Sequence[str | Path] = (), *, purpose: str) -> None:
    """Compile one source file into a shared library.

    Args:
        source: the file.
        library: the library to write.
        options: further options and files for the compiler.
        purpose: what needs the library, for the error ("rehearsing the gpu target").

    Raises:
        RuntimeNotFound: there is no compiler.
        RuntimeFailure: the source cannot be compiled.
    """
    compiler = shutil.which(_COMPILER[0])
    if compiler is None:
        what = f"this machine has no {_COMPILER[0]}, which {purpose} needs"
        raise RuntimeNotFound(what, hint="on Debian: apt install g++")
    command = [compiler, *_COMPILER[1:], str(source), "-o", str(library), *map(str, options)]
    done = subprocess.run(command, capture_output=True, encoding="utf-8", env=environment(), check=False)
    if done.returncode:
        what = f"{source.name} cannot be built: {last_error(done.stderr)}"
        raise RuntimeFailure(what, where=str(source.parent), output=done.stderr)
