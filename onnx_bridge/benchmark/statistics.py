"""Statistics of latencies: a summary, ratios with confidence intervals, and tests for slowdowns.

**Outliers** are calls that took longer than Q3 + 3·(Q3 − Q1), Tukey's outer fence. They are counted, and excluded from
mean and standard deviation; percentiles and the minimum are of all calls.

**Location.** Load on a shared machine makes calls longer, never shorter. Ratios therefore compare the means of the
faster halves: a real slowdown changes these as much as any other measure, and bursts of load change them little.

**Intervals** come from a block bootstrap, since successive calls are correlated.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from onnx_bridge.core.schema import JsonRecord

Series = Sequence[float]

_RESAMPLES = 1000
CONFIDENCE = 0.98
"""Of intervals: each end is exceeded with a probability of 1 %."""


@dataclass(frozen=True)
class Summary(JsonRecord):
    """Latencies in seconds: their number, percentiles, and minimum.

    ``mean`` and ``std`` (0 for a single call) are without ``outliers``, the number of calls beyond the outer fence.
    """

    calls: int
    p50: float
    p90: float
    p99: float
    min: float
    mean: float
    std: float
    outliers: int

    @classmethod
    def of(cls, series: Series) -> Summary:
        """Summarize one or more calls."""
        values = np.asarray(series, np.float64)
        first, third = np.percentile(values, [25, 75])
        kept = values[values <= third + 3 * (third - first)]
        p50, p90, p99 = (float(percentile) for percentile in np.percentile(values, [50, 90, 99]))
        std = float(kept.std(ddof=1)) if kept.size > 1 else 0.0
        return cls(values.size, p50, p90, p99, float(values.min()), float(kept.mean()), std, values.size - kept.size)


@dataclass(frozen=True)
class Ratio(JsonRecord):
    """The ratio of the latencies of two series, by the means of their faster halves.

    ``low`` and ``high`` are the ends of its confidence interval (`CONFIDENCE`).
    """

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:.3f} [{self.low:.3f}, {self.high:.3f}]"


def ratio(series: Series, base: Series, *, paired: bool = False) -> Ratio:
    """Return the ratio of the latencies of two series, each in the order of measurement.

    Args:
        series, base: the numerator and the denominator.
        paired: whether they were measured in the same rounds, under the same load: their blocks are then drawn
            together.
    """
    random = np.random.default_rng(0)
    upper, lower = np.asarray(series, np.float64), np.asarray(base, np.float64)
    places = _blocks(lower.size, random)
    others = places if paired and upper.size == lower.size else _blocks(upper.size, random)
    ratios = _location(upper[others]) / _location(lower[places])
    tail = 100 * (1 - CONFIDENCE) / 2
    low, high = (float(percentile) for percentile in np.percentile(ratios, [tail, 100 - tail]))
    value = float((_location(upper[None]) / _location(lower[None]))[0])
    return Ratio(value, min(low, value), max(high, value))


def _location(series: np.ndarray[Any, np.dtype[np.float64]]) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Return the mean of the faster half of each row."""
    faster = -(-series.shape[1] // 2)
    fastest: np.ndarray[Any, np.dtype[np.float64]] = np.partition(series, faster - 1, axis=1)[:, :faster].mean(axis=1)
    return fastest


def _blocks(size: int, random: np.random.Generator) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Return the indices of each resample: blocks of √n neighbours, wrapped around the end."""
    length = max(1, math.isqrt(size))
    starts = random.integers(size, size=(_RESAMPLES, -(-size // length)))
    places = (starts[:, :, None] + np.arange(length)) % size
    return places.reshape(_RESAMPLES, -1)[:, :size]


class Change(enum.Enum):
    """The outcome of a comparison with a baseline."""

    SLOWER = "slower"
    """Significantly slower than allowed."""
    WITHIN = "within"
    """Not slower than allowed."""
    UNDECIDED = "undecided"
    """Too noisy to decide: more calls are needed."""


def change(measured: Ratio, max_slowdown: float) -> Change:
    """Return whether a ratio of the present to a baseline exceeds ``max_slowdown``, a share such as 0.05."""
    limit = 1 + max_slowdown
    if measured.low > limit:
        return Change.SLOWER
    return Change.WITHIN if measured.high <= limit else Change.UNDECIDED


def knee(throughputs: dict[int, float]) -> tuple[int, int]:
    """Return the best batch size by samples per second, and the smallest size with 90 % of that throughput."""
    best = max(throughputs, key=lambda size: throughputs[size])
    return best, min(size for size, throughput in throughputs.items() if throughput >= 0.9 * throughputs[best])
