"""Error metrics between an output and the expected one, accumulated chunk by chunk.

Errors are computed in float64, over the elements that are finite on both sides. A *unit in the last place* (ULP) is the
step from a number to the next one of its dtype: an error in ULPs counts the representable numbers in between.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field

import ml_dtypes
import numpy as np

from onnx_bridge.core.tolerance import Tolerance
from onnx_bridge.core.values import Array
from onnx_bridge.reference.comparison.tolerances import CHUNK, is_float

_TINY = 1e-30
"""Replaces a limit of 0 if an error is divided by its limit."""
_CLASSES = 5
"""The fewest classes of an output that counts as logits."""


def chunks(actual: Array, expected: Array) -> Iterator[tuple[Array, Array, int]]:
    """Yield both arrays flattened, `CHUNK` elements at a time, and the index of the first."""
    flat = actual.reshape(-1), expected.reshape(-1)
    for start in range(0, expected.size, CHUNK):
        yield flat[0][start : start + CHUNK], flat[1][start : start + CHUNK], start


@dataclass
class Tally:
    """The metrics of the chunks of one output so far; its dtype and shape are as expected.

    Attributes:
        measured: whether to compute more than what tells if they agree, and the largest error.
        nonfinite: the number of elements that are NaN, or the same Inf, on both sides.
        beyond: the number of errors beyond the tolerance.
        one_sided: the numbers of elements that are NaN, and that are Inf, on one side only.
        worst: the flat index of the element whose error is the largest multiple of its limit.
    """

    tolerance: Tolerance
    measured: bool = True
    finite: int = 0
    nonfinite: int = 0
    beyond: int = 0
    one_sided: dict[str, int] = field(default_factory=lambda: {"NaN": 0, "Inf": 0})
    worst: int | None = None
    severity: float = 0.0
    max_abs: float = 0.0
    max_rel: float = 0.0
    max_ulp: float | None = None
    same: int = 0
    seen: int = 0
    sum_abs: float = 0.0
    noise: float = 0.0
    signal: float = 0.0
    power: float = 0.0
    product: float = 0.0

    @property
    def mismatched(self) -> int:
        """The number of elements that do not agree."""
        return self.beyond + sum(self.one_sided.values())

    def add_strings(self, actual: Array, expected: Array, start: int) -> None:
        """Add a chunk of strings; ``start`` is the flat index of its first element."""
        different = np.flatnonzero(np.asarray(actual, dtype=object) != np.asarray(expected, dtype=object))
        self.seen += expected.size
        self.same += expected.size - len(different)
        self.beyond += len(different)
        if len(different) and self.worst is None:
            self.worst = start + int(different[0])

    def add(self, actual: Array, expected: Array, start: int) -> None:
        """Add a chunk of numbers; ``start`` is the flat index of its first element."""
        with np.errstate(over="ignore", invalid="ignore"):
            a, b = actual.astype(np.float64), expected.astype(np.float64)
            finite = np.isfinite(a) & np.isfinite(b)
            self.seen += a.size
            if not finite.all():
                self._add_nonfinite(a, b, finite, start)
                a, b = a[finite], b[finite]
                actual, expected = actual[finite], expected[finite]
            if not a.size:
                return
            # 64-bit integers are subtracted as integers: float64 does not represent all of them
            distance = _distance(actual, expected) if actual.dtype.kind in "iu" else np.abs(a - b)
            limit = self.tolerance.atol + self.tolerance.rtol * np.abs(b)
            self.beyond += int(np.count_nonzero(distance > limit))
            self.same += int(np.count_nonzero(distance == 0))
            severity = distance / np.maximum(limit, _TINY)
            place = int(np.argmax(severity))
            if severity[place] > self.severity:
                self.severity = float(severity[place])
                self.worst = start + int(place if finite.all() else np.flatnonzero(finite)[place])
            self.finite += a.size
            self.max_abs = max(self.max_abs, float(distance.max()))
            if self.measured:
                self._measure(a, b, distance)
                if is_float(expected.dtype):
                    steps = float(_distance(_ordinal(actual), _ordinal(expected)).max())
                    self.max_ulp = max(self.max_ulp or 0.0, steps)

    def _measure(self, a: Array, b: Array, distance: Array) -> None:
        """Add finite numbers as float64, and their errors, to what does not decide whether they agree."""
        size = np.abs(b)
        nonzero = size > 0
        self.max_rel = max(self.max_rel, float(np.max(distance[nonzero] / size[nonzero], initial=0.0)))
        self.sum_abs += float(distance.sum())
        self.noise += float(np.sum(distance * distance))
        self.signal += float(np.sum(b * b))
        self.power += float(np.sum(a * a))
        self.product += float(np.sum(a * b))

    def _add_nonfinite(self, a: Array, b: Array, finite: Array, start: int) -> None:
        nans = np.isnan(a) != np.isnan(b)
        infinities = ~finite & ~nans & (a != b) & ~np.isnan(a)
        self.one_sided["NaN"] += int(np.count_nonzero(nans))
        self.one_sided["Inf"] += int(np.count_nonzero(infinities))
        alike = int(np.count_nonzero(~finite & ~nans & ~infinities))
        self.nonfinite += alike
        self.same += alike
        different = np.flatnonzero(nans | infinities)
        if len(different) and self.severity < math.inf:
            self.severity, self.worst = math.inf, start + int(different[0])

    def metrics(self) -> dict[str, float | None]:
        """Return the metrics as fields of an `OutputComparison`; only ``same`` if no element is finite."""
        same: dict[str, float | None] = {"same": self.same / self.seen if self.seen else None}
        if not self.finite:
            return same
        if not self.measured:
            return same | {"max_abs": self.max_abs}
        lengths = math.sqrt(self.signal) * math.sqrt(self.power)
        alike = 1.0 if self.signal == self.power else 0.0
        return same | {
            "max_abs": self.max_abs,
            "max_rel": self.max_rel,
            "mean_abs": self.sum_abs / self.finite,
            "rmse": math.sqrt(self.noise / self.finite),
            "cosine": max(-1.0, min(1.0, self.product / lengths)) if lengths else alike,
            "sqnr_db": _decibels(self.signal, self.noise),
            "max_ulp": self.max_ulp,
        }


def top_k_agreement(name: str, actual: Array, expected: Array) -> dict[str, float]:
    """Return the top-1 and top-5 agreement of logits; empty for other outputs.

    Floats count as logits if they have the two dimensions [batch, classes], or if their last dimension is the classes
    and ``logits`` is in their name; with at least 5 classes and one row.

    Returns:
        ``top1``: the share of rows whose actual best class is an expected best class; ``top5``: the share of rows with
        an expected best class among the actual best five. Classes of equal value tie. Rows that expect NaN have no
        best class, and are left out.
    """
    looks = expected.ndim == 2 or (expected.ndim > 2 and "logits" in name.lower())
    if not looks or not is_float(expected.dtype) or not expected.size or expected.shape[-1] < _CLASSES:
        return {}
    classes = expected.shape[-1]
    rows = actual.reshape(-1, classes), expected.reshape(-1, classes)
    count, step = len(rows[0]), max(1, CHUNK // classes)
    first = five = known = 0
    for start in range(0, count, step):
        a, b = (row[start : start + step].astype(np.float64) for row in rows)
        ranked = ~np.isnan(b).any(axis=1)
        a, b, known = a[ranked], b[ranked], known + int(np.count_nonzero(ranked))
        best = b.max(axis=1, keepdims=True)
        leading = np.argpartition(-a, _CLASSES - 1, axis=1)[:, :_CLASSES]
        chosen = np.take_along_axis(b, a.argmax(axis=1)[:, None], axis=1)
        first += int(np.count_nonzero(chosen == best))
        five += int(np.count_nonzero((np.take_along_axis(b, leading, axis=1) == best).any(axis=1)))
    return {"top1": first / known, "top5": five / known} if known else {}


def _ordinal(array: Array) -> Array:
    """Return for each float its ordinal among the numbers of its dtype, 0 for zero, as int64."""
    bits = int(ml_dtypes.finfo(array.dtype).bits)  # type: ignore[no-untyped-call]
    raw = np.ascontiguousarray(array).view(f"u{array.dtype.itemsize}")
    if array.dtype.name == "float8_e8m0fnu":  # which has no sign
        return raw.astype(np.int64)
    sign = raw >> np.array(bits - 1, raw.dtype) & np.array(1, raw.dtype)
    magnitude = (raw & np.array((1 << (bits - 1)) - 1, raw.dtype)).astype(np.int64)
    return np.asarray(np.where(sign == 1, -magnitude, magnitude))


def _distance(actual: Array, expected: Array) -> Array:
    """Return |actual − expected| of integers as float64, subtracted without overflow."""
    if actual.dtype.itemsize < 8:
        return np.abs(actual.astype(np.int64) - expected.astype(np.int64)).astype(np.float64)
    larger, smaller = np.maximum(actual, expected), np.minimum(actual, expected)
    return (larger.view(np.uint64) - smaller.view(np.uint64)).astype(np.float64)


def _decibels(signal: float, noise: float) -> float:
    if noise == 0:
        return math.inf
    return 10 * (math.log10(signal) - math.log10(noise)) if signal else -math.inf
