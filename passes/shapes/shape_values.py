"""Shape arithmetic on partially known shapes.

    Gather(Shape(x: [batch, 12, n]), 1)  =  12

`Elements` propagates lists of integers from Shape through operators that select and arrange them; arithmetic on them is
left to ONNX Runtime.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from passes.graphs.matching import has_references
from passes.graphs.scopes import Scope
from passes.graphs.tensors import ints

_LIMIT = 64
_DTYPES = (ir.DataType.INT32, ir.DataType.INT64)


@dataclass(frozen=True)
class Known:
    """The known elements of an integer tensor.

    Attributes:
        elements: its elements; None for unknown ones.
        rank: 0 for a scalar, which has one element, or 1.
        dtype: int32 or int64.
    """

    elements: tuple[int | None, ...]
    rank: int = 1
    dtype: ir.DataType = ir.DataType.INT64

    def tensor(self) -> ir.TensorProtocol | None:
        """Return the tensor, if all its elements are known."""
        if None in self.elements:
            return None
        array = np.array(self.elements, self.dtype.numpy())
        return ir.Tensor(array.reshape(()) if self.rank == 0 else array)


class Elements:
    """The known integer lists of a scope.

    ``constants`` is added to: the values of constants do not depend on what is known of other values.
    """

    def __init__(self, scope: Scope, constants: dict[ir.Value, Known | None]) -> None:
        self._scope, self._constants = scope, constants
        self._known: dict[ir.Value, Known] = {}

    def follow(self, node: ir.Node) -> Known | None:
        """Return what is known of the output of a node; must be called in topological order."""
        rule = _RULES.get(node.op_type) if node.domain == "" else None
        if rule is None or len(node.outputs) != 1:
            return None
        known = rule(node, self)
        if known is not None and len(known.elements) <= _LIMIT:
            self._known[node.outputs[0]] = known
            return known
        return None

    def of(self, value: ir.Value | None) -> Known | None:
        """Return what is known of a value; constants are fully known."""
        if value is None:
            return None
        if value in self._known:
            return self._known[value]
        if value not in self._constants:
            tensor = self._scope.constant(value)
            if tensor is None:
                return None
            elements = ints(tensor) if tensor.dtype in _DTYPES and len(tensor.shape) < 2 else None
            known = None if elements is None else Known(tuple(elements), len(tensor.shape), tensor.dtype)
            self._constants[value] = known
        return self._constants[value]

    def shape(self, value: ir.Value | None) -> ir.Shape | None:
        """Return `Scope.proven_shape`."""
        return self._scope.proven_shape(value)


def _shape(node: ir.Node, elements: Elements) -> Known | None:
    shape = elements.shape(node.inputs[0])
    if shape is None or has_references(node):
        return None
    start = node.attributes.get_int("start", 0)
    end = node.attributes.get_int("end", len(shape))
    return Known(tuple(dim if isinstance(dim, int) else None for dim in shape[start:end]))


def _size(node: ir.Node, elements: Elements) -> Known | None:
    shape = elements.shape(node.inputs[0])
    return Known((math.prod(shape.numpy()),), 0) if shape is not None and shape.is_static() else None


def _gather(node: ir.Node, elements: Elements) -> Known | None:
    data, indices = (elements.of(value) for value in node.inputs)
    if data is None or data.rank == 0 or indices is None:
        return None
    size = len(data.elements)
    picked = [index for index in indices.elements if index is not None and -size <= index < size]
    if len(picked) != len(indices.elements):
        return None
    return Known(tuple(data.elements[index] for index in picked), indices.rank, data.dtype)


def _slice(node: ir.Node, elements: Elements) -> Known | None:
    if len(node.inputs) < 3:
        return None
    data, *bounds = (elements.of(value) for value in node.inputs)
    given = [bound for bound, value in zip(bounds, node.inputs[1:], strict=True) if value is not None]
    if data is None or data.rank == 0 or any(bound is None or len(bound.elements) != 1 for bound in given):
        return None
    start, end, _, step = (
        bounds[index].elements[0] if index < len(bounds) and bounds[index] is not None else None  # type: ignore[union-attr]
        for index in range(4)
    )
    if start is None or end is None or (step is None and len(node.inputs) > 4 and node.inputs[4] is not None):
        return None
    if (step or 1) < 0:
        return None  # its bounds are clamped differently from Python's
    return Known(data.elements[start:end:step], 1, data.dtype)


def _concat(node: ir.Node, elements: Elements) -> Known | None:
    parts = [elements.of(value) for value in node.inputs]
    whole: tuple[int | None, ...] = ()
    for part, value in zip(parts, node.inputs, strict=True):
        if part is not None:
            whole += part.elements
            continue
        shape = elements.shape(value)  # unknown elements, whose number may be known
        if shape is None or len(shape) != 1 or not isinstance(shape[0], int) or shape[0] > _LIMIT:
            return None
        whole += (None,) * shape[0]
    known = [part for part in parts if part is not None]
    return Known(whole, 1, known[0].dtype) if known else None


def _unsqueeze(node: ir.Node, elements: Elements) -> Known | None:
    known = elements.of(node.inputs[0])
    if known is None or known.rank != 0:
        return None
    if "axes" in node.attributes:
        axes = node.attributes["axes"].value
    else:
        operand = elements.of(node.inputs[1])
        axes = operand.elements if operand is not None else ()
    return Known(known.elements, 1, known.dtype) if axes is not None and len(axes) == 1 else None


def _squeeze(node: ir.Node, elements: Elements) -> Known | None:
    known = elements.of(node.inputs[0])
    single = known is not None and known.rank == 1 and len(known.elements) == 1
    return Known(known.elements, 0, known.dtype) if known is not None and single else None


def _reshape(node: ir.Node, elements: Elements) -> Known | None:
    known, shape = elements.of(node.inputs[0]), elements.of(node.inputs[1])
    if known is None or shape is None or len(shape.elements) > 1:
        return None
    return Known(known.elements, len(shape.elements), known.dtype)


def _cast(node: ir.Node, elements: Elements) -> Known | None:
    known, to = elements.of(node.inputs[0]), node.attributes["to"]
    if (
        known is None
        or to.is_ref()
        or to.type != ir.AttributeType.INT
        or to.as_int() not in (ir.DataType.INT64, known.dtype)
    ):
        return None
    return Known(known.elements, known.rank, ir.DataType(to.as_int()))


_RULES: dict[str, Callable[[ir.Node, Elements], Known | None]] = {
    "Cast": _cast,
    "Concat": _concat,
    "Gather": _gather,
    "Identity": lambda node, elements: elements.of(node.inputs[0]),
    "Reshape": _reshape,
    "Shape": _shape,
    "Size": _size,
    "Slice": _slice,
    "Squeeze": _squeeze,
    "Unsqueeze": _unsqueeze,
}
