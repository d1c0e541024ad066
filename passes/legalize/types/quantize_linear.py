"""Rewrite QuantizeLinear and DequantizeLinear that a runtime rejects, or saturates wrongly, as arithmetic.

    com.microsoft.QuantizeLinear, com.microsoft.DequantizeLinear  →  the standard's operators
    QuantizeLinear, DequantizeLinear                              →  arithmetic (`passes.builders.quantize_linear`)
    other operators on 8-bit integers with scales                 →  see `passes.builders.quantized_operators`

The com.microsoft operators had 16-bit integers before the standard did.

Skips: unknown shapes or dtypes; a float8e8m0 scale without an explicit output dtype.
"""

from __future__ import annotations

import onnx_ir as ir

from passes.builders.operands import given
from passes.builders.quantize_linear import arithmetic_dtype, dequantize, quantize
from passes.builders.quantized_operators import OPERATORS, PRODUCTS, quantized_operator, quantized_product
from passes.builders.small_dtypes import SMALL, as_carrier
from passes.rewriting.base import Exactness, OpsetTooOld, Skip
from passes.rewriting.edit import Edit
from passes.rewriting.rewrite import Replacement, rewrite


@rewrite(*OPERATORS, exactness=Exactness.QUANTIZATION_STEP)
def dequantize_compute_quantize(node: ir.Node, edit: Edit) -> Replacement:
    """Dequantize, compute in float, and quantize."""
    return quantized_operator(node, edit)


@rewrite(*PRODUCTS, exactness=Exactness.ROUNDING)
def quantized_product_to_float(node: ir.Node, edit: Edit) -> Replacement:
    """Rewrite com.microsoft's integer products with float results as standard operators."""
    return quantized_product(node, edit)


_SINCE_OPSET_21 = {ir.DataType.INT16, ir.DataType.UINT16, ir.DataType.INT4, ir.DataType.UINT4}


@rewrite("com.microsoft.QuantizeLinear", "com.microsoft.DequantizeLinear")
def standard_quantization(node: ir.Node, edit: Edit) -> Replacement:
    """Write QuantizeLinear and DequantizeLinear of com.microsoft as the standard's."""
    quantized = given(node, 2) if node.op_type == "QuantizeLinear" else node.inputs[0]
    dtype = edit.scope.dtype(quantized) if quantized is not None else ir.DataType.UINT8
    if dtype is None:
        return Skip("the quantized dtype is unknown")
    since = 21 if dtype in _SINCE_OPSET_21 or "block_size" in node.attributes else 13
    if edit.scope.opset() < since:
        raise OpsetTooOld("the standard operator with this dtype", since, edit.scope.opset())
    return edit.op(node.op_type, node.inputs, node.attributes)


@rewrite("QuantizeLinear", "com.microsoft.QuantizeLinear")
def quantize_by_arithmetic(node: ir.Node, edit: Edit) -> Replacement:
    """Divide, round, shift, clip and cast instead of QuantizeLinear."""
    target = arithmetic_dtype(node, edit.scope)
    return edit.cast(quantize(edit, node, _carriers(node, edit), target), target)


@rewrite("DequantizeLinear", "com.microsoft.DequantizeLinear")
def dequantize_by_arithmetic(node: ir.Node, edit: Edit) -> Replacement:
    """Cast, shift and multiply instead of DequantizeLinear."""
    return dequantize(edit, node, _carriers(node, edit), arithmetic_dtype(node, edit.scope))


def _carriers(node: ir.Node, edit: Edit) -> list[ir.Value | None]:
    """Return the inputs, with constants of small dtypes in their carriers."""
    inputs: list[ir.Value | None] = []
    for value in node.inputs:
        tensor = edit.scope.constant(value)
        is_small = tensor is not None and tensor.dtype in SMALL
        inputs.append(edit.constant(as_carrier(tensor)) if tensor is not None and is_small else value)
    return inputs
