"""Python files of users: passes, functions for graphsurgeon, loaders of samples, factories of modules."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import ModuleType

from passes.core.errors import InputError


def load(path: Path, name: str) -> ModuleType:
    """Run a Python file as a module, without leaving compiled code beside it.

    Args:
        path: the file.
        name: the module's name; it is found by that in `sys.modules`, unless the name belongs to another file.

    Raises:
        InputError: there is no such file.
        Exception: the file raises it.
    """
    if not path.is_file():
        raise InputError("there is no such file", where=str(path))
    module = ModuleType(name)
    module.__file__ = str(path)
    if getattr(sys.modules.get(name, module), "__file__", None) == module.__file__:
        sys.modules[name] = module  # where dataclasses look for the names of annotations
    try:
        exec(compile(path.read_bytes(), str(path), "exec", dont_inherit=True), vars(module))
    except BaseException:
        if sys.modules.get(name) is module:
            del sys.modules[name]
        raise
    return module


@contextmanager
def importable(folder: Path) -> Iterator[None]:
    """Let a script import what lies beside it."""
    entry = str(folder.absolute())
    sys.path.insert(0, entry)
    try:
        yield
    finally:
        with suppress(ValueError):
            sys.path.remove(entry)
