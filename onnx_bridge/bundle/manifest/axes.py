"""The sizes of axes: numbers, symbols, and expressions of symbols, for the sizes that the programs of a bundle have."""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Mapping, Sequence

from passes.shapes.size_expressions import evaluate

Axis = int | str | None
"""A size, a symbol or an expression of symbols; None depends on the data."""
EDGE = "edge"
"""The padding rule that repeats the last element; any other rule is a number."""
_LARGEST_DIVISOR, _LARGEST_FACTOR, _MOST_FACTORS = 32, 64, 3
"""The numbers, and the number of symbols, in expressions that `divided` finds."""


def label(dims: Mapping[str, int]) -> str:
    """Return the sizes of a program as text, which also names its folder."""
    return ",".join(f"{name}={size}" for name, size in dims.items())


def size_of(axis: Axis, dims: Mapping[str, int]) -> int | None:
    """Return the size of an axis for some sizes of the symbols; None if they do not determine it."""
    return evaluate(axis, dims) if isinstance(axis, str) else axis


def inside(
    dims: Mapping[str, int], buckets: Sequence[Mapping[str, int]], exact: Collection[str] = ()
) -> dict[str, int]:
    """Return the smallest sizes that fall into a bucket.

    They are one more than the sizes of the next smaller bucket; half of the smallest bucket's own sizes. Those in
    ``exact``, the values of selecting inputs, stay.
    """
    smallest = dict(dims)
    for name, size in ((name, size) for name, size in dims.items() if name not in exact):
        below = [bucket[name] for bucket in buckets if bucket[name] < size]
        smallest[name] = min(size, max(below) + 1) if below else min(size, max(1, size // 2))
    return smallest


def fitted(points: Sequence[Mapping[str, int]], sizes: Sequence[int]) -> Axis:
    """Return what a size is at several points: a number, a symbol, or a sum of symbols and a number; else None."""
    if len(set(sizes)) == 1 and (len(points) > 1 or not points[0]):
        return sizes[0]
    for count in range(1, len(points[0]) + 1):
        sums = {}
        for names in itertools.combinations(points[0], count):
            rests = {size - sum(point[name] for name in names) for size, point in zip(sizes, points, strict=True)}
            if len(rests) == 1 and (len(points) > 1 or rests == {0}):
                sums[names] = rests.pop()
        exact = [names for names, rest in sums.items() if rest == 0] or list(sums)
        if len(exact) == 1:
            (names,) = exact
            rest = sums[names]
            return " + ".join(names) + (f" {'+' if rest > 0 else '-'} {abs(rest)}" if rest else "")
        if exact:
            return None
    return None


def divided(points: Sequence[Mapping[str, int]], sizes: Sequence[int]) -> Axis:
    """Return what a size is at many points: a product of symbols, times and plus numbers, divided; else None.

    As ``(n + 1)//2`` of a pooling that rounds up, and ``max(1, n//3)`` of windows that may be larger than their input.
    A few points would have many such expressions.
    """
    text = _quotient(points, sizes)
    least = min(sizes)
    larger = [(point, size) for point, size in zip(points, sizes, strict=True) if size > least]
    if text is None and larger:
        quotient = _quotient([point for point, _ in larger], [size for _, size in larger])
        text = f"max({least}, {quotient})"
    return text if all(size_of(text, point) == size for point, size in zip(points, sizes, strict=True)) else None


def _quotient(points: Sequence[Mapping[str, int]], sizes: Sequence[int]) -> str | None:
    for divisor, factor in itertools.product(range(1, _LARGEST_DIVISOR + 1), range(1, _LARGEST_FACTOR + 1)):
        for count in range(1, min(_MOST_FACTORS, len(points[0])) + 1) if math.gcd(divisor, factor) == 1 else ():
            for names in itertools.combinations(points[0], count):
                whole = [factor * math.prod(point[name] for name in names) for point in points]
                rests = [divisor * size - product for size, product in zip(sizes, whole, strict=True)]
                if max(rests) < min(rests) + divisor:
                    text = "*".join([str(factor)] * (factor > 1) + [*names])
                    text += f" {'+' if max(rests) > 0 else '-'} {abs(max(rests))}" if max(rests) else ""
                    return text if divisor == 1 else f"{f'({text})' if ' ' in text else text}//{divisor}"
    return None
