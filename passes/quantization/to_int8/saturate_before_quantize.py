"""Make the saturation of QuantizeLinear explicit, so that it remains where the quantization is removed.

    Q(x, s, z) → DQ   →   Q(Clip(x, (qmin − z)·s, (qmax − z)·s), s, z) → DQ

Compilers that run an operator in float delete the QuantizeLinear and DequantizeLinear around it, as if these only
rounded. But they also saturate, and quantizers rely on it: they remove a Relu if the zero point is the smallest
integer. Saturating first changes no integer: the bounds are multiples of s and round to qmin and qmax. Along an axis,
Max and Min replace Clip, which takes scalar bounds only.

The pass also protects other consumers of x: if a value is both quantized and used in float, MIGraphX gives the float
consumer the quantized and dequantized value, saturation included. Nothing else uses the output of Clip.

Skips: quantization in blocks or to float8, parameters that are not constant, and bounds that are not finite. Unchanged
if x is constant or known to be within the bounds, and if nothing dequantizes the integers or else uses x.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from passes.graphs.matching import is_op, takers
from passes.graphs.quantization import Array, aligned, parameters, plain
from passes.graphs.scopes import Scope
from passes.graphs.value_ranges import value_range
from passes.operators import QUANTIZE, is_dequantize
from passes.quantization.rewriting import clip
from passes.rewriting.base import Skip
from passes.rewriting.edit import Edit
from passes.rewriting.rewrite import Replacement, rewrite

_THROUGH = {"Expand", "Flatten", "Identity", "Pad", "Reshape", "Slice", "Split", "Squeeze", "Unsqueeze"}
"""Operators between QuantizeLinear and DequantizeLinear with which MIGraphX still deletes the pair."""


@rewrite(*QUANTIZE)
def saturate_before_quantize(node: ir.Node, edit: Edit) -> Replacement:
    """Clip the input of QuantizeLinear, so that saturation remains where the quantization is removed."""
    source = edit.input(node)
    if edit.scope.constant(source) is not None:
        return None
    if not reaches_dequantize(node.outputs[0]) and len(source.uses()) == 1:
        return None
    bounds = saturation(node, edit.scope)
    if bounds is None or isinstance(bounds, str):
        return Skip(bounds) if bounds else None
    return edit.op(node.op_type, [clip(edit, source, *bounds), *node.inputs[1:]], node.attributes, domain=node.domain)


def saturation(node: ir.Node, scope: Scope) -> tuple[Array, Array] | str | None:
    """Return the bounds at which a QuantizeLinear saturates, in a shape that broadcasts with its input.

    Returns:
        The bounds; None if the input is known to be within them, up to half a step; a reason if they are unknown.
    """
    given = parameters(node, scope)
    if isinstance(given, str):
        return given
    if (dtype := scope.dtype(node.inputs[0])) is not None and dtype.numpy() != given.scale.dtype:
        return "the dtypes of the input and of the scale differ"
    if given.dtype.bitwidth > 16:
        return None
    low, high = given.bounds()
    if not (np.isfinite(low).all() and np.isfinite(high).all()):
        return "the bounds are not finite"
    least, most = value_range(node.inputs[0], scope)
    half = given.scale.astype(np.float64) / 2
    if (low.astype(np.float64) - half).max() <= least and most <= (high.astype(np.float64) + half).min():
        return None
    shape = scope.shape(node.inputs[0])
    bounds = [aligned(bound, given, None if shape is None else len(shape)) for bound in (low, high)]
    if bounds[0] is None or bounds[1] is None:
        return "the node quantizes in blocks, or along an axis of a tensor of unknown rank"
    return None if _is_clipped(node.inputs[0], bounds[0], bounds[1], scope) else (bounds[0], bounds[1])


def _is_clipped(value: ir.Value | None, low: Array, high: Array, scope: Scope) -> bool:
    """Return whether a value is made by ``Min(Max(x, low), high)``."""
    least = value.producer() if value is not None else None
    if least is None or not plain(least, scope, "Min") or least.inputs[0] is None:
        return False
    most = least.inputs[0].producer()
    if most is None or not plain(most, scope, "Max") or len(most.inputs) != 2 or len(least.inputs) != 2:
        return False
    pairs = ((most.inputs[1], low), (least.inputs[1], high))
    tensors = [(scope.constant(value), bound) for value, bound in pairs]
    return all(tensor is not None and np.array_equal(tensor.numpy(), bound) for tensor, bound in tensors)


def reaches_dequantize(value: ir.Value) -> bool:
    """Return whether integers are dequantized, directly or after being rearranged."""
    return any(is_dequantize(node) for _, node in takers(value, lambda node: is_op(node, *_THROUGH)))
