"""Rewrite operators that generate tensors from a few numbers.

    Range(start, limit, delta)                   →  start + delta · [0, 1, …]     as many as the output has
    HannWindow, HammingWindow, BlackmanWindow(n) →  the constant that ONNX Runtime computes
    MelWeightMatrix(…)                           →  likewise
    EyeLike(x)                                   →  a constant

The length of a range or window that is computed at run time is taken from the output's shape.

Skips: lengths that are neither constant nor known from the output's shape; what ONNX Runtime cannot compute.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir

from passes.builders.arithmetic import wide_float
from passes.builders.operands import UNKNOWN_DTYPE, not_constant
from passes.evaluation.constant_session import EvaluationError
from passes.evaluation.evaluation import evaluate
from passes.rewriting.base import Exactness, Skip
from passes.rewriting.edit import Edit
from passes.rewriting.rewrite import Match, NodeContext, NodeRewrite

_MOST = 2**25
"""The most elements of a constant."""


@dataclass(frozen=True)
class _Range(Match):
    count: int
    dtype: ir.DataType


class CountRange(NodeRewrite[_Range]):
    """Compute a range of known length from its start."""

    name = "count-range"
    exactness = Exactness.ROUNDING
    operators = frozenset({("", "Range")})
    needs_dtype = (0,)

    def match(self, node: ir.Node, context: NodeContext) -> _Range | Skip | None:
        """Match a length that is known from the operands, else from the output's shape."""
        scope = context.scope
        dtype, sizes = context.dtype(node), scope.proven_sizes(node.outputs[0])
        constants = [scope.constant(value) for value in node.inputs]
        if all(tensor is not None for tensor in constants):
            start, limit, delta = (tensor.numpy().item() for tensor in constants if tensor is not None)
            if delta == 0:
                return Skip("its delta is 0")
            return _counted(node, max(math.ceil((limit - start) / delta), 0), dtype)
        if sizes is None:
            names = ("its start", "its limit", "its delta")
            operands = zip(node.inputs, constants, names, strict=True)
            return Skip(next(not_constant(v, name) for v, tensor, name in operands if v and tensor is None))
        return _counted(node, sizes[0], dtype)

    def rewrite(self, match: _Range, edit: Edit) -> Sequence[ir.Value | None]:
        """Computed in float32 for narrower floats."""
        start, _, delta = match.node.inputs
        if match.count == 0:
            return [edit.constant(np.zeros(0, match.dtype.numpy()))]
        assert start is not None
        assert delta is not None
        dtype = wide_float(match.dtype)
        assert dtype is not None
        steps = edit.constant(np.arange(match.count).astype(dtype.numpy()))
        step = edit.op("Mul", [edit.reshape(edit.cast(delta, dtype), [1]), steps])
        found = edit.op("Add", [edit.reshape(edit.cast(start, dtype), [1]), step])
        return [edit.cast(found, match.dtype)]


def _counted(node: ir.Node, count: int, dtype: ir.DataType) -> _Range | Skip:
    return _Range(node, count, dtype) if count <= _MOST else Skip(f"its {count} steps are too many for a constant")


@dataclass(frozen=True)
class _Constants(Match):
    constants: tuple[ir.TensorProtocol, ...]


_WINDOWS = ("BlackmanWindow", "HammingWindow", "HannWindow")


class EvaluateWindow(NodeRewrite[_Constants]):
    """Evaluate windows and filter banks of known size."""

    name = "evaluate-window"
    exactness = Exactness.BITWISE
    operators = frozenset(("", each) for each in (*_WINDOWS, "MelWeightMatrix"))

    def match(self, node: ir.Node, context: NodeContext) -> _Constants | Skip | None:
        """Match constant operands; the size of a window may follow from the output's shape."""
        scope = context.scope
        constants = [scope.constant(value) for value in node.inputs]
        sizes, dtype = scope.proven_sizes(node.outputs[0]), scope.dtype(node.inputs[0])
        if node.op_type in _WINDOWS and sizes is not None and dtype is not None:
            constants = [ir.Tensor(np.array(sizes[0], dtype.numpy()))]
        missing = next((value for value, tensor in zip(node.inputs, constants, strict=True) if tensor is None), None)
        if missing is not None:
            return Skip(not_constant(missing, "the size of its output"))
        return _Constants(node, tuple(each for each in constants if each is not None))

    def rewrite(self, match: _Constants, edit: Edit) -> Sequence[ir.Value | None] | Skip:
        """The result of ONNX Runtime."""
        node = match.node
        given = {value: each for value, each in zip(node.inputs, match.constants, strict=True) if value is not None}
        try:
            return [edit.constant(each) for each in evaluate([node], given, node.outputs, edit.scope)]
        except EvaluationError as error:
            return Skip(f"ONNX Runtime cannot compute it: {error}")


@dataclass(frozen=True)
class _Eye(Match):
    sizes: tuple[int, ...]
    dtype: ir.DataType


class ConstantEye(NodeRewrite[_Eye]):
    """Replace EyeLike by a constant."""

    name = "constant-eye"
    exactness = Exactness.BITWISE
    operators = frozenset({("", "EyeLike")})
    needs_shape = (0,)

    def match(self, node: ir.Node, context: NodeContext) -> _Eye | Skip | None:
        dtype = context.scope.dtype(node.inputs[0])
        if "dtype" in node.attributes:
            dtype = ir.DataType(node.attributes["dtype"].as_int())
        return Skip(UNKNOWN_DTYPE) if dtype is None else _Eye(node, context.shape(node), dtype)

    def rewrite(self, match: _Eye, edit: Edit) -> Sequence[ir.Value | None]:
        """The matrix; all zeros if the diagonal is outside of it."""
        diagonal = match.node.attributes.get_int("k", 0)
        rows, columns = match.sizes
        return [edit.constant(np.eye(rows, columns, diagonal, dtype=np.bool_).astype(match.dtype.numpy()))]


RULES: tuple[NodeRewrite[Any], ...] = (CountRange(), EvaluateWindow(), ConstantEye())
