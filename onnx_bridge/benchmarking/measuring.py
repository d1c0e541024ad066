"""The measurement: engines take turns, so that what disturbs the machine disturbs all of them.

In each round every engine is called once, in an order that is drawn anew. Python's garbage collector rests meanwhile.
Around a call there is nothing but two readings of a clock.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from onnx_bridge.benchmarking.engines import Call
from onnx_bridge.values import Value

LEAST = 5
"""Rounds that there are at least, whatever the time."""


@dataclass(frozen=True)
class Plan:
    """How much is measured.

    Attributes:
        iterations: rounds, at most.
        warmup: calls before that whose times do not count.
        seconds: no round begins after so many, but for the first `LEAST`; None sets no limit.
        seed: of the order of the engines.
    """

    iterations: int = 50
    warmup: int = 3
    seconds: float | None = None
    seed: int = 0


def measure(
    calls: Sequence[tuple[Call, Mapping[str, Value]]],
    plan: Plan,
    clock: Callable[[], float] = time.perf_counter,
) -> list[list[float]]:
    """Latencies in seconds of each call, in the order of the rounds.

    Args:
        calls: what is called, each with its sample.
        plan: how much.
        clock: the time in seconds.
    """
    for call, sample in calls:
        for _ in range(plan.warmup):
            call(sample)
    places = np.tile(np.arange(len(calls)), (plan.iterations, 1))
    orders = np.random.default_rng(plan.seed).permuted(places, axis=1).tolist()  # drawn before, not between calls
    found: list[list[float]] = [[] for _ in calls]
    was_enabled = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        started = clock()
        for number, order in enumerate(orders):
            if plan.seconds is not None and number >= LEAST and clock() - started > plan.seconds:
                break
            for place in order:
                call, sample = calls[place]
                before = clock()
                call(sample)
                found[place].append(clock() - before)
    finally:
        if was_enabled:
            gc.enable()
    return found
