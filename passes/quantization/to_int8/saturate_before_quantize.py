"""Make the saturation of quantization explicit, so that it outlives the quantization.

    Q(x, s, z) → DQ   →   Q(Clip(x, (qmin − z)·s, (qmax − z)·s), s, z) → DQ

Compilers that run an operator in float delete the QuantizeLinear and DequantizeLinear around it, as if they only
rounded. But they saturate as well, and quantizers rely on it: they remove a Relu where the zero point is the smallest
integer. Saturating first changes no integer: the bounds are themselves multiples of s, and round to qmin and qmax.
Along an axis Max and Min do what Clip does with numbers.

What else takes x needs this as well: where a value is quantized and goes into another operator, MIGraphX gives that
operator what is quantized and dequantized, saturation and all. Nothing else takes what Clip makes.

Skips: quantization in blocks, to floats of 8 bits, with parameters that are not constant; bounds that are not finite.
Nothing is to be done where x is within the bounds anyway, where x is constant, and where nothing dequantizes the
integers and nothing else takes x.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir

from passes.analysis.quantization import DOMAINS, Array, aligned, is_dequantize, parameters, plain
from passes.analysis.value_ranges import value_range
from passes.core.base import Exactness, Skip
from passes.core.edit import Edit
from passes.core.graphs import Scope
from passes.core.rewrite import Match, NodeContext, NodeRewrite

_THROUGH = {"Expand", "Flatten", "Identity", "Pad", "Reshape", "Slice", "Split", "Squeeze", "Unsqueeze"}
"""Operators that may stand between QuantizeLinear and DequantizeLinear where these are deleted."""


@dataclass(frozen=True)
class _Found(Match):
    source: ir.Value
    low: Array
    high: Array


@dataclass(frozen=True)
class SaturateBeforeQuantize(NodeRewrite[_Found]):
    """Clip what is quantized, so that saturation outlives the quantization."""

    name = "saturate-before-quantize"
    exactness = Exactness.BITWISE
    operators = frozenset((domain, "QuantizeLinear") for domain in DOMAINS)

    def match(self, node: ir.Node, context: NodeContext) -> _Found | Skip | None:
        """Whether the quantizer saturates, and is dequantized again or not alone."""
        scope, source = context.scope, node.inputs[0]
        if source is None or scope.constant(source) is not None:
            return None
        if not reaches_dequantize(node.outputs[0]) and len(source.uses()) == 1:
            return None
        bounds = saturation(node, scope)
        if bounds is None or isinstance(bounds, str):
            return Skip(bounds) if bounds else None
        return _Found(node, source, *bounds)

    def rewrite(self, match: _Found, edit: Edit) -> Sequence[ir.Value | None]:
        """The same QuantizeLinear on what is clipped."""
        low, high = edit.constant(match.low), edit.constant(match.high)
        if match.low.ndim == 0:
            x = edit.op("Clip", [match.source, low, high])
        else:
            x = edit.op("Min", [edit.op("Max", [match.source, low]), high])
        attributes: dict[str, Any] = dict(match.node.attributes)
        node = match.node
        return [edit.op(node.op_type, [x, *node.inputs[1:]], attributes, domain=node.domain)]


def saturation(node: ir.Node, scope: Scope) -> tuple[Array, Array] | str | None:
    """The bounds at which a QuantizeLinear saturates, in a shape that broadcasts with its input.

    Returns:
        None where its input is known to be within them, up to half a step; a text where that cannot be known.
    """
    found = parameters(node, scope)
    if isinstance(found, str):
        return found
    if (dtype := scope.dtype(node.inputs[0])) is not None and dtype.numpy() != found.scale.dtype:
        return "its input is of another dtype than its scale"
    if found.dtype.bitwidth > 16:
        return None
    low, high = found.bounds()
    if not (np.isfinite(low).all() and np.isfinite(high).all()):
        return "its bounds are not finite"
    least, most = value_range(node.inputs[0], scope)
    half = found.scale.astype(np.float64) / 2
    if (low.astype(np.float64) - half).max() <= least and most <= (high.astype(np.float64) + half).min():
        return None
    shape = scope.shape(node.inputs[0])
    bounds = [aligned(bound, found, None if shape is None else len(shape)) for bound in (low, high)]
    if bounds[0] is None or bounds[1] is None:
        return "it quantizes in blocks, or along an axis of a tensor whose rank is not known"
    return None if _is_clipped(node.inputs[0], bounds[0], bounds[1], scope) else (bounds[0], bounds[1])


def _is_clipped(value: ir.Value | None, low: Array, high: Array, scope: Scope) -> bool:
    """Whether a value is Min(Max(x, low), high)."""
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
    """Whether integers are dequantized, right away or rearranged."""
    pending, seen = [value], {value}
    while pending:
        for node in pending.pop().consumers():
            if is_dequantize(node):
                return True
            if node.domain == "" and node.op_type in _THROUGH:
                pending.extend(each for each in node.outputs if each not in seen)
                seen.update(node.outputs)
    return False
