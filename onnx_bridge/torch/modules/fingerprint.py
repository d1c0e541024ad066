"""A digest of what a module computes: of its classes, their sources, its attributes and the elements of its tensors.

The digest covers everything that a module refers to, as pickling does, but not the order of sets nor the identity of
equal strings. It does not cover functions elsewhere that ``forward`` calls; a cached result that is found by its digest
is therefore checked again.
"""

from __future__ import annotations

import copyreg
import enum
import functools
import hashlib
import inspect
import types
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch

from onnx_bridge.core.errors import InputError
from onnx_bridge.core.files.known_digests import known_digest
from onnx_bridge.torch.modules.tensors import to_array

_PLAIN = (type(None), bool, int, float, complex, str, bytes, torch.dtype, torch.device, torch.Size, torch.layout)
_BUILTIN = (types.BuiltinFunctionType, types.MethodDescriptorType, types.WrapperDescriptorType)


def fingerprint(*values: Any) -> str | None:
    """Return the digest of modules and other values; None if one refers to an object that has no digest."""
    walk = _Walk()
    try:
        for value in values:
            walk.feed(value)
    except (
        InputError,
        TypeError,
        RecursionError,
        AttributeError,
        ValueError,
        RuntimeError,
    ):  # the exceptions of pickling
        return None
    return walk.hash.hexdigest()


class _Walk:
    def __init__(self) -> None:
        self.hash = hashlib.sha256()
        self._seen: dict[int, int] = {}
        self._kept: list[Any] = []

    def feed(self, value: Any) -> None:
        if isinstance(value, enum.Enum):
            self._add("enum", type(value).__qualname__, value.name)
        elif isinstance(value, _PLAIN):
            self._add(type(value).__name__, repr(value))
        elif type(value) is tuple:  # equal tuples may or may not be one object
            self._items("tuple", value)
        elif id(value) in self._seen:
            self._add("again", str(self._seen[id(value)]))
        else:
            self._seen[id(value)] = len(self._seen)
            self._kept.append(value)  # keeps its id from being reused
            self._new(value)

    def _new(self, value: Any) -> None:
        match value:
            case torch.Tensor():
                self._tensor(value)
            case type():
                self._class(value)
            case types.FunctionType():
                self._function(value)
            case types.CodeType():
                self._add("code", value.co_code.hex(), repr(value.co_names), repr(value.co_freevars))
                self._items("constants", value.co_consts)
            case types.CellType():
                self._items("cell", [value.cell_contents])
            case types.ModuleType():
                self._add("module", value.__name__)
            case types.MethodType():
                self._items("method", (value.__self__, value.__func__))
            case _ if isinstance(value, _BUILTIN):
                self._add("builtin", value.__qualname__)
            case torch.fx.GraphModule():
                targets = {str(node.target) for node in value.graph.nodes if node.op in ("get_attr", "call_module")}
                parts = [functools.reduce(getattr, target.split("."), value) for target in sorted(targets)]
                self._items("graph", (value.code, *parts))
            case _ if type(value) is list:
                self._items("list", value)
            case _ if type(value) is dict:
                self._items("dict", (part for pair in value.items() for part in pair))
            case set() | frozenset():
                digests = [fingerprint(element) for element in value]
                if None in digests:
                    raise TypeError("an element of a set has no digest")
                self._add("set", *sorted(map(str, digests)))
            case _:
                self._object(value)

    def _add(self, *words: str) -> None:
        for word in words:
            data = word.encode("utf-8", "surrogatepass")
            self.hash.update(b"%d:" % len(data) + data)

    def _items(self, kind: str, values: Iterable[Any]) -> None:
        self._add(kind, "(")
        for value in values:
            self.feed(value)
        self._add(")")

    def _tensor(self, tensor: torch.Tensor) -> None:
        real = torch.view_as_real(tensor.detach()) if tensor.is_complex() else tensor
        array = to_array(real)
        self._add("tensor", type(tensor).__name__, str(tensor.dtype), str(tuple(tensor.shape)))
        contiguous = array if array.flags.c_contiguous else array.copy(order="C")
        self.hash.update(contiguous.reshape(-1).view("uint8").data)

    def _class(self, kind: type) -> None:
        self._add("class", kind.__module__, kind.__qualname__)
        for base in kind.__mro__:
            if base.__module__ == "builtins":
                continue
            source = _source(base)
            if source is not None:
                self._add(source)
            else:  # such as a class defined interactively
                self._items(base.__qualname__, [v for v in vars(base).values() if isinstance(v, types.FunctionType)])

    def _function(self, function: types.FunctionType) -> None:
        self._add("function", function.__module__ or "", function.__qualname__)
        cells = function.__closure__ or ()
        self._items("parts", (function.__code__, function.__defaults__, function.__kwdefaults__, *cells))

    def _object(self, value: Any) -> None:
        """Add what pickling would store of the object."""
        reduced = copyreg.dispatch_table[type(value)](value) if type(value) in copyreg.dispatch_table else None
        reduced = reduced or value.__reduce_ex__(2)
        if isinstance(reduced, str):
            self._add("global", reduced)
            return
        constructor, arguments, *rest = reduced
        self._items("object", (constructor, arguments))
        for index, part in enumerate(rest):
            if isinstance(part, Mapping) or index == 0:
                self.feed(dict(part) if isinstance(part, Mapping) else part)
            elif part is not None:
                self._items("parts", part)


@functools.cache
def _source(kind: type) -> str | None:
    """Return the digest of the source file of a class; None if there is none."""
    try:
        file = inspect.getsourcefile(kind)
    except TypeError:
        return "compiled"
    except OSError:  # typed into an interpreter
        return None
    return None if file is None or not Path(file).is_file() else known_digest(Path(file))
