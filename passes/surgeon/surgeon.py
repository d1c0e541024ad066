"""Run a function of yours on the model as a graph of graphsurgeon.

    surgeon{script=my.py:function}        where my.py has        def function(graph: gs.Graph) -> gs.Graph | None

The function changes the graph, or returns another. Weights are read when it touches ``.values``. What it does not
change is put back as it was, with all that graphsurgeon does not show: metadata, descriptions, quantization
annotations, defaults of inputs, overloads, and attributes that it has no form for. Types and shapes that depend on what
was changed are inferred anew. New nodes say that this pass made them, and from what.

What the function computes is its own affair: nobody can say how far numbers move.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar, TypeVar, overload

import onnx_ir as ir

import passes
from passes.core.base import Context, Exactness, Pass, Result
from passes.core.errors import BridgeError, InputError, nearest

Operation = Callable[[Any], Any]
"""A function that takes a ``gs.Graph``, and returns one or None."""
_O = TypeVar("_O", bound=Operation)


@dataclass(frozen=True)
class Surgeon(Pass):
    """Run a function of yours on the model as a graph of graphsurgeon.

    Attributes:
        script: a Python file and the name of a function in it, as in ``my.py:function``.
    """

    name = "surgeon"
    exactness = Exactness.QUANTIZATION_STEP
    script: str = ""

    def run(self, model: ir.Model, context: Context) -> Result:
        """Load the script, and run its function as one rewrite.

        Raises:
            InputError: there is no such function, it fails, or what it leaves is no valid graph; or graphsurgeon is not
                installed.
        """
        file, _, function = self.script.rpartition(":")
        if not file or not function:
            hint = "as in surgeon{script=my.py:function}"
            raise InputError("it must be told a file and a function in it", where=self.name, hint=hint)
        path = Path(file)
        if not path.is_file():
            raise InputError("there is no such file", where=file)
        with _importable(path.parent):
            module = _load(path)
            known = [name for name, each in vars(module).items() if callable(each)]
            if function not in known:
                raise InputError(f"it has no function {function}", where=file, hint=nearest(function, known))
            return _operate(vars(module)[function], model, context, self.name, self.script)


@dataclass(frozen=True)
class _Registered(Pass):
    """What `surgeon_pass` makes of a function."""

    operation: ClassVar[Operation]

    def run(self, model: ir.Model, context: Context) -> Result:
        """Run the function as one rewrite.

        Raises:
            InputError: it fails, or what it leaves is no valid graph; or graphsurgeon is not installed.
        """
        return _operate(type(self).operation, model, context, self.name, self.name)


@overload
def surgeon_pass(function: _O, /) -> _O: ...


@overload
def surgeon_pass(*, name: str | None = None, exactness: Exactness = ...) -> Callable[[_O], _O]: ...


def surgeon_pass(
    function: _O | None = None, /, *, name: str | None = None, exactness: Exactness = Exactness.QUANTIZATION_STEP
) -> _O | Callable[[_O], _O]:
    """Make a function on a ``gs.Graph`` a pass that pipelines know by its name; use it as a decorator.

    Args:
        function: takes the graph, changes it or returns another; the first line of its docstring describes the pass.
        name: the pass's; default: the function's, with dashes.
        exactness: how far numbers may move under it; default: as far as they may at all.

    Returns:
        The function, as it is.

    Raises:
        InputError: another pass, or a pipeline, has this name.
    """

    def register(operation: _O) -> _O:
        label = name or operation.__name__.strip("_").replace("_", "-")
        fields = {
            "name": label,
            "exactness": exactness,
            "operation": staticmethod(operation),
            "__doc__": operation.__doc__ or f"Run {operation.__name__} on the model as a graph of graphsurgeon.",
            "__module__": operation.__module__,
        }
        passes.register(dataclass(frozen=True)(type(operation.__name__, (_Registered,), fields)))
        return operation

    return register if function is None else register(function)


def _operate(operation: Operation, model: ir.Model, context: Context, maker: str, where: str) -> Result:
    try:
        importlib.import_module("onnx_graphsurgeon")
    except ImportError:
        hint = "pip install onnx-bridge[surgeon]"
        raise InputError("graphsurgeon is not installed", where=f"pass {maker}", hint=hint) from None
    surgery = importlib.import_module("passes.surgeon.run_script")
    result: Result = surgery.operate(_guarded(operation, where), model, context, maker=maker, where=where)
    return result


def _guarded(operation: Operation, where: str) -> Operation:
    """The operation, whose errors say where in the script they arose."""

    def run(graph: Any) -> Any:
        try:
            return operation(graph)
        except BridgeError:
            raise
        except Exception as error:
            file = getattr(getattr(operation, "__code__", None), "co_filename", None)
            frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename == file]
            line = f", line {frames[-1].lineno}" if frames else ""
            raise InputError(f"{type(error).__name__}: {error}", where=f"{where}{line}") from error

    return run


@contextmanager
def _importable(folder: Path) -> Iterator[None]:
    """Let a script import what lies beside it, as if it were run."""
    entry = str(folder.resolve())
    sys.path.insert(0, entry)
    try:
        yield
    finally:
        if entry in sys.path:
            sys.path.remove(entry)


def _load(path: Path) -> ModuleType:
    """Load a script; once, as long as it does not change, since it may register passes."""
    state = path.stat()
    name = f"surgeon:{path.resolve()}:{state.st_mtime_ns}:{state.st_size}"
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise InputError("is no Python file", where=str(path))
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        del sys.modules[name]
        if isinstance(error, ModuleNotFoundError) and error.name == "onnx_graphsurgeon":
            hint = "pip install onnx-bridge[surgeon]"
            raise InputError("graphsurgeon is not installed", where=str(path), hint=hint) from None
        raise InputError(f"cannot be loaded: {type(error).__name__}: {error}", where=str(path)) from error
    return module
