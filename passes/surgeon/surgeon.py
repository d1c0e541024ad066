"""Run a user's function on the model as a graphsurgeon graph.

    surgeon{script=my.py:function}        where my.py has        def function(graph: gs.Graph) -> gs.Graph | None

The function changes the graph in place, or returns another. Weights are read when it accesses ``.values``. What it does
not change is restored exactly, including what graphsurgeon does not show: metadata, descriptions, quantization
annotations, defaults of inputs, overloads, and attributes that it cannot represent. Types and shapes that depend on a
change are inferred again. New nodes record this pass and the nodes that they replace.

The exactness is unknown, since the function may compute anything.
"""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar, TypeVar, overload

import onnx_ir as ir

import passes
from passes.core import scripts
from passes.core.errors import BridgeError, InputError, nearest
from passes.rewriting.base import Context, Exactness, Pass, Result

Operation = Callable[[Any], Any]
"""A function that takes a ``gs.Graph``, and returns one or None."""
_O = TypeVar("_O", bound=Operation)


@dataclass(frozen=True)
class Surgeon(Pass):
    """Run a user's function on the model as a graphsurgeon graph.

    Attributes:
        script: a Python file and the name of a function in it, as in ``my.py:function``.
    """

    name = "surgeon"
    exactness = Exactness.QUANTIZATION_STEP
    script: str = ""

    def run(self, model: ir.Model, context: Context) -> Result:
        """Load the script, and run its function as one rewrite.

        Raises InputError if there is no such function, it fails, or it leaves an invalid graph; or graphsurgeon is not
        installed.
        """
        file, _, function = self.script.rpartition(":")
        if not file or not function:
            hint = "as in surgeon{script=my.py:function}"
            raise InputError("the option script must name a file and a function in it", where=self.name, hint=hint)
        path = Path(file)
        if not path.is_file():
            raise InputError("the file does not exist", where=file)
        with scripts.importable(path.parent):
            module = _load(path)
            known = [name for name, var in vars(module).items() if callable(var)]
            if function not in known:
                raise InputError(f"the file has no function {function}", where=file, hint=nearest(function, known))
            return _operate(vars(module)[function], model, context, self.name, self.script)


class _Registered(Pass):
    """A pass made by `surgeon_pass`."""

    operation: ClassVar[Operation]

    def run(self, model: ir.Model, context: Context) -> Result:
        """Run the function as one rewrite.

        Raises InputError if it fails, or leaves an invalid graph; or graphsurgeon is not installed.
        """
        return _operate(type(self).operation, model, context, self.name, self.name)


@overload
def surgeon_pass(function: _O, /) -> _O: ...


@overload
def surgeon_pass(*, name: str | None = None, exactness: Exactness = ...) -> Callable[[_O], _O]: ...


def surgeon_pass(
    function: _O | None = None, /, *, name: str | None = None, exactness: Exactness = Exactness.QUANTIZATION_STEP
) -> _O | Callable[[_O], _O]:
    """Register a function on a ``gs.Graph`` as a pass; to be used as a decorator.

    Args:
        function: changes the graph in place or returns another; the first line of its docstring describes the pass.
        name: the name of the pass; default: that of the function, with dashes.
        exactness: the exactness of the pass.

    Returns:
        The function itself.

    Raises:
        InputError: another pass, or a pipeline, has this name.
    """

    def register(operation: _O) -> _O:
        label = name or operation.__name__.strip("_").replace("_", "-")
        fields = {
            "name": label,
            "exactness": exactness,
            "operation": staticmethod(operation),
            "__doc__": operation.__doc__ or f"Run {operation.__name__} on the model as a graphsurgeon graph.",
            "__module__": operation.__module__,
        }
        passes.register(dataclass(frozen=True)(type(operation.__name__, (_Registered,), fields)))
        return operation

    return register if function is None else register(function)


def _operate(operation: Operation, model: ir.Model, context: Context, maker: str, where: str) -> Result:
    try:
        from passes.surgeon.operation import operate
    except ModuleNotFoundError as error:  # graphsurgeon is an optional dependency
        if error.name != "onnx_graphsurgeon":
            raise
        raise _not_installed(f"pass {maker}") from None
    return operate(_guarded(operation, where), model, context, maker=maker, where=where)


def _not_installed(where: str) -> InputError:
    return InputError("graphsurgeon is not installed", where=where, hint="pip install 'onnx-bridge[surgeon]'")


def _guarded(operation: Operation, where: str) -> Operation:
    """Return the operation, with errors that name the line of the script."""

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


def _load(path: Path) -> ModuleType:
    """Load a script, once while it does not change, since it may register passes."""
    state = path.stat()
    name = f"surgeon:{path.resolve()}:{state.st_mtime_ns}:{state.st_ctime_ns}:{state.st_size}"
    if name in sys.modules:
        return sys.modules[name]
    try:
        return scripts.load(path, name)
    except Exception as error:
        if isinstance(error, ModuleNotFoundError) and error.name == "onnx_graphsurgeon":
            raise _not_installed(str(path)) from None
        raise InputError(f"the script cannot be loaded: {type(error).__name__}: {error}", where=str(path)) from error
