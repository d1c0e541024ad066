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

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from passes.builders.arithmetic import Arithmetic
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
from passes.graphs.scopes import Scope
from passes.operators import QUARK_DOMAINS
from passes.rewriting.base import Context, Exactness, Pass, Result, Skip
from passes.rewriting.edit import Edit
from passes.rewriting.fixpoint import run_to_fixpoint
from passes.rewriting.rewrite import Match, NodeContext, NodeRewrite

_NUMBER = ir.DataType.FLOAT
_QUANTIZE = ("ExtendedQuantizeLinear", "VitisQuantizeLinear")
_DEQUANTIZE = ("ExtendedDequantizeLinear", "VitisDequantizeLinear")
_BLOCK = ("BFPQuantizeDequantize", "BFPFixNeuron")
_MX = ("MXQuantizeDequantize", "MXFixNeuron")
_HALVES = (ir.DataType.BFLOAT16, ir.DataType.FLOAT16)
_WIDE = (ir.DataType.INT32, ir.DataType.UINT32)
_STANDARD = {
    ir.DataType.INT8: 13,
    ir.DataType.UINT8: 13,
    ir.DataType.INT16: 21,
    ir.DataType.UINT16: 21,
}
"""Integers that QuantizeLinear supports, and the opset since which it does; com.microsoft supports them before."""


@dataclass(frozen=True)
class _Found(Match):
    dtype: ir.DataType


def _operators(*names: str) -> frozenset[tuple[str, str]]:
    return frozenset((domain, name) for domain in QUARK_DOMAINS for name in names)


class _Integers(NodeRewrite[_Found]):
    """Quantization to 8 and 16 bits: the standard operators."""

    name = "decompose-quark"
    exactness = Exactness.BITWISE
    operators = _operators(*_QUANTIZE, *_DEQUANTIZE)

    def match(self, node: ir.Node, context: NodeContext) -> _Found | Skip | None:
        """Match 8- and 16-bit integers."""
        dtype = context.scope.dtype(node.inputs[2]) if len(node.inputs) > 2 else None
        if dtype is None:
            return Skip("the dtype of its zero point is unknown")
        return _Found(node, dtype) if dtype in _STANDARD else None

    def rewrite(self, match: _Found, edit: Edit) -> Sequence[ir.Value | None]:
        """The standard operator, or com.microsoft's where the opset lacks these integers."""
        node = match.node
        domain = "" if edit.scope.opset() >= _STANDARD[match.dtype] else "com.microsoft"
        if domain:
            edit.scope.graph.opset_imports.setdefault(domain, 1)
        shape = edit.scope.shape(node.inputs[1])
        attributes = {} if shape is not None and not len(shape) else {"axis": node.attributes.get_int("axis", 0)}
        name = "QuantizeLinear" if node.op_type in _QUANTIZE else "DequantizeLinear"
        return [edit.op(name, node.inputs, attributes, domain=domain)]


class _Pairs(NodeRewrite[_Found]):
    """Quantization to 32-bit integers and 16-bit floats, together with its dequantization: rounding."""

    name = "decompose-quark"
    exactness = Exactness.BITWISE
    operators = _operators(*_DEQUANTIZE)
    absorbs = _operators(*_QUANTIZE)

    def match(self, node: ir.Node, context: NodeContext) -> _Found | Skip | None:
        """Match a quantization before it, or a constant."""
        scope = context.scope
        dtype = scope.dtype(node.inputs[2]) if len(node.inputs) > 2 else None
        if dtype not in _HALVES and dtype not in _WIDE:
            return None
        if any(scope.static_shape(value) is None for value in node.inputs[1:]):
            return Skip("the shape of its scale is unknown")
        if dtype in _WIDE and any(_zero_points(node, scope)):
            return Skip("it has a zero point of 32 bits")
        if scope.constant(node.inputs[0]) is not None:
            return _Found(node, dtype)
        before = context.producer(node, 0, *_QUANTIZE, domain=node.domain)
        if before is None:
            return Skip(f"{dtype.name.lower()} values are rearranged before they are dequantized")
        if dtype in _WIDE and any(_zero_points(before, scope)):
            return Skip("it has a zero point of 32 bits")
        several = any(
            scope.static_shape(value) not in ((), (1,)) for each in (node, before) for value in each.inputs[1:]
        )
        if several and scope.static_shape(before.inputs[0]) is None:
            return Skip("the shape of its input is unknown")
        return _Found(node, dtype, absorbed=(before,))

    def rewrite(self, match: _Found, edit: Edit) -> Sequence[ir.Value | None]:
        a = Arithmetic(edit, _NUMBER)
        if match.absorbed:
            before = match.absorbed[0]
            x = before.inputs[0]
            assert x is not None
            if match.dtype != ir.DataType.FLOAT16:
                x = a("Div", x, _spread(edit, before, 1, x))
            if match.dtype == ir.DataType.BFLOAT16:
                x = a("Add", x, _spread(edit, before, 2, x))
            if match.dtype == ir.DataType.FLOAT16:  # Quark's kernels clip infinities, too
                x = round_to_float(edit, x, FLOAT16)
            elif match.dtype == ir.DataType.BFLOAT16:
                x = apply_to_finite(edit, x, lambda each: round_to_float(edit, each, BFLOAT16))
            else:
                x = a("Min", a("Max", a("Round", x), float(match.dtype.min)), float(match.dtype.max))
        else:
            tensor = edit.scope.constant(match.node.inputs[0])
            assert tensor is not None
            x = edit.constant(tensor.numpy().astype(np.float32))
        if match.dtype == ir.DataType.FLOAT16:
            return [x]
        if match.dtype == ir.DataType.BFLOAT16:
            x = a("Sub", x, _spread(edit, match.node, 2, x))
        return [a("Mul", x, _spread(edit, match.node, 1, x))]


class _Blocks(NodeRewrite[Match]):
    """Rounding in blocks."""

    name = "decompose-quark"
    exactness = Exactness.BITWISE
    operators = _operators(*_BLOCK, *_MX)
    needs_shape = needs_dtype = (0,)

    def match(self, node: ir.Node, context: NodeContext) -> Match | Skip | None:
        if node.attributes.get_int("rounding_mode", 0) not in list(Rounding):
            return Skip("its rounding_mode is unknown")
        if node.op_type in _MX and node.attributes.get_string("element_dtype", "int8") not in (*ELEMENTS, "int8"):
            return Skip("its element_dtype is unknown")
        if node.op_type in _BLOCK:
            method, part = (
                node.attributes.get_string("bfp_method", "to_bfp"),
                node.attributes.get_int("sub_block_size", 2),
            )
            if method not in ("to_bfp", "to_bfp_prime", "to_bfp_prime_shared"):
                return Skip("its bfp_method is unknown")
            if method != "to_bfp" and node.attributes.get_int("block_size", 8) % part:
                return Skip("its block_size is not a multiple of its sub_block_size")
        return Match(node)

    def rewrite(self, match: Match, edit: Edit) -> Sequence[ir.Value | None]:
        """Split into blocks, round them, and join them."""
        node, a = match.node, Arithmetic(edit, _NUMBER)
        x, dims, dtype = node.inputs[0], edit.scope.static_shape(node.inputs[0]), edit.scope.dtype(node.inputs[0])
        assert x is not None and dims is not None and dtype is not None
        x = a.cast(x)
        block = node.op_type in _BLOCK
        if block and node.attributes.get_int("convert_to_bfloat_before_bfp", 0) != 0:
            x = apply_to_finite(edit, x, lambda each: round_to_float(edit, each, BFLOAT16))
        size = node.attributes.get_int("block_size", 8 if block else 32)
        axis = node.attributes.get_int("axis", 1) % len(dims) if len(dims) > 1 else 0
        if int(np.prod(dims)) > 1:
            x = apply_to_finite(
                edit,
                x,
                lambda each: in_blocks(edit, each, dims, axis, size, lambda part, at: _round(edit, node, part, at)),
            )
        return [a.cast(x, dtype)]


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


def _zero_points(node: ir.Node, scope: Scope) -> list[int]:
    """The zero points; ``[1]`` where they are not constant."""
    tensor = scope.constant(node.inputs[2])
    return [1] if tensor is None else [int(each) for each in tensor.numpy().ravel()]


def _spread(edit: Edit, node: ir.Node, index: int, x: ir.Value) -> ir.Value:
    """A scale or zero point as float32, in a shape that broadcasts with ``x``."""
    value = node.inputs[index]
    assert value is not None
    dtype, shape = edit.scope.dtype(value), edit.scope.static_shape(value)
    if dtype is not None and dtype != _NUMBER:
        tensor = edit.scope.constant(value)
        value = (
            edit.constant(tensor.numpy().astype(np.float32))
            if tensor is not None
            else edit.op("Cast", [value], {"to": _NUMBER.value})
        )
    if shape in ((), (1,)):
        return edit.reshape_or_fold(value, [])
    whole = x.const_value.shape if x.const_value is not None else x.shape
    assert whole is not None
    rank = len(whole)
    axis = node.attributes.get_int("axis", 0) % rank
    return edit.reshape_or_fold(value, [-1, *[1] * (rank - axis - 1)])


_STEPS: tuple[NodeRewrite[Match], ...] = (_Integers(), _Pairs(), _Blocks())  # type: ignore[assignment]


class DecomposeQuark(Pass):
    """Write AMD Quark's custom operators as standard arithmetic."""

    name = "decompose-quark"
    exactness = Exactness.BITWISE

    def run(self, model: ir.Model, context: Context) -> Result:
        """Rewrite to a fixpoint: ONNX does not infer these operators, so each round makes more shapes known."""
        return run_to_fixpoint(_STEPS, model, context)
