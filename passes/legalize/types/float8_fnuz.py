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

import ml_dtypes
import numpy as np
import onnx_ir as ir

from passes.graphs.quantization import plain, quantized_dtype
from passes.graphs.scopes import Scope
from passes.operators import is_quantize
from passes.rewriting.base import Exactness, NotApplicable, Skip
from passes.rewriting.edit import Edit
from passes.rewriting.expressions import Array, Attribute
from passes.rewriting.rewrite import Replacement, rewrite

_FROM, _TO = ir.DataType.FLOAT8E4M3FN, ir.DataType.FLOAT8E4M3FNUZ
_LARGEST = 448.0
_MOVING = ("Flatten", "Identity", "Reshape", "Slice", "Squeeze", "Transpose", "Unsqueeze")
_NAN = (0x7F, 0xFF)


@rewrite(
    "DequantizeLinear",
    exactness=Exactness.ROUNDING,
    absorbs=(*_MOVING, "QuantizeLinear", "com.microsoft.QuantizeLinear"),
)
def float8_to_fnuz(node: ir.Node, edit: Edit) -> Replacement:
    """Rewrite float8e4m3fn as float8e4m3fnuz with twice the scale."""
    scope = edit.scope
    if quantized_dtype(node, scope) != _FROM or scope.opset() < 19:
        return None
    scale = _scale(node, scope)
    if scale is None:
        return Skip("the scale is not constant, or is neither per tensor nor per axis")
    value, moving = node.inputs[0], list[ir.Node]()
    producer = value.producer() if value is not None else None
    while producer is not None and scope.constant(value) is None and plain(producer, scope, *_MOVING):
        moving.append(producer)
        value = producer.inputs[0]
        producer = value.producer() if value is not None else None
    edit.absorb(*moving)
    result = _as_fnuz(edit, value)
    for mover in reversed(moving):
        result = edit.op(mover.op_type, [result, *mover.inputs[1:]], mover.attributes)
    return _with_parameters(edit, node, result, scale)


def _as_fnuz(edit: Edit, value: ir.Value | None) -> ir.Value:
    """Return a constant, or the result of a QuantizeLinear, in the other dtype."""
    tensor, producer = edit.scope.constant(value), value.producer() if value is not None else None
    if tensor is not None:
        bits = np.asarray(tensor.numpy()).view(np.uint8)
        if np.isin(bits, _NAN).any():
            raise NotApplicable("the weights contain NaN")
        return edit.constant(np.where(bits == 0x80, 0, bits).astype(np.uint8).view(ml_dtypes.float8_e4m3fnuz))
    if producer is None:
        raise NotApplicable("the quantized input is an input of the graph")
    if not is_quantize(producer):
        raise NotApplicable(f"the quantized input is computed by {producer.op_type}")
    scale = _scale(producer, edit.scope)
    if scale is None or edit.scope.dtype(producer.inputs[0]) is None:
        raise NotApplicable("the scale of the QuantizeLinear before the node is not constant")
    edit.absorb(producer)
    return _quantize(edit, producer, scale)


def _scale(node: ir.Node, scope: Scope) -> Array | None:
    """Return a scale that is constant and can be doubled; otherwise None."""
    tensor = scope.constant(node.inputs[1])
    if tensor is None or len(tensor.shape) > 1 or tensor.dtype not in (ir.DataType.FLOAT, ir.DataType.FLOAT16):
        return None
    zero = scope.constant(node.inputs[2]) if len(node.inputs) > 2 and node.inputs[2] is not None else None
    if zero is not None and zero.numpy().astype(np.float32).any():
        return None
    scale = tensor.numpy()
    return scale if np.isfinite(scale * scale.dtype.type(_LARGEST)).all() else None


def _quantize(edit: Edit, node: ir.Node, scale: Array) -> ir.Value:
    """Return QuantizeLinear of the clipped input."""
    x, bound = edit.input(node), scale * scale.dtype.type(_LARGEST)
    if scale.size == 1:
        bound = bound.reshape(())
        x = edit.op("Clip", [x, edit.constant(np.asarray(-bound)), edit.constant(np.asarray(bound))])
    else:
        shape = edit.scope.shape(x)
        rank = len(shape) if shape is not None else 1
        aligned = bound.reshape([-1, *[1] * (rank - 1 - node.attributes.get_int("axis", 1) % rank)])
        x = edit.op("Min", [edit.op("Max", [x, edit.constant(-aligned)]), edit.constant(aligned)])
    return _with_parameters(edit, node, x, scale)


def _with_parameters(edit: Edit, node: ir.Node, x: ir.Value, scale: Array) -> ir.Value:
    """Return the node on another input, with twice the scale and a zero point of the other dtype."""
    twice = edit.constant(np.asarray(scale * scale.dtype.type(2)))
    zero = edit.constant(ir.Tensor(np.zeros(scale.shape, ml_dtypes.float8_e4m3fnuz), dtype=_TO))
    attributes: dict[str, Attribute] = dict(node.attributes)
    if is_quantize(node):
        attributes.pop("output_dtype", None)
    return edit.op(node.op_type, [x, twice, zero], attributes)
