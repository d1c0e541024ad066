"""Operators with operands or attributes that name sizes, positions or parts: they become smaller with what they name.

Each rule adds to the sizes of a probe and to how a node shrinks; what it says nothing of is left to the general
default.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction

from passes.probing.shrinking.operands import Operands
from passes.probing.shrinking.sizes import Expression, Rule

_SIMPLE = 16
"""Ratios of sizes with larger denominators than this need not stay."""

ShapeRule = Callable[[Operands], None]


def _reshape(operands: Operands) -> None:
    """Split the axes before and after into common factors."""
    before, after = operands.shape(0), operands.results[0]
    if before is None or after is None:
        return
    factors = _common_factors(before, after)
    if factors is None:
        for size in before:
            operands.require(size, Rule(least=size))
        return
    for side, (shape, parts) in enumerate(zip((before, after), factors, strict=True)):
        for axis, (size, part) in enumerate(zip(shape, parts, strict=True)):
            product = Expression.product(*map(operands.key, part))
            for factor in part:
                operands.require(factor)
            if side == 0:
                operands.set_axis(0, axis, product if size > 1 else Expression.number(size))
            operands.define(size, product)
    named = operands.named(1, "shape")
    if named and len(named) == len(after):
        wanted = [
            Expression.product(*map(operands.key, part)) if size > 1 else Expression.number(size)
            for size, part in zip(named, factors[1], strict=True)
        ]
        operands.rename(1, "shape", wanted)


def _common_factors(before: Sequence[int], after: Sequence[int]) -> tuple[list[list[int]], list[list[int]]] | None:
    """Return factors of the sizes of two shapes, the same in the same order, otherwise None."""
    factors: tuple[list[list[int]], list[list[int]]] = [[] for _ in before], [[] for _ in after]
    places = [iter([(axis, size) for axis, size in enumerate(shape) if size != 1]) for shape in (before, after)]
    rest: list[tuple[int, int] | None] = [next(places[0], None), next(places[1], None)]
    while (left := rest[0]) is not None and (right := rest[1]) is not None:
        common = min(left[1], right[1])
        if common == 0 or max(left[1], right[1]) % common:
            return None
        for side, (axis, size) in enumerate((left, right)):
            factors[side][axis].append(common)
            rest[side] = (axis, size // common) if size > common else next(places[side], None)
    return factors if rest == [None, None] else None


def _count(index: int) -> ShapeRule:
    """Return the rule of an operand that is a size, or sizes."""

    def rule(operands: Operands) -> None:
        named = operands.elements(index)
        if named is not None:
            operands.small_elements[index] = [operands.size(size) for size in named]

    return rule


def _position(value: int, size: int, operands: Operands, modulus: int = 2) -> Expression:
    """Return a position on an axis, from its start or, if it is negative, from its end."""
    if abs(value) > size or abs(value) < 2:
        return Expression.number(value)
    operands.require(abs(value), Rule(modulus=modulus))
    return Expression.product(operands.key(abs(value)), factor=1 if value > 0 else -1)


def _slice(operands: Operands) -> None:
    shape = operands.shape(0)
    if shape is None:
        return
    axes = operands.named(3, "axes")
    steps = operands.elements(4)
    for place, attribute in ((1, "starts"), (2, "ends")):
        bounds = operands.named(place, attribute)
        named = []
        for number, value in enumerate(bounds or ()):
            size = shape[axes[number] if axes else number]
            modulus = math.lcm(2, abs(steps[number])) if steps else 2
            operands.require(size, Rule(modulus=modulus))
            named.append(_position(value, size, operands, modulus))
        if bounds is not None:
            operands.rename(place, attribute, named)


def _split(operands: Operands) -> None:
    shape = operands.shape(0)
    if shape is None:
        return
    axis = operands.integer("axis") % len(shape)
    parts = operands.named(1, "split")
    if not parts:
        count = operands.integer("num_outputs", len(operands.results))
        operands.require(shape[axis], Rule(2 * count, math.lcm(2, count)))
        return
    named = [operands.size(part) for part in parts]
    keys = [operands.key(part) for part in parts if part > 1]
    ones = sum(part for part in parts if part < 2)
    whole = Expression((*Expression.sum(*keys).terms, (ones, ())) if ones else Expression.sum(*keys).terms)
    operands.set_axis(0, axis, whole)
    operands.define(shape[axis], whole)
    operands.rename(1, "split", named)


def _concat(operands: Operands) -> None:
    """Let the size of the result follow from its parts."""
    result = operands.results[0]
    if result is None or operands.kinds:
        return
    axis = operands.integer("axis") % len(result)
    parts = [shape[axis] for shape in operands.shapes if shape]
    if sum(parts) == result[axis]:
        for part in parts:
            operands.require(part)
        operands.define(result[axis], Expression.sum(*map(operands.key, parts)))


def _resize(operands: Operands) -> None:
    """Keep simple ratios of sizes; of others, keep which size is larger."""
    before, after = operands.shape(0), operands.results[0]
    if before is None or after is None or len(before) != len(after):
        return
    named = operands.elements(3)
    axes = operands.integers("axes") or list(range(len(before)))
    results = []
    for axis, (size, result) in enumerate(zip(before, after, strict=True)):
        kind = "spatial" if operands.kinds and axis >= len(before) - 2 else ""
        key = operands.key(size, kind)
        ratio = Fraction(result, size) if size else Fraction(1)
        if ratio == 1:
            results.append(Expression.product(key))
        elif ratio.denominator <= _SIMPLE and size > 1:
            operands.require(size, Rule(modulus=math.lcm(2, ratio.denominator)), kind)
            results.append(Expression.product(key, factor=ratio))
            operands.define(result, results[-1])
        else:
            results.append(operands.size(result, kind))
        operands.set_axis(0, axis, operands.require(size, kind=kind))
    if named is not None and len(named) == len(axes):
        operands.small_elements[3] = [results[axis] for axis in axes]


def _pad(operands: Operands) -> None:
    """Keep pads; require sizes larger than what is reflected or removed."""
    shape = operands.shape(0)
    pads = operands.named(1, "pads")
    if shape is None or not pads:
        return
    named = operands.elements(3) or list(range(len(shape)))
    if len(pads) != 2 * len(named):
        return
    for place, axis in enumerate(named):
        before, after = pads[place], pads[place + len(named)]
        least = max(before, after) + 2 if operands.node.attributes.get_string("mode", "constant") != "constant" else 3
        least = max(least, 3 - min(before, 0) - min(after, 0))
        operands.require(shape[axis], Rule(least))


def _indexed(operands: Operands) -> None:
    """Let constant indices along one axis of the data follow its size."""
    shape = operands.shape(0)
    if shape and 1 in operands.constants:
        size = shape[operands.integer("axis") % len(shape)]
        operands.limits[1] = [operands.size(size)]


def _indexed_by_tuples(operands: Operands) -> None:
    shape, places = operands.shape(0), operands.shape(1)
    if not places:
        return
    operands.set_axis(1, -1, Expression.number(places[-1]))
    if shape and 1 in operands.constants:
        first = operands.integer("batch_dims")
        operands.limits[1] = [operands.size(size) for size in shape[first : first + places[-1]]]


def _trilu(operands: Operands) -> None:
    shape, diagonal = operands.shape(0), operands.elements(1)
    if shape and diagonal:
        operands.small_elements[1] = [_position(diagonal[0], max(shape[-2:]), operands)]


def _output_shape(operands: Operands) -> None:
    """Let the output of a transposed convolution differ from the stretched input by the same number."""
    shape, wanted = operands.shape(0), operands.integers("output_shape")
    if shape is None or not wanted:
        return
    spatial = list(range(2, len(shape)))
    strides = operands.integers("strides", [1] * len(spatial))
    named = []
    for axis, stride, size in zip(spatial, strides, wanted[-len(spatial) :], strict=True):
        key = operands.key(shape[axis], "spatial")
        named.append(Expression(((stride, (key,)), (size - stride * shape[axis], ()))))
    operands.attributes["output_shape"] = [*map(Expression.number, wanted[: -len(spatial)]), *named]


def _aligned(*indices: int) -> ShapeRule:
    """Align inputs with the result of a convolution, whose window fits as often as in the real one."""

    def rule(operands: Operands) -> None:
        shape = operands.shape(0)
        for index in indices:
            aligned = operands.shape(index)
            if shape is None or aligned is None or len(aligned) != len(shape):
                continue
            strides = operands.integers("strides", [1] * (len(shape) - 2))
            for axis, stride in zip(range(2, len(shape)), strides, strict=False):
                key, rest = operands.key(shape[axis], "spatial"), aligned[axis] - Fraction(shape[axis], stride)
                operands.set_axis(index, axis, Expression(((Fraction(1, stride), (key,)), (rest, ()))))

    return rule


def _blocked(operands: Operands) -> None:
    """Require whole blocks along the axis of the scales."""
    shape, scale, block = operands.shape(0), operands.shape(1), operands.integer("block_size")
    if not block or shape is None or scale is None or len(shape) != len(scale):
        return
    axis = operands.integer("axis", 1) % len(shape)
    if shape[axis] != block * scale[axis]:
        operands.require(shape[axis], Rule(least=shape[axis]))
        operands.require(scale[axis], Rule(least=scale[axis]))
        return
    blocks = operands.require(scale[axis], Rule(least=2), "blocks")
    whole = Expression.product(operands.key(scale[axis], "blocks"), factor=block)
    operands.set_axis(0, axis, whole)
    operands.define(shape[axis], whole)
    for index in (1, 2):
        if operands.rank(index) == len(shape):
            operands.set_axis(index, axis, blocks)


def _features(operands: Operands) -> None:
    """Keep the features, which attributes describe."""
    for index, shape in enumerate(operands.shapes):
        for axis, size in enumerate(shape or ()):
            operands.set_axis(index, axis, Expression.number(size) if axis else operands.require(size))


def _windowed_signal(operands: Operands) -> None:
    """Require two windows of a short-time Fourier transform or more."""
    shape, step, window = operands.shape(0), operands.elements(1), operands.shape(2)
    length = (operands.elements(3) or [0])[0] or (window or (0,))[0]
    if shape is None or len(shape) < 2 or not step:
        return
    operands.require(shape[1], Rule(length + step[0], math.lcm(2, step[0])))
    if window is not None:
        operands.axes[2] = [Expression.number(size) for size in window]


SHAPE_RULES: Mapping[str, ShapeRule] = {
    "AffineGrid": _count(1),
    "CenterCropPad": _count(1),
    "Concat": _concat,
    "ConstantOfShape": _count(0),
    "ConvTranspose": _output_shape,
    "DFT": _count(1),
    "DeformConv": _aligned(2, 4),
    "DequantizeLinear": _blocked,
    "Expand": _count(1),
    "FusedConv": _aligned(3),
    "Gather": _indexed,
    "GatherElements": _indexed,
    "GatherND": _indexed_by_tuples,
    "Loop": _count(0),
    "OneHot": _count(1),
    "Pad": _pad,
    "QuantizeLinear": _blocked,
    "Range": _count(1),
    "Reshape": _reshape,
    "Resize": _resize,
    "STFT": _windowed_signal,
    "Scatter": _indexed,
    "ScatterElements": _indexed,
    "ScatterND": _indexed_by_tuples,
    "Slice": _slice,
    "Split": _split,
    "TopK": _count(1),
    "Trilu": _trilu,
    "Upsample": _resize,
}
"""By operator name; they are applied after the family of the operator."""
FEATURES: ShapeRule = _features
"""For operators of ``ai.onnx.ml``."""
