"""What is said of latencies: a summary, ratios with confidence intervals, and whether a series is slower than another.

**Outliers** are calls that took longer than Q3 + 3·(Q3 − Q1), Tukey's far fence. They are counted, and left out of
mean and standard deviation; percentiles and the minimum are of all calls.

**Location.** What disturbs a measurement on a shared machine makes calls longer, never shorter. Ratios therefore
compare the means of the faster halves: a real slowdown moves these as far as any other, and bursts of other work move
them little.

**Intervals** come from the bootstrap, of blocks rather than of single calls: neighbours in time are alike, and taking
them for independent would promise too much.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

Series = Sequence[float]

_RESAMPLES = 1000
CONFIDENCE = 0.98
"""Of intervals: one end is beyond the truth in one of a hundred."""


@dataclass(frozen=True)
class Summary:
    """Latencies in seconds.

    Attributes:
        calls: how many there were.
        p50: half of them took no longer.
        p90: nine of ten.
        p99: ninety-nine of a hundred.
        min: the shortest.
        mean: without outliers.
        std: standard deviation, without outliers; 0 for a single call.
        outliers: how many calls were beyond the far fence.
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
        """Summarize at least one call."""
        values = np.asarray(series, np.float64)
        first, third = np.percentile(values, [25, 75])
        kept = values[values <= third + 3 * (third - first)]
        p50, p90, p99 = (float(each) for each in np.percentile(values, [50, 90, 99]))
        std = float(kept.std(ddof=1)) if kept.size > 1 else 0.0
        return cls(values.size, p50, p90, p99, float(values.min()), float(kept.mean()), std, values.size - kept.size)

    def to_json(self) -> dict[str, Any]:
        """As JSON values."""
        return asdict(self)


@dataclass(frozen=True)
class Ratio:
    """How many times as long one series takes as another.

    Attributes:
        value: the ratio of the means of their faster halves.
        low: lower end of its confidence interval (`CONFIDENCE`).
        high: upper end.
    """

    value: float
    low: float
    high: float

    def to_json(self) -> dict[str, float]:
        """As JSON values."""
        return asdict(self)

    def __str__(self) -> str:
        return f"{self.value:.3f} [{self.low:.3f}, {self.high:.3f}]"


def ratio(series: Series, base: Series, *, paired: bool = False, seed: int = 0) -> Ratio:
    """How many times as long a series takes as another.

    Args:
        series: its latencies, in the order in which they were measured.
        base: the other's.
        paired: whether they were measured in the same rounds, so that what disturbed one disturbed the other: their
            blocks are then drawn together.
        seed: of the bootstrap.
    """
    random = np.random.default_rng(seed)
    upper, lower = np.asarray(series, np.float64), np.asarray(base, np.float64)
    places = _blocks(lower.size, random)
    others = places if paired and upper.size == lower.size else _blocks(upper.size, random)
    ratios = _location(upper[others]) / _location(lower[places])
    tail = 100 * (1 - CONFIDENCE) / 2
    low, high = (float(each) for each in np.percentile(ratios, [tail, 100 - tail]))
    value = float((_location(upper[None]) / _location(lower[None]))[0])
    return Ratio(value, min(low, value), max(high, value))


def _location(series: np.ndarray[Any, np.dtype[np.float64]]) -> np.ndarray[Any, np.dtype[np.float64]]:
    """The mean of the faster half of each row."""
    faster = -(-series.shape[1] // 2)
    found: np.ndarray[Any, np.dtype[np.float64]] = np.partition(series, faster - 1, axis=1)[:, :faster].mean(axis=1)
    return found


def _blocks(size: int, random: np.random.Generator) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Places for each resample: runs of neighbours, around the end where need be, √n of them long."""
    length = max(1, math.isqrt(size))
    starts = random.integers(size, size=(_RESAMPLES, -(-size // length)))
    places = (starts[:, :, None] + np.arange(length)) % size
    return places.reshape(_RESAMPLES, -1)[:, :size]


class Change(enum.Enum):
    """What a comparison with a baseline shows."""

    SLOWER = "slower"
    """By more than is allowed, and not by chance."""
    WITHIN = "within"
    """Not slower by more than is allowed."""
    UNDECIDED = "undecided"
    """The noise is larger than what is asked about: more calls are needed."""


def change(found: Ratio, max_slowdown: float) -> Change:
    """Whether a ratio of the present to a baseline is a regression.

    Args:
        found: the ratio.
        max_slowdown: what is allowed, as a share (0.05).
    """
    limit = 1 + max_slowdown
    if found.low > limit:
        return Change.SLOWER
    return Change.WITHIN if found.high <= limit else Change.UNDECIDED


def knee(throughputs: dict[int, float], share: float = 0.9) -> tuple[int, int]:
    """The best batch size, and the knee: the smallest with ``share`` of the best throughput.

    Args:
        throughputs: samples a second by batch size.
        share: of the best.
    """
    best = max(throughputs, key=lambda size: throughputs[size])
    return best, min(size for size, found in throughputs.items() if found >= share * throughputs[best])
