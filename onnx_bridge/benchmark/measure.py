"""The measurement: engines take turns, so that load on the machine affects all of them.

In each round every engine has its turn, in a new random order. Python's garbage collector is disabled, and a turn is
timed by two readings of the clock.

A turn is one call. Calls shorter than `SHORT`, which the clock and cold caches after another engine's turn would
distort, are repeated for about `TURN`; the latency is their mean. Percentiles are then those of means, with shorter
tails than those of single calls; the table says how many calls a reading has.
"""

from __future__ import annotations

import gc
import itertools
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from onnx_bridge.benchmark.engines import Call
from onnx_bridge.core.countdown import Countdown
from onnx_bridge.core.progress import Progress, silent
from onnx_bridge.core.values import Value

LEAST = 5
"""The minimum number of rounds, whatever the time."""
SHORT, TURN = 250e-6, 1e-3
"""Seconds: calls shorter than the first are repeated for about the second."""
MOST = 1000
"""The maximum number of calls in a turn."""


@dataclass(frozen=True)
class Rounds:
    """The amount of measurement.

    Attributes:
        iterations: the maximum number of rounds.
        warmup: the number of calls before, which are not measured.
        seconds: no round begins after this time, except for the first `LEAST`; None is no limit.
        seed: the seed for the order of the engines.
    """

    iterations: int = 50
    warmup: int = 3
    seconds: float | None = None
    seed: int = 0


@dataclass(frozen=True)
class Series:
    """The latencies of one call in seconds, in the order of the rounds; each is the mean of ``together`` calls."""

    latencies: tuple[float, ...]
    together: int = 1


def measure(
    calls: Sequence[tuple[Call, Mapping[str, Value]]],
    rounds: Rounds,
    clock: Callable[[], float] = time.perf_counter,
    *,
    tell: Progress = silent,
    what: str = "measuring",
) -> list[Series]:
    """Return the latencies of each call.

    Args:
        calls: the calls, each with its sample.
        clock: the time in seconds.
        tell: called with the round, between rounds.
        what: the measured calls, in words.
    """
    together = [_warm_up(call, sample, rounds.warmup, clock) for call, sample in calls]
    places = np.tile(np.arange(len(calls)), (rounds.iterations, 1))
    orders = np.random.default_rng(rounds.seed).permuted(places, axis=1).tolist()  # drawn in advance, not between calls
    latencies: list[list[float]] = [[] for _ in calls]
    countdown = Countdown(tell, what, rounds.iterations, clock=clock, step_name="round")
    was_enabled = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        started = clock()
        for number, order in enumerate(orders):
            if rounds.seconds is not None and number >= LEAST and clock() - started > rounds.seconds:
                break
            for place in order:
                call, sample = calls[place]
                turn = itertools.repeat(None, together[place])
                before = clock()
                for _ in turn:
                    call(sample)
                latencies[place].append((clock() - before) / together[place])
            countdown.step()
    finally:
        if was_enabled:
            gc.enable()
    return [Series(tuple(series), totals) for series, totals in zip(latencies, together, strict=True)]


def _warm_up(call: Call, sample: Mapping[str, Value], warmup: int, clock: Callable[[], float]) -> int:
    """Return the number of calls in a turn, from the shortest warmup call; 1 without warmup."""
    shortest = math.inf
    for _ in range(warmup):
        before = clock()
        call(sample)
        shortest = min(shortest, clock() - before)
    return 1 if shortest >= SHORT else min(MOST, math.ceil(TURN / max(shortest, TURN / MOST)))
