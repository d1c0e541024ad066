"""Write AMD Quark's custom operators as standard arithmetic.

    ExtendedQuantizeLinear, ExtendedDequantizeLinear       of 8 and 16 bits   →  QuantizeLinear, DequantizeLinear
                                                           of 32 bits         →  clip(round(x / s))·s
                                                           of bfloat16        →  (round₇(x / s + z) − z)·s
                                                           of float16         →  round₁₀(x)
    BFPQuantizeDequantize, MXQuantizeDequantize            →  rounding in blocks (`passes.builders.block_floats`)

The older names of these operators, in the domain com.vai.quantize, are supported too. Quark's CPU kernels for float16
use neither scale nor zero point. The arithmetic is exact: weights fold to the same bits that Quark's kernels compute.
Infinities and NaN are unchanged; in block formats with sub-blocks, so is the rest of their block.

Skips: unknown shapes and dtypes; 32-bit integers with zero points; 16-bit floats that are rearranged between
quantization and dequantization.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from passes.builders.arithmetic import HALVES, Arithmetic
from passes.builders.block_floats import (
    BFLOAT16,
    ELEMENTS,
    FLOAT16,
    Rounding,
    apply_to_finite,
    in_blocks,
    round_block,
    round_mx,
    round_prime_block,
    round_to_float,
)
from passes.builders.operands import given
from passes.graphs.scopes import Scope
from passes.operators import QUARK_DOMAINS
from passes.rewriting.base import NotApplicable, Skip
from passes.rewriting.edit import Edit
from passes.rewriting.rewrite import UNKNOWN_DTYPE, UNKNOWN_SHAPE, Replacement, rewrite

_NUMBER = ir.DataType.FLOAT
_QUANTIZE = ("ExtendedQuantizeLinear", "VitisQuantizeLinear")
_DEQUANTIZE = ("ExtendedDequantizeLinear", "VitisDequantizeLinear")
_BLOCK = ("BFPQuantizeDequantize", "BFPFixNeuron")
_MX = ("MXQuantizeDequantize", "MXFixNeuron")
_WIDE = (ir.DataType.INT32, ir.DataType.UINT32)
_STANDARD = {
    ir.DataType.INT8: 13,
    ir.DataType.UINT8: 13,
    ir.DataType.INT16: 21,
    ir.DataType.UINT16: 21,
}
"""Integers that QuantizeLinear supports, and the opset since which it does; com.microsoft supports them before."""


_OPERATORS = [(domain, name) for domain in QUARK_DOMAINS for name in (*_QUANTIZE, *_DEQUANTIZE, *_BLOCK, *_MX)]


@rewrite(*_OPERATORS, inferred_for=_OPERATORS, repeats=True)
def decompose_quark(node: ir.Node, edit: Edit) -> Replacement:
    """Write one of AMD Quark's custom operators as standard arithmetic."""
    if node.op_type in (*_BLOCK, *_MX):
        return _round_in_blocks(node, edit)
    dtype = edit.scope.dtype(given(node, 2))
    if dtype is None:
        return Skip("the dtype of the zero point is unknown")
    if dtype in _STANDARD:
        return _standard_operator(node, dtype, edit)
    if node.op_type in _DEQUANTIZE and (dtype in HALVES or dtype in _WIDE):
        return _round_pair(node, dtype, edit)
    return None


def _standard_operator(node: ir.Node, dtype: ir.DataType, edit: Edit) -> ir.Value:
    """Quantize to 8 or 16 bits by the standard operator, or by com.microsoft's if the opset lacks these integers."""
    domain = "" if edit.scope.opset() >= _STANDARD[dtype] else "com.microsoft"
    if domain:
        edit.scope.graph.opset_imports.setdefault(domain, 1)
    shape = edit.scope.shape(node.inputs[1])
    attributes = {} if shape is not None and not len(shape) else {"axis": node.attributes.get_int("axis", 0)}
    name = "QuantizeLinear" if node.op_type in _QUANTIZE else "DequantizeLinear"
    return edit.op(name, node.inputs, attributes, domain=domain)


def _round_pair(node: ir.Node, dtype: ir.DataType, edit: Edit) -> ir.Value:
    """Round by a quantization to 32-bit integers or 16-bit floats and the dequantization after it."""
    scope, a = edit.scope, Arithmetic(edit, _NUMBER)
    if any(scope.static_shape(value) is None for value in node.inputs[1:]):
        raise NotApplicable("the shape of the scale is unknown")
    _check_zero_points(node, dtype, scope)
    tensor = scope.constant(node.inputs[0])
    if tensor is not None:
        x = edit.constant(tensor.numpy().astype(np.float32))
    else:
        before = edit.producer(node, 0, *_QUANTIZE, domain=node.domain)
        if before is None:
            raise NotApplicable(f"{dtype.name.lower()} values are rearranged before they are dequantized")
        _check_pair(before, node, dtype, scope)
        edit.absorb(before)
        x = _quantized(before, dtype, edit)
    if dtype == ir.DataType.FLOAT16:
        return x
    if dtype == ir.DataType.BFLOAT16:
        x = a("Sub", x, _spread(edit, node, 2, x))
    return a("Mul", x, _spread(edit, node, 1, x))


def _quantized(before: ir.Node, dtype: ir.DataType, edit: Edit) -> ir.Value:
    """Return the result of a quantization, in float32."""
    a, x = Arithmetic(edit, _NUMBER), edit.input(before)
    if dtype == ir.DataType.FLOAT16:  # Quark's kernels clip infinities, too
        return round_to_float(edit, x, FLOAT16)
    x = a("Div", x, _spread(edit, before, 1, x))
    if dtype == ir.DataType.BFLOAT16:
        x = a("Add", x, _spread(edit, before, 2, x))
        return apply_to_finite(edit, x, lambda finite: round_to_float(edit, finite, BFLOAT16))
    return a("Min", a("Max", a("Round", x), float(dtype.min)), float(dtype.max))


def _check_pair(before: ir.Node, node: ir.Node, dtype: ir.DataType, scope: Scope) -> None:
    _check_zero_points(before, dtype, scope)
    parameters = (*before.inputs[1:], *node.inputs[1:])
    several = any(scope.static_shape(value) not in ((), (1,)) for value in parameters)
    if several and scope.static_shape(before.inputs[0]) is None:
        raise NotApplicable("the shape of the input is unknown")


def _check_zero_points(node: ir.Node, dtype: ir.DataType, scope: Scope) -> None:
    """Raise NotApplicable if there are zero points of 32 bits other than 0, or they are not constant."""
    tensor = scope.constant(node.inputs[2])
    if dtype in _WIDE and (tensor is None or tensor.numpy().any()):
        raise NotApplicable("the zero point has 32 bits")


def _round_in_blocks(node: ir.Node, edit: Edit) -> ir.Value:
    """Split into blocks, round them, and join them."""
    sizes, dtype = edit.scope.static_shape(node.inputs[0]), edit.scope.dtype(node.inputs[0])
    if sizes is None or dtype is None:
        raise NotApplicable(UNKNOWN_SHAPE if sizes is None else UNKNOWN_DTYPE)
    _check_attributes(node)
    a = Arithmetic(edit, _NUMBER)
    x = a.cast(edit.input(node))
    block = node.op_type in _BLOCK
    if block and node.attributes.get_int("convert_to_bfloat_before_bfp", 0) != 0:
        x = apply_to_finite(edit, x, lambda finite: round_to_float(edit, finite, BFLOAT16))
    size = node.attributes.get_int("block_size", 8 if block else 32)
    axis = node.attributes.get_int("axis", 1) % len(sizes) if len(sizes) > 1 else 0

    def rounded(finite: ir.Value) -> ir.Value:
        return in_blocks(edit, finite, sizes, axis, size, lambda part, at: _round(edit, node, part, at))

    if int(np.prod(sizes)) > 1:
        x = apply_to_finite(edit, x, rounded)
    return a.cast(x, dtype)


def _check_attributes(node: ir.Node) -> None:
    if node.attributes.get_int("rounding_mode", 0) not in list(Rounding):
        raise NotApplicable("the rounding_mode is unknown")
    if node.op_type in _MX and node.attributes.get_string("element_dtype", "int8") not in (*ELEMENTS, "int8"):
        raise NotApplicable("the element_dtype is unknown")
    if node.op_type in _BLOCK:
        method = node.attributes.get_string("bfp_method", "to_bfp")
        if method not in ("to_bfp", "to_bfp_prime", "to_bfp_prime_shared"):
            raise NotApplicable("the bfp_method is unknown")
        size, part = node.attributes.get_int("block_size", 8), node.attributes.get_int("sub_block_size", 2)
        if method != "to_bfp" and size % part:
            raise NotApplicable("the block_size is not a multiple of the sub_block_size")


def _round(edit: Edit, node: ir.Node, x: ir.Value, axis: int) -> ir.Value:
    """Round blocks along an axis by the node's attributes."""
    rounding = Rounding(node.attributes.get_int("rounding_mode", 0))
    if node.op_type in _MX:
        return round_mx(edit, x, axis, element=node.attributes.get_string("element_dtype", "int8"), rounding=rounding)
    bits = node.attributes.get_int("bit_width", 16)
    if node.attributes.get_string("bfp_method", "to_bfp") == "to_bfp":
        widen = bool(node.attributes.get_int("use_compiler_version_cpu_kernel", 0))
        return round_block(edit, x, axis, bits=bits, rounding=rounding, widen=widen)
    shape = edit.scope.static_shape(x)
    assert shape is not None
    part, shift = node.attributes.get_int("sub_block_size", 2), node.attributes.get_int("sub_block_shift_bits", 1)
    return round_prime_block(edit, x, shape, axis, bits=bits, rounding=rounding, sub_block=part, shift=shift)


def _spread(edit: Edit, node: ir.Node, index: int, x: ir.Value) -> ir.Value:
    """Return a scale or zero point as float32, in a shape that broadcasts with ``x``."""
    value = edit.input(node, index)
    dtype, shape = edit.scope.dtype(value), edit.scope.static_shape(value)
    tensor = edit.scope.constant(value)
    if dtype not in (None, _NUMBER):
        value = edit.constant(tensor.numpy().astype(np.float32)) if tensor is not None else edit.cast(value, _NUMBER)
    if shape in ((), (1,)):
        return edit.reshape_or_fold(value, [])
    whole = x.const_value.shape if x.const_value is not None else x.shape
    assert whole is not None
    rank = len(whole)
    axis = node.attributes.get_int("axis", 0) % rank
    return edit.reshape_or_fold(value, [-1, *[1] * (rank - axis - 1)])
