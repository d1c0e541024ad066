"""Operators with operands or attributes that name sizes, positions or parts: they become smaller with what they name.

Each rule adds to the sizes of a probe and to how a node shrinks; what it says nothing of is left to the general
default.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction

from passes.probing.shrinking.operands import Operands, Shrinking
from passes.probing.shrinking.sizes import Expression, Key, Rule, SizeMap

_SIMPLE = 16
"""Ratios of sizes with larger denominators than this need not stay."""

ShapeRule = Callable[[Operands, SizeMap, Shrinking], None]


def _size(size: int, operands: Operands, sizes: SizeMap, kind: str = "") -> Expression:
    """Return a size that may shrink; 0, 1 and negative numbers stay."""
    return Expression.number(size) if size < 2 else sizes.require(operands.key(size, kind), Rule())


def _set_axis(
    index: int, axis: int, size: Expression, operands: Operands, sizes: SizeMap, shrinking: Shrinking
) -> None:
    """Set the size of an axis of an input; in a probe of several nodes, axes of that size follow."""
    axes = shrinking.axes.setdefault(index, [None] * operands.rank(index))
    axes[axis] = size
    if not operands.kinds:
        sizes.define(operands.key((operands.shape(index) or ())[axis]), size)


def _reshape(operands: Operands, sizes: SizeMap, shrinking: Shrinking) -> None:
    """Split the axes before and after into common factors."""
    before, after = operands.shape(0), operands.results[0]
    if before is None or after is None:
        return
    factors = _common_factors(before, after)
    if factors is None:
        for size in before:
            sizes.require(operands.key(size), Rule(least=size))
        return
    for side, (shape, parts) in enumerate(zip((before, after), factors, strict=True)):
        for axis, (size, part) in enumerate(zip(shape, parts, strict=True)):
            product = Expression.product(*map(operands.key, part))
            for size in part:
                sizes.require(operands.key(size), Rule())
            if side == 0:
                _set_axis(0, axis, product if size > 1 else Expression.number(size), operands, sizes, shrinking)
            elif not operands.kinds:
                sizes.define(operands.key(size), product)
    named = operands.named(1, "shape")
    if named and len(named) == len(after):
        wanted = [
            Expression.product(*map(operands.key, part)) if size > 1 else Expression.number(size)
            for size, part in zip(named, factors[1], strict=True)
        ]
        shrinking.rename(operands, 1, "shape", wanted)


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

    def rule(operands: Operands, sizes: SizeMap, shrinking: Shrinking) -> None:
        named = operands.elements(index)
        if named is not None:
            shrinking.elements[index] = [_size(size, operands, sizes) for size in named]

    return rule


def _position(value: int, size: int, operands: Operands, sizes: SizeMap, modulus: int = 2) -> Expression:
    """Return a position on an axis, from its start or, if it is negative, from its end."""
    if abs(value) > size or abs(value) < 2:
        return Expression.number(value)
    key = operands.key(abs(value))
    sizes.require(key, Rule(modulus=modulus))
    return Expression.product(key, factor=1 if value > 0 else -1)


def _slice(operands: Operands, sizes: SizeMap, shrinking: Shrinking) -> None:
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
            sizes.require(operands.key(size), Rule(modulus=modulus))
            named.append(_position(value, size, operands, sizes, modulus))
        if bounds is not None:
            shrinking.rename(operands, place, attribute, named)


def _split(operands: Operands, sizes: SizeMap, shrinking: Shrinking) -> None:
    shape = operands.shape(0)
    if shape is None:
        return
    axis = operands.integer("axis") % len(shape)
    parts = operands.named(1, "split")
    if not parts:
        count = operands.integer("num_outputs", len(operands.results))
        sizes.require(operands.key(shape[axis]), Rule(2 * count, math.lcm(2, count)))
        return
    named = [_size(part, operands, sizes) for part in parts]
    keys = [operands.key(part) for part in parts if part > 1]
    ones = sum(part for part in parts if part < 2)
    whole = Expression((*Expression.sum(*keys).terms, (ones, ())) if ones else Expression.sum(*keys).terms)
    _set_axis(0, axis, whole, operands, sizes, shrinking)
    shrinking.rename(operands, 1, "split", named)


def _concat(operands: Operands, sizes: SizeMap, shrinking: Shrinking) -> None:
    """Let the size of the result follow from its parts."""
    result = operands.results[0]
    if result is None or operands.kinds:
        return
    axis = operands.integer("axis") % len(result)
    parts = [shape[axis] for shape in operands.shapes if shape]
    if sum(parts) == result[axis]:
        keys = [operands.key(part) for part in parts]
        for key in keys:
            sizes.require(key, Rule())
        sizes.define(operands.key(result[axis]), Expression.sum(*keys))


def _resize(operands: Operands, sizes: SizeMap, shrinking: Shrinking) -> None:
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
            sizes.require(key, Rule(modulus=math.lcm(2, ratio.denominator)))
            results.append(Expression.product(key, factor=ratio))
            if not operands.kinds:
                sizes.define(operands.key(result), results[-1])
        else:
            results.append(_size(result, operands, sizes, kind))
        sizes.require(key, Rule())
        shrinking.axes.setdefault(0, [None] * len(before))[axis] = Expression.product(key)
    if named is not None and len(named) == len(axes):
        shrinking.elements[3] = [results[axis] for axis in axes]


def _pad(operands: Operands, sizes: SizeMap, shrinking: Shrinking) -> None:
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
        sizes.require(operands.key(shape[axis]), Rule(least))


def _indexed(operands: Operands, sizes: SizeMap, shrinking: Shrinking) -> None:
    """Let constant indices along one axis of the data follow its size."""
    shape = operands.shape(0)
    if shape and 1 in operands.constants:
        size = shape[operands.integer("axis") % len(shape)]
        shrinking.limits[1] = [_size(size, operands, sizes)]


def _indexed_by_tuples(operands: Operands, sizes: SizeMap, shrinking: Shrinking) -> None:
    shape, places = operands.shape(0), operands.shape(1)
    if not places:
        return
    shrinking.axes.setdefault(1, [None] * len(places))[-1] = Expression.number(places[-1])
    if shape and 1 in operands.constants:
        first = operands.integer("batch_dims")
        shrinking.limits[1] = [_size(size, operands, sizes) for size in shape[first : first + places[-1]]]


def _trilu(operands: Operands, sizes: SizeMap, shrinking: Shrinking) -> None:
    shape, diagonal = operands.shape(0), operands.elements(1)
    if shape and diagonal:
        shrinking.elements[1] = [_position(diagonal[0], max(shape[-2:]), operands, sizes)]


def _output_shape(operands: Operands, sizes: SizeMap, shrinking: Shrinking) -> None:
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
    shrinking.attributes["output_shape"] = [*map(Expression.number, wanted[: -len(spatial)]), *named]


def _aligned(*indices: int) -> ShapeRule:
    """Align inputs with the result of a convolution, whose window fits as often as in the real one."""

    def rule(operands: Operands, sizes: SizeMap, shrinking: Shrinking) -> None:
        shape = operands.shape(0)
        for index in indices:
            aligned = operands.shape(index)
            if shape is None or aligned is None or len(aligned) != len(shape):
                continue
            strides = operands.integers("strides", [1] * (len(shape) - 2))
            for axis, stride in zip(range(2, len(shape)), strides, strict=False):
                key, rest = operands.key(shape[axis], "spatial"), aligned[axis] - Fraction(shape[axis], stride)
                axes = shrinking.axes.setdefault(index, [None] * len(shape))
                axes[axis] = Expression(((Fraction(1, stride), (key,)), (rest, ())))

    return rule


def _blocked(operands: Operands, sizes: SizeMap, shrinking: Shrinking) -> None:
    """Require whole blocks along the axis of the scales."""
    shape, scale, block = operands.shape(0), operands.shape(1), operands.integer("block_size")
    if not block or shape is None or scale is None or len(shape) != len(scale):
        return
    axis = operands.integer("axis", 1) % len(shape)
    if shape[axis] != block * scale[axis]:
        sizes.require(operands.key(shape[axis]), Rule(least=shape[axis]))
        sizes.require(operands.key(scale[axis]), Rule(least=scale[axis]))
        return
    key = operands.key(scale[axis], "blocks")
    sizes.require(key, Rule(least=2))
    _set_axis(0, axis, Expression.product(key, factor=block), operands, sizes, shrinking)
    for index in (1, 2):
        if operands.rank(index) == len(shape):
            _set_axis(index, axis, Expression.product(key), operands, sizes, shrinking)


def _features(operands: Operands, sizes: SizeMap, shrinking: Shrinking) -> None:
    """Keep the features, which attributes describe."""
    for index, shape in enumerate(operands.shapes):
        keys: list[Key] = [operands.key(size) for size in (shape or ())[:1]]
        axes: list[Expression | None] = [sizes.require(key, Rule()) for key in keys]
        shrinking.axes[index] = axes + [Expression.number(size) for size in (shape or ())[1:]]


def _windowed_signal(operands: Operands, sizes: SizeMap, shrinking: Shrinking) -> None:
    """Require two windows of a short-time Fourier transform or more."""
    shape, step, window = operands.shape(0), operands.elements(1), operands.shape(2)
    length = (operands.elements(3) or [0])[0] or (window or (0,))[0]
    if shape is None or len(shape) < 2 or not step:
        return
    sizes.require(operands.key(shape[1]), Rule(length + step[0], math.lcm(2, step[0])))
    if window is not None:
        shrinking.axes[2] = [Expression.number(size) for size in window]


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
