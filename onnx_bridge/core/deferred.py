"""A heavy module that is loaded when its first attribute is asked for, and not when it is imported.

onnx-ir imports SymPy at its top, for arithmetic with symbolic dimensions, which nothing here does; that takes a third
of the time in which the command line starts. `importlib.util.LazyLoader` does not help: before Python 3.12 the
import statement itself asks a lazy module for an attribute, and so loads it.
"""

from __future__ import annotations

import importlib
import sys
import threading
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any


class _Deferred(ModuleType):
    """Stands in for a module until something of it is needed; from then on it has all that the module has."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.__spec__ = ModuleSpec(name, None)  # `importlib.util.find_spec` refuses modules that have none

    def __getattr__(self, name: str) -> Any:
        if sys.modules.get(self.__name__) is self:
            del sys.modules[self.__name__]
        module = importlib.import_module(self.__name__)
        self.__dict__.update(module.__dict__)
        return getattr(module, name)


_UNUSED = ("sympy", "onnx_ir._symbolic_shapes")
"""What onnx-ir imports, and nothing here uses."""


def defer() -> None:
    """Let onnx-ir load nothing that it does not use. For a program's own start, never for a library's."""
    for name in _UNUSED:
        if name not in sys.modules:
            sys.modules[name] = _Deferred(name)


def import_onnx_ir() -> None:
    """Import onnx-ir without what it does not use, for a library: whoever imports that later has the module itself.

    Where there are other threads, which might import it just now and would keep the stand-in, nothing is deferred.
    """
    if "onnx_ir" in sys.modules or threading.active_count() > 1:
        return
    defer()
    try:
        importlib.import_module("onnx_ir")
    finally:
        for name in _UNUSED:
            if isinstance(sys.modules.get(name), _Deferred):
                del sys.modules[name]
