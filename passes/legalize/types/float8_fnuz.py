"""Rewrite float8e4m3fn as float8e4m3fnuz, for runtimes that support only the latter.

    DequantizeLinear(QuantizeLinear(x, s), s)   →  DQ(Q(Clip(x, −448·s, 448·s), 2·s, fnuz), 2·s)
    DequantizeLinear(W, s)                      →  DequantizeLinear(W as fnuz, 2·s)            for a constant W

The bit layouts are equal, but the exponent biases differ by one: the same bits represent half the number. With twice
the scale the result is the same, with three exceptions: −0, which fnuz does not have, becomes 0; NaN has another bit
pattern; and numbers between the largest numbers of the two dtypes, 448 and 480, saturate by Clip. The product remains
an 8-bit kernel, which it does not if the numbers are carried in float32 (`passes.legalize.types.small_types`).

Skips: weights with NaN; inputs, and tensors that are computed by anything but QuantizeLinear and operators that move
elements; zero points and scales that are not constant.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import ml_dtypes
import numpy as np
import onnx_ir as ir

from passes.graphs.quantization import Array, plain, quantized_dtype
from passes.graphs.scopes import Scope
from passes.operators import QUANTIZE, is_quantize
from passes.rewriting.base import Exactness, Skip
from passes.rewriting.edit import Edit
from passes.rewriting.rewrite import Match, NodeContext, NodeRewrite

_FROM, _TO = ir.DataType.FLOAT8E4M3FN, ir.DataType.FLOAT8E4M3FNUZ
_LARGEST = 448.0
_MOVING = ("Flatten", "Identity", "Reshape", "Slice", "Squeeze", "Transpose", "Unsqueeze")
_NAN = (0x7F, 0xFF)


class Float8ToFnuz(NodeRewrite[Match]):
    """Rewrite float8e4m3fn as float8e4m3fnuz with twice the scale."""

    name = "float8-to-fnuz"
    exactness = Exactness.ROUNDING
    operators = frozenset({("", "DequantizeLinear")})
    absorbs = frozenset(("", each) for each in _MOVING) | QUANTIZE

    def match(self, node: ir.Node, context: NodeContext) -> Match | Skip | None:
        """Trace the numbers back to a QuantizeLinear, or to a constant."""
        scope = context.scope
        if quantized_dtype(node, scope) != _FROM or scope.opset() < 19:
            return None
        if _scale(node, scope) is None:
            return Skip("its scale is not constant, or is neither per tensor nor per axis")
        absorbed: list[ir.Node] = []
        value = node.inputs[0]
        while (tensor := scope.constant(value)) is None:
            producer = value.producer() if value is not None else None
            if producer is None:
                return Skip("its quantized input is an input of the graph")
            absorbed.append(producer)
            if is_quantize(producer):
                if _scale(producer, scope) is None or scope.dtype(producer.inputs[0]) is None:
                    return Skip("the scale of the QuantizeLinear before it is not constant")
                return Match(node, absorbed=tuple(absorbed))
            if not plain(producer, scope, *_MOVING):
                return Skip(f"its quantized input is computed by {producer.op_type}")
            value = producer.inputs[0]
        if np.isin(_bits(tensor), _NAN).any():
            return Skip("its weights contain NaN")
        return Match(node, absorbed=tuple(absorbed))

    def rewrite(self, match: Match, edit: Edit) -> Sequence[ir.Value | None]:
        """The same operators in the other dtype."""
        last = match.absorbed[-1] if match.absorbed else None
        if is_quantize(last):
            assert last is not None
            moving, value = match.absorbed[:-1], _quantize(edit, last)
        else:
            moving = match.absorbed
            source = last.inputs[0] if last is not None else match.node.inputs[0]
            tensor = edit.scope.constant(source)
            assert tensor is not None
            bits = _bits(tensor)
            value = edit.constant(np.where(bits == 0x80, 0, bits).astype(np.uint8).view(ml_dtypes.float8_e4m3fnuz))
        for node in reversed(moving):
            value = edit.op(node.op_type, [value, *node.inputs[1:]], node.attributes)
        return [_with_parameters(edit, match.node, value)]


def _bits(tensor: ir.TensorProtocol) -> Array:
    return np.asarray(tensor.numpy()).view(np.uint8)


def _scale(node: ir.Node, scope: Scope) -> Array | None:
    """A constant scale that can be doubled; None if there is none."""
    tensor = scope.constant(node.inputs[1])
    if tensor is None or len(tensor.shape) > 1 or tensor.dtype not in (ir.DataType.FLOAT, ir.DataType.FLOAT16):
        return None
    zero = scope.constant(node.inputs[2]) if len(node.inputs) > 2 and node.inputs[2] is not None else None
    if zero is not None and zero.numpy().astype(np.float32).any():
        return None
    scale = tensor.numpy()
    return scale if np.isfinite(scale * scale.dtype.type(_LARGEST)).all() else None


def _quantize(edit: Edit, node: ir.Node) -> ir.Value:
    """QuantizeLinear of the clipped input."""
    scale, x = _scale(node, edit.scope), node.inputs[0]
    assert scale is not None and x is not None
    bound = scale * scale.dtype.type(_LARGEST)
    if scale.size == 1:
        bound = bound.reshape(())
        x = edit.op("Clip", [x, edit.constant(np.asarray(-bound)), edit.constant(np.asarray(bound))])
    else:
        shape = edit.scope.shape(x)
        rank = len(shape) if shape is not None else 1
        aligned = bound.reshape([-1, *[1] * (rank - 1 - node.attributes.get_int("axis", 1) % rank)])
        x = edit.op("Min", [edit.op("Max", [x, edit.constant(-aligned)]), edit.constant(aligned)])
    return _with_parameters(edit, node, x)


def _with_parameters(edit: Edit, node: ir.Node, x: ir.Value) -> ir.Value:
    """The node on another input, with twice the scale and a zero point of the other dtype."""
    scale = _scale(node, edit.scope)
    assert scale is not None
    twice = edit.constant(np.asarray(scale * scale.dtype.type(2)))
    zero = edit.constant(ir.Tensor(np.zeros(scale.shape, ml_dtypes.float8_e4m3fnuz), dtype=_TO))
    attributes: dict[str, Any] = dict(node.attributes)
    if is_quantize(node):
        attributes.pop("output_dtype", None)
    return edit.op(node.op_type, [x, twice, zero], attributes)


RULES: tuple[NodeRewrite[Any], ...] = (Float8ToFnuz(),)
