"""A sketch of two tensors, small enough to keep for every layer of a model: a histogram of their differences, and some
pairs of elements.

The pairs for the scatter plot are every n-th, and the one that differs most, which a sample would miss.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from onnx_bridge.core.schema import JsonRecord
from onnx_bridge.core.values import Array

BINS, POINTS = 41, 240
_DIGITS = 5
_ELEMENTS = 1 << 22
"""The most elements that are examined: of larger tensors every n-th."""
_LARGEST = 1.7e308


@dataclass(frozen=True)
class Sketch(JsonRecord):
    """The comparison of a tensor with its reference, for plots.

    Attributes:
        low: the left edge of the first bin of differences (actual − expected).
        high: the right edge of the last bin.
        counts: the number of elements in each bin.
        expected: some of the expected elements.
        actual: the actual elements at the same places.
        elements: the number of elements of the tensor.
        left_out: how many of the examined elements are NaN or Inf on either side.
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
        a, b = (array.reshape(-1)[::step].astype(np.float64) for array in (actual, expected))
        finite = np.isfinite(a) & np.isfinite(b)
        left_out = int(a.size - np.count_nonzero(finite))
        a, b = a[finite], b[finite]
        if not a.size:
            return None
        half = a / 2 - b / 2  # half the difference, since the difference may overflow
        most = float(np.abs(half).max()) or 0.5
        counts, _ = np.histogram(half / most, BINS, (-1, 1))
        reach = min(most, _LARGEST / 2) * 2
        places = np.unique([*np.linspace(0, a.size - 1, POINTS).astype(int), int(np.abs(half).argmax())])
        return cls(
            _short(-reach),
            _short(reach),
            tuple(map(int, counts)),
            tuple(map(_short, b[places])),
            tuple(map(_short, a[places])),
            expected.size,
            left_out,
        )


def sketch_into(sketches: dict[str, Sketch]) -> Callable[[str, Array, Array], None]:
    """Return an observer of `compare_layers` that keeps a sketch of each layer, by its name."""

    def observe(name: str, actual: Array, expected: Array) -> None:
        sketch = Sketch.of(actual, expected)
        if sketch is not None:
            sketches[name] = sketch

    return observe


def _short(number: float) -> float:
    """Return the number with the digits that a plot shows, clipped to what float64 holds after rounding."""
    return float(f"{max(-_LARGEST, min(_LARGEST, number)):.{_DIGITS}g}")
