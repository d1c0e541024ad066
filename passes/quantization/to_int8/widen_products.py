"""Multiply dequantized values in float32 where a product takes them in half precision.

    MatMul(Cast(DQ(a) → half), Cast(DQ(b) → half))   →  Cast(MatMul(DQ(a), DQ(b)) → half)     also Conv and Gemm

`passes.quantization.to_int8.widen_scales` writes quantization with half-precision scales in this form. Where a runtime
does not round these casts as ONNX requires, the casts are replaced by arithmetic, and no int8 kernel matches through
arithmetic. The integer product itself is exact either way: the result is rounded once, instead of both operands before
it, so that it moves by the rounding of half precision (2⁻¹¹ of each term).

The transposes and reshapes between are copied. Skips: Gemm with alpha other than 1, which no int8 kernel has.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from passes.builders.arithmetic import HALVES
from passes.graphs.quantization import plain
from passes.graphs.scopes import Scope
from passes.operators import DEQUANTIZE, is_dequantize
from passes.rewriting.base import Exactness, Skip
from passes.rewriting.edit import Edit
from passes.rewriting.rewrite import Replacement, rewrite

_MOVING = ("Transpose", "Reshape", "Identity")


@rewrite("Conv", "Gemm", "MatMul", exactness=Exactness.ROUNDING, inferred_for=DEQUANTIZE)
def widen_products(node: ir.Node, edit: Edit) -> Replacement:
    """Multiply dequantized values in float32 where a product takes them in half precision."""
    dtype = edit.scope.dtype(node.outputs[0]) or edit.scope.dtype(node.inputs[0])
    if dtype is None or dtype not in HALVES:
        return None
    inputs: list[ir.Value | None] = []
    for operand in node.inputs[:2]:
        chain = _chain(operand, edit.scope)
        if chain is None:
            return None
        value = chain[-1].inputs[0]
        for moving in reversed(chain[:-1]):
            value = edit.op(moving.op_type, [value, *moving.inputs[1:]], moving.attributes)
        inputs.append(value)
    if node.op_type == "Gemm" and node.attributes.get_float("alpha", 1.0) != 1.0:
        return Skip("alpha is not 1")
    inputs += [_widened(bias, edit) for bias in node.inputs[2:]]
    product = edit.op(node.op_type, inputs, node.attributes)
    return edit.op("Cast", [product], {"to": dtype.value})


def _widened(value: ir.Value | None, edit: Edit) -> ir.Value | None:
    """Return a bias in float32."""
    tensor = edit.scope.constant(value)
    if tensor is not None:
        return edit.constant(tensor.numpy().astype(np.float32))
    return None if value is None else edit.op("Cast", [value], {"to": ir.DataType.FLOAT.value})


def _chain(value: ir.Value | None, scope: Scope) -> tuple[ir.Node, ...] | None:
    """Return the nodes from an operand back to the Cast of a float32 dequantized value; None if there is none."""
    chain: list[ir.Node] = []
    while value is not None and (node := value.producer()) is not None:
        chain.append(node)
        if plain(node, scope, "Cast"):
            before = node.inputs[0]
            dequantized = before is not None and is_dequantize(before.producer())
            return tuple(chain) if dequantized and scope.dtype(before) == ir.DataType.FLOAT else None
        if not plain(node, scope, *_MOVING):
            return None
        value = node.inputs[0]
    return None
