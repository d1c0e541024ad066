"""The start and end of the project's own processes: what they need not load is left for later, and garbage is collected
rarely.

onnx_ir imports SymPy (0.37 s) for arithmetic on symbolic dimensions, which nothing here uses. The command line and all
child processes call `quick_start` before they import onnx_ir; ``import onnx_bridge`` in a user's process never does.
`importlib.util.LazyLoader` cannot do this: before Python 3.12, an import statement itself reads an attribute of the
lazy module, and so loads it.
"""

from __future__ import annotations

import atexit
import gc
import importlib
import sys
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any


class _DeferredModule(ModuleType):
    """Takes the place of a module in `sys.modules` until one of its attributes is read."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.__spec__ = ModuleSpec(name, None)  # `importlib.util.find_spec` refuses modules without one

    def __getattr__(self, name: str) -> Any:
        if sys.modules.get(self.__name__) is self:
            del sys.modules[self.__name__]
        module = importlib.import_module(self.__name__)
        self.__dict__.update(module.__dict__)
        return getattr(module, name)


_COLLECT = 200_000
"""The number of new objects after which garbage is collected. By default it is 700, which takes a tenth of the time of
cleaning: a model is made of many objects, few of which are garbage."""


def quick_start() -> None:
    """Prepare a process of the project's own.

    Its last collection of garbage, when it ends, would visit every object of every module: a fifth of the time of
    cleaning a small model. The memory is given back as a whole.
    """
    gc.set_threshold(_COLLECT)
    atexit.register(gc.freeze)
    defer_sympy()


def load(name: str) -> ModuleType:
    """Import the module that a process of the project's own is for, with all that it imports.

    None of that is garbage, and to look for some takes a twentieth of the time of cleaning a small model: it is not
    done meanwhile, and what has been imported is never visited again.
    """
    if name in sys.modules:
        return sys.modules[name]
    gc.disable()
    try:
        return importlib.import_module(name)
    finally:
        gc.freeze()
        gc.enable()


def defer_sympy() -> None:
    """Defer the import of SymPy, and of the module of onnx_ir that needs it, unless they are loaded already."""
    for name in ("sympy", "onnx_ir._symbolic_shapes"):
        sys.modules.setdefault(name, _DeferredModule(name))
