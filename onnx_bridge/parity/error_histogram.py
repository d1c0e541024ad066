"""A sketch of two tensors, small enough to be kept of every layer of a model: how their differences are distributed,
and some of the elements beside each other.

The elements for the scatter plot are every n-th, and the worst of all, which a sample would miss.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from onnx_bridge.core.values import Array

BINS, POINTS = 41, 240
_DIGITS = 5
_ELEMENTS = 1 << 22
"""Elements looked at, at most: of larger tensors every n-th."""
_LARGEST = 1.7e308


@dataclass(frozen=True)
class Sketch:
    """How a tensor compares with its reference, for plots.

    Attributes:
        low: of the differences (actual − expected), the left edge of the first bin.
        high: the right edge of the last.
        counts: elements in each bin.
        expected: some of the expected elements.
        actual: those of the result at the same places.
        elements: how many there are in all.
        left_out: how many of those that were looked at are NaN or Inf on either side.
    """

    low: float
    high: float
    counts: tuple[int, ...]
    expected: tuple[float, ...]
    actual: tuple[float, ...]
    elements: int
    left_out: int = 0

    @classmethod
    def of(cls, actual: Array, expected: Array) -> Sketch | None:
        """Sketch two tensors of numbers or bools, of any real dtype; None for others, other shapes, and none finite."""
        if actual.shape != expected.shape or {actual.dtype.kind, expected.dtype.kind} & set("OSUTc"):
            return None
        step = max(1, expected.size // _ELEMENTS)
        a, b = (each.reshape(-1)[::step].astype(np.float64) for each in (actual, expected))
        finite = np.isfinite(a) & np.isfinite(b)
        left_out = int(a.size - np.count_nonzero(finite))
        a, b = a[finite], b[finite]
        if not a.size:
            return None
        half = a / 2 - b / 2  # of the difference, which might be beyond all numbers
        most = float(np.abs(half).max()) or 0.5
        counts, _ = np.histogram(half / most, BINS, (-1, 1))
        reach = min(most, _LARGEST / 2) * 2
        places = np.unique([*np.linspace(0, a.size - 1, POINTS).astype(int), int(np.abs(half).argmax())])
        return cls(
            -reach,
            reach,
            tuple(map(int, counts)),
            tuple(map(_short, b[places])),
            tuple(map(_short, a[places])),
            expected.size,
            left_out,
        )

    def to_json(self) -> dict[str, Any]:
        """The attributes as JSON values."""
        values = {"low": _short(self.low), "high": _short(self.high), "counts": list(self.counts)}
        values |= {"expected": list(self.expected), "actual": list(self.actual)}
        return values | {"elements": self.elements, "left_out": self.left_out}


def keeping(sketches: dict[str, Sketch]) -> Callable[[str, Array, Array], None]:
    """What `compare_layers` is to be watched by so that a sketch of each layer is kept, by its name."""

    def watch(name: str, actual: Array, expected: Array) -> None:
        sketch = Sketch.of(actual, expected)
        if sketch is not None:
            sketches[name] = sketch

    return watch


def _short(number: float) -> float:
    """With as many digits as a plot can show, and no larger than rounding may make it."""
    return float(f"{max(-_LARGEST, min(_LARGEST, number)):.{_DIGITS}g}")
