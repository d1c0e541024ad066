"""Expressions over new nodes: what an edit and the arithmetic of one dtype (`passes.builders.arithmetic`) share."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

Array = np.ndarray[Any, np.dtype[Any]]
Attribute = int | float | str | Sequence[int] | Sequence[float] | Sequence[str] | ir.TensorProtocol | ir.Graph | ir.Attr
"""The values of attributes that `Expressions.op` takes."""


class Expressions(ABC):
    """Builds expressions; each method returns the output of the last node that it adds."""

    @abstractmethod
    def node(
        self,
        op_type: str,
        inputs: Sequence[ir.Value | None],
        attributes: Mapping[str, Attribute] | None = None,
        *,
        domain: str = "",
        outputs: int = 1,
    ) -> ir.Node:
        """Add a node, and return it."""

    def op(
        self,
        op_type: str,
        inputs: Sequence[ir.Value | None],
        attributes: Mapping[str, Attribute] | None = None,
        *,
        domain: str = "",
    ) -> ir.Value:
        """Add a node, and return its first output."""
        return self.node(op_type, inputs, attributes, domain=domain).outputs[0]

    @abstractmethod
    def constant(self, array: Array | np.generic | ir.TensorProtocol, name: str | None = None) -> ir.Value:
        """Add a constant."""

    def index(self, numbers: int | Sequence[int] | Array) -> ir.Value:
        """Add an int64 constant: indices, a shape or axes."""
        return self.constant(np.array(numbers, np.int64))

    def scalar(self, number: float, dtype: ir.DataType) -> ir.Value:
        """Add a constant of rank 0."""
        with np.errstate(over="ignore"):
            return self.constant(np.asarray(number).astype(dtype.numpy()))

    def cast(self, x: ir.Value, to: ir.DataType) -> ir.Value:
        """Cast ``x``, unless its dtype is ``to`` already."""
        return x if x.dtype == to else self.op("Cast", [x], {"to": to.value})

    def reshape(self, x: ir.Value, shape: Sequence[int]) -> ir.Value:
        """Reshape ``x`` to a static shape without zeros."""
        return self.op("Reshape", [x, self.index(shape)]) if len(shape) else self.op("Squeeze", [x])

    def squeeze(self, x: ir.Value, axes: Sequence[int]) -> ir.Value:
        return self.op("Squeeze", [x, self.index(axes)]) if axes else x

    def unsqueeze(self, x: ir.Value, axes: Sequence[int]) -> ir.Value:
        return self.op("Unsqueeze", [x, self.index(axes)]) if axes else x

    def slice(self, x: ir.Value, axis: int, start: int, stop: int) -> ir.Value:
        """Take ``x[..., start:stop, ...]`` along an axis."""
        return self.op("Slice", [x, self.index([start]), self.index([stop]), self.index([axis])])

    def reduce(self, kind: str, x: ir.Value, axes: Sequence[int], *, keepdims: bool = True) -> ir.Value:
        """Apply ``ReduceSum``, ``ReduceMax`` or another reduction over a non-empty list of axes."""
        return self.op(f"Reduce{kind}", [x, self.index(list(axes))], {"keepdims": int(keepdims)})

    def concat(self, parts: Sequence[ir.Value], axis: int) -> ir.Value:
        return parts[0] if len(parts) == 1 else self.op("Concat", parts, {"axis": axis})

    def apply_along(self, x: ir.Value, shape: Sequence[int], axis: int, matrix: Array) -> ir.Value:
        """Multiply every line of ``x`` along an axis by a constant matrix.

        A separable map (interpolation, averaging) is one such product for each axis, one after the other.

        Args:
            x: the operand, in the matrix's dtype, with the static ``shape``.
            axis: non-negative.
            matrix: (elements of the result along the axis, shape[axis]).
        """
        last = len(shape) - 1
        if axis == last:
            return self.op("MatMul", [x, self.constant(np.ascontiguousarray(matrix.T))])
        left = self.constant(np.ascontiguousarray(matrix))
        if axis == last - 1:
            return self.op("MatMul", [left, x])
        before, after = math.prod(shape[:axis]), math.prod(shape[axis + 1 :])
        flat = self.reshape(x, (before, shape[axis], after))
        return self.reshape(self.op("MatMul", [left, flat]), (*shape[:axis], len(matrix), *shape[axis + 1 :]))
