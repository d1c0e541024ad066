"""Write com.microsoft's low-bit block-quantized weights in a form that stays small, or as floats.

    MatMulNBits(A, B, s, z, –, b)   →  MatMulNBits(A, B, s, z flat) + b        weights stay in 4 bits
    GatherBlockQuantized(W, i, s, z) →  (Gather(W', i) − Gather(z', i))·Gather(s, i)
    MatMulBnb4(A, B, absmax)        →  A · Wᵀ                                  W = table[B]·absmax, in float

W' and z' hold the same integers, one per byte; scales and zero points are expanded to their blocks after the Gather.
The tables of MatMulBnb4 are bitsandbytes' FP4 and NF4.

Skips: weights that are not constant; permuted weights (g_idx); unknown shapes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir

from passes.builders.arithmetic import Arithmetic
from passes.builders.operands import given
from passes.legalize.contrib.quantized_weights import unpack
from passes.rewriting.base import Exactness, Skip
from passes.rewriting.edit import Edit
from passes.rewriting.rewrite import UNKNOWN_SHAPE, Match, NodeContext, NodeRewrite

_CONTRIB = "com.microsoft"
_NUMBER = ir.DataType.FLOAT
_FP4 = np.array([0, 1 / 192, 2 / 3, 1, 1 / 3, 1 / 2, 1 / 6, 1 / 4], np.float32)
_TABLES = {
    0: np.concatenate([_FP4, -_FP4]),
    1: np.array(
        [
            -1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635,
            -0.18477343022823334, -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725,
            0.24611230194568634, 0.33791524171829224, 0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0,
        ],
        np.float32,
    ),
}  # fmt: skip
"""The values of 4-bit codes, by ``quant_type``."""


class PlainMatMulNBits(NodeRewrite[Match]):
    """Give MatMulNBits flat zero points, and move its bias to an Add."""

    name = "plain-mat-mul-n-bits"
    exactness = Exactness.ROUNDING
    operators = frozenset({(_CONTRIB, "MatMulNBits")})

    def match(self, node: ir.Node, context: NodeContext) -> Match | Skip | None:
        """Match 4-bit weights with a bias, or with zero points that are not flat."""
        scope = context.scope
        zeros, bias = given(node, 3), given(node, 5)
        if node.attributes.get_int("bits", 4) != 4 or given(node, 4) is not None:
            return None
        if zeros is not None and scope.dtype(zeros) != ir.DataType.UINT8:
            return None
        shape = scope.static_shape(zeros) if zeros is not None else (0,)
        if shape is None:
            return Skip(UNKNOWN_SHAPE)
        return Match(node) if len(shape) > 1 or bias is not None else None

    def rewrite(self, match: Match, edit: Edit) -> Sequence[ir.Value | None]:
        """The same operator with fewer inputs."""
        node = match.node
        zeros, bias = given(node, 3), given(node, 5)
        inputs = list(node.inputs[:3])
        if zeros is not None:
            tensor = edit.scope.constant(zeros)
            if tensor is not None:
                inputs.append(edit.constant(tensor.numpy().ravel()))
            else:
                inputs.append(edit.op("Reshape", [zeros, edit.constant(np.array([-1]))]))
        y = edit.op("MatMulNBits", inputs, node.attributes, domain=_CONTRIB)
        return [y if bias is None else edit.op("Add", [y, bias])]


@dataclass(frozen=True)
class _Gathered(Match):
    data: ir.TensorProtocol
    dtype: ir.DataType
    axes: tuple[int, int]


class DecomposeGatherBlockQuantized(NodeRewrite[_Gathered]):
    """Gather integers, scales and zero points, then dequantize."""

    name = "decompose-gather-block-quantized"
    exactness = Exactness.ROUNDING
    operators = frozenset({(_CONTRIB, "GatherBlockQuantized")})
    needs_shape = (1, 2)
    needs_dtype = (2,)

    def match(self, node: ir.Node, context: NodeContext) -> _Gathered | Skip | None:
        """Match constant weights that are gathered along another axis than that of their blocks."""
        scope = context.scope
        data = scope.constant(node.inputs[0])
        if data is None or (given(node, 3) is not None and scope.constant(node.inputs[3]) is None):
            return Skip("its weights or their zero points are not constant")
        rank = len(data.shape)
        gathered, blocked = (
            node.attributes.get_int(name, default) % rank
            for name, default in (("gather_axis", 0), ("quantize_axis", 1))
        )
        if gathered == blocked:
            return Skip("it gathers along the axis of its blocks")
        return _Gathered(node, data, context.dtype(node, 2), (gathered, blocked))

    def rewrite(self, match: _Gathered, edit: Edit) -> Sequence[ir.Value | None]:
        """Dequantize in float32, and round once at the end."""
        node, a = match.node, Arithmetic(edit, _NUMBER)
        gathered, blocked = match.axes
        indices, scales = node.inputs[1], node.inputs[2]
        shape = edit.scope.static_shape(indices)
        assert shape is not None and scales is not None and indices is not None
        bits, block = node.attributes.get_int("bits", 4), node.attributes.get_int("block_size", 128)
        packed = match.data.dtype == ir.DataType.UINT8 and bits < 8
        numbers = _bytes(match.data, bits, None)
        axis = blocked + len(shape) - 1 if blocked > gathered else blocked

        def gather(value: ir.Value) -> ir.Value:
            return edit.op("Gather", [value, indices], {"axis": gathered})

        x = edit.cast(gather(edit.constant(numbers)), _NUMBER)
        length = numbers.shape[blocked]
        zeros = edit.scope.constant(given(node, 3))
        if zeros is not None:
            count = -(-length // block)
            stored = _bytes(zeros, bits, count if packed else None)
            x = a("Sub", x, _over_blocks(a, edit.cast(gather(edit.constant(stored)), _NUMBER), axis, block, length))
        elif match.data.dtype == ir.DataType.UINT8:
            x = a("Sub", x, float(2 ** (bits - 1)))
        spread = _over_blocks(a, edit.cast(gather(scales), _NUMBER), axis, block, length)
        return [edit.cast(a("Mul", x, spread), match.dtype)]


def _bytes(tensor: ir.TensorProtocol, bits: int, length: int | None) -> np.ndarray:
    """Low-bit integers, one per byte; packed ones are unpacked along the last axis, up to ``length`` of them."""
    array = tensor.numpy()
    if tensor.dtype != ir.DataType.UINT8 or bits == 8:
        return array.astype(np.int8 if tensor.dtype.is_signed() else np.uint8)
    rows = array.reshape(-1, array.shape[-1])
    length = length or array.shape[-1] * (8 // bits)
    return unpack(rows, bits, length).reshape(*array.shape[:-1], length)


def _over_blocks(a: Arithmetic, x: ir.Value, axis: int, block: int, length: int) -> ir.Value:
    """One element per block, repeated for each element of the block along an axis."""
    shape = x.shape
    assert shape is not None
    dims = [int(each) for each in shape.numpy()]
    if dims[axis] in (1, length):
        return x
    wide = [*dims[: axis + 1], block, *dims[axis + 1 :]]
    expanded = a("Expand", a.unsqueeze(x, [axis + 1]), a.index(wide))
    flat = a.reshape(expanded, [*dims[:axis], dims[axis] * block, *dims[axis + 1 :]])
    return flat if dims[axis] * block == length else a.slice(flat, axis, 0, length)


class DecomposeMatMulBnb4(NodeRewrite[Match]):
    """Write MatMulBnb4 as a product with float weights."""

    name = "decompose-mat-mul-bnb4"
    exactness = Exactness.ROUNDING
    operators = frozenset({(_CONTRIB, "MatMulBnb4")})
    needs_dtype = (0,)

    def match(self, node: ir.Node, context: NodeContext) -> Match | Skip | None:
        """Match constant weights of a known format."""
        scope = context.scope
        if any(scope.constant(value) is None for value in node.inputs[1:3]):
            return Skip("its weights are not constant")
        if node.attributes.get_int("quant_type", 1) not in _TABLES:
            return Skip("its quant_type is unknown")
        if not node.attributes.get_int("transB", 1):
            return Skip("its weights are transposed")
        return Match(node)

    def rewrite(self, match: Match, edit: Edit) -> Sequence[ir.Value | None]:
        """Look up the weights, scale them, and multiply."""
        node, scope = match.node, edit.scope
        packed, largest = (scope.constant(value) for value in node.inputs[1:3])
        dtype = scope.dtype(node.inputs[0])
        assert packed is not None and largest is not None and dtype is not None
        rows, columns, block = (node.attributes.get_int(name, 0) for name in ("N", "K", "block_size"))
        stored = packed.numpy().ravel()
        indices = np.stack([stored >> 4, stored & 15], axis=-1).ravel()[: rows * columns]
        scales = np.repeat(largest.numpy().ravel().astype(np.float32), block)[: rows * columns]
        weights = _TABLES[node.attributes.get_int("quant_type", 1)][indices] * scales
        matrix = np.ascontiguousarray(weights.reshape(rows, columns).T).astype(dtype.numpy())
        return [edit.op("MatMul", [node.inputs[0], edit.constant(matrix)])]


RULES: tuple[NodeRewrite[Any], ...] = (PlainMatMulNBits(), DecomposeGatherBlockQuantized(), DecomposeMatMulBnb4())
