"""Give fixed sizes to the dynamic dimensions of a model.

    x: [batch, seq, 64]  →  x: [1, 128, 64]            with dims={batch=1,seq=128}, or shapes={x=[1,128,64]}

A symbol stands for one number in all inputs, and expressions of it, such as ``past + 1``, are evaluated. What the model
says of results with it is a claim, as exporters use the same names for other sizes: inference finds their sizes, except
behind operators of other domains, of which nothing else is known. The frozen dimensions are recorded in the model's
metadata, so that freezing them again to the same sizes is not an error. Inputs that are not tensors are unchanged: the
arrays of a sequence may differ in size.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

import onnx_ir as ir

from passes.core.errors import InputError, nearest
from passes.graphs import lineage
from passes.graphs.limits import MAX_ELEMENTS
from passes.graphs.scopes import Scope, values_of
from passes.rewriting.base import Context, Pass, Result, Rewrite
from passes.shapes.declarations import contradiction, settle
from passes.shapes.inference import infer
from passes.shapes.size_expressions import evaluate, symbols

FROZEN = "onnx_bridge.frozen"
"""The model property that holds the frozen dimensions as a JSON object: name to size."""

_IDENTIFIER = re.compile(r"[A-Za-z_]\w*")


@dataclass(frozen=True)
class FreezeShapes(Pass):
    """Give fixed sizes to the dynamic dimensions of a model.

    Attributes:
        dims: sizes of symbolic dimensions, by name.
        shapes: whole shapes of inputs, by name.
        default: the size of all other dynamic dimensions of inputs; None leaves them dynamic.
    """

    name = "freeze-shapes"
    dims: Mapping[str, int] = field(default_factory=dict)
    shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    default: int | None = None

    def run(self, model: ir.Model, context: Context) -> Result:
        """Replace the shapes of inputs, and their symbols in all values.

        Raises:
            InputError: a dimension or an input is unknown, a size is too small, or two sizes contradict each other.
        """
        scope = Scope(model, model.graph)
        inputs = {str(value.name): value for value in model.graph.inputs if not scope.is_parameter(value)}
        before = lineage.recorded(model.metadata_props.get(FROZEN), dict[str, int]) or {}
        self._check_chosen()
        sizes = self._sizes(inputs, before)
        shapes = {name: self._shape(value, sizes) for name, value in inputs.items() if _is_tensor(value)}
        result = Result(model)
        for name, shape in shapes.items():
            value = inputs[name]
            if shape is not None and math.prod(dim for dim in shape if isinstance(dim, int)) > MAX_ELEMENTS:
                what = f"input {name} would get the shape {shape}: more elements than the memory of any machine has"
                raise InputError(what, where=self.name, hint="give smaller sizes")
            if shape is not None and shape != value.shape and context.budget.take():
                result.rewrites.append(Rewrite((), note=f"{name}: {value.shape or '?'} → {shape}"))
                value.shape = shape
        claims: dict[ir.Value, ir.Shape] = {}
        if result.rewrites and sizes:
            claims = _substitute(model, sizes)
            model.metadata_props[FROZEN] = json.dumps({**before, **sizes}, sort_keys=True)
        if result.rewrites:
            settle(model, context)
            infer(model)
            for value, shape in claims.items():
                reason = contradiction(ir.Value(name=value.name, shape=shape), (None, value.shape))
                if reason is not None:
                    context.contradictions[str(value.name)] = reason
        return result

    def _sizes(self, inputs: Mapping[str, ir.Value], before: Mapping[str, int]) -> dict[str, int]:
        """Return the size of every symbol to freeze."""
        tensors = [value for value in inputs.values() if _is_tensor(value)]
        symbols = {str(dim): None for value in tensors for dim in value.shape or () if _is_named(dim)}
        sizes: dict[str, int] = {}
        for name, size in self.dims.items():
            if before.get(name, size) != size:
                raise InputError(f"dimension {name} is already frozen to {before[name]}, not {size}", where=self.name)
            if name in symbols:
                _set(sizes, name, size, f"dims has {name}={size}")
            elif name not in before:
                hint = nearest(name, symbols) or _dynamic_inputs(inputs)
                raise InputError(f"no input has a dimension {name}", where=self.name, hint=hint)
        for name, shape in self.shapes.items():
            if name not in inputs:
                hint = nearest(name, inputs) or f"there are {', '.join(inputs)}"
                raise InputError(f"the model has no input {name}", where=self.name, hint=hint)
            self._check(name, shape, inputs[name].shape)
            for dim, size in zip(inputs[name].shape or (), shape, strict=False):
                if _is_named(dim):
                    _set(sizes, str(dim), size, f"the shape of input {name} implies {dim}={size}")
        if self.default is not None:
            for symbol in filter(str.isidentifier, symbols):
                sizes.setdefault(symbol, self.default)
        known = dict(sizes)
        for symbol in symbols:
            if (implied := _evaluated(symbol, known)) is not None:
                _set(sizes, symbol, implied, f"{symbol} evaluates to {implied}")
            elif self.default is not None:
                sizes.setdefault(symbol, self.default)
        return sizes

    def _check_chosen(self) -> None:
        chosen = [*self.dims.values(), *(size for shape in self.shapes.values() for size in shape)]
        if any(size < 0 for size in chosen):
            raise InputError("a dimension must be frozen to 0 or more", where=self.name)
        if self.default is not None and self.default < 1:
            hint = "name a dimension to make it 0, as that of an empty cache"
            raise InputError("the default size must be 1 or more", where=self.name, hint=hint)

    def _check(self, name: str, shape: tuple[int, ...], declared: ir.Shape | None) -> None:
        if declared is None:
            return
        if len(shape) != len(declared):
            what = f"input {name} has {len(declared)} dimensions, {declared}, but {list(shape)} has {len(shape)}"
            raise InputError(what, where=self.name)
        for index, (dim, size) in enumerate(zip(declared, shape, strict=True)):
            if isinstance(dim, int) and dim != size:
                what = f"dimension {index} of input {name} is {dim} and cannot be frozen to {size}"
                raise InputError(what, where=self.name, hint=f"the model declares {name}: {declared}")

    def _shape(self, value: ir.Value, sizes: Mapping[str, int]) -> ir.Shape | None:
        """Return the new shape of an input; None if it is unknown."""
        if str(value.name) in self.shapes:
            return ir.Shape(self.shapes[str(value.name)])
        if value.shape is None:
            return None
        return ir.Shape([self._dim(dim, sizes) for dim in value.shape])

    def _dim(self, dim: int | ir.SymbolicDim, sizes: Mapping[str, int]) -> int | ir.SymbolicDim | None:
        if isinstance(dim, int):
            return dim
        return sizes.get(dim.value, dim) if dim.value is not None else self.default


def _is_tensor(value: ir.Value) -> bool:
    return value.type is None or isinstance(value.type, ir.TensorType)


def _is_named(dim: int | ir.SymbolicDim) -> bool:
    return not isinstance(dim, int) and dim.value is not None


def _set(sizes: dict[str, int], name: str, size: int, source: str) -> None:
    if sizes.setdefault(name, size) != size:
        raise InputError(f"{source}, which contradicts {name}={sizes[name]}", where=FreezeShapes.name)


def _evaluated(symbol: str, sizes: Mapping[str, int]) -> int | None:
    """Return the value of an expression; None for a plain symbol, and if a size in it is unknown."""
    names = symbols(symbol)
    return None if names == {symbol} else evaluate(symbol, {name: sizes[name] for name in names & sizes.keys()})


def _dynamic_inputs(inputs: Mapping[str, ir.Value]) -> str:
    dynamic = [f"{name}: {value.shape}" for name, value in inputs.items() if value.shape and value.shape.is_dynamic()]
    return f"dynamic are {', '.join(dynamic)}" if dynamic else "all inputs have fixed shapes"


def _substitute(model: ir.Model, sizes: Mapping[str, int]) -> dict[ir.Value, ir.Shape]:
    """Take the symbols out of all values; sizes that inference can find become unknown, and so do expressions.

    Returns:
        The shapes that the symbols claim of results.
    """
    claims: dict[ir.Value, ir.Shape] = {}
    for value in values_of(model):
        if value.shape is None or value.is_initializer() or value.shape.is_static():
            continue
        node = value.producer()
        claims[value] = ir.Shape([_replaced(dim, sizes, sizes) for dim in value.shape])
        known = sizes if node is None or node.domain != "" else {}
        value.shape = ir.Shape([_replaced(dim, sizes, known) for dim in value.shape])
    return claims


def _replaced(
    dim: int | ir.SymbolicDim, sizes: Mapping[str, int], known: Mapping[str, int]
) -> int | ir.SymbolicDim | None:
    if isinstance(dim, int) or dim.value is None:
        return dim
    if dim.value in known:
        return known[dim.value]
    return None if any(word in sizes for word in (dim.value, *_IDENTIFIER.findall(dim.value))) else dim
