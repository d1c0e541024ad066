"""Statistics of latencies, on simulated series: noise is not taken for a slowdown, nor a slowdown for noise."""

from __future__ import annotations

import numpy as np
import pytest

from onnx_bridge.benchmark.statistics import Change, Ratio, Summary, change, knee, ratio

RUNS = 50
CALLS = 200


def series(seed: int, slowdown: float = 1.0) -> list[float]:
    """Latencies on a shared machine, in seconds.

    Skewed noise of 5 %, a slow drift of 2 %, and bursts in which other work doubles or triples the time of some twenty
    calls in a row.
    """
    random = np.random.default_rng(seed)
    noise = random.lognormal(0.0, 0.05, CALLS)
    drift = 1 + 0.02 * np.sin(2 * np.pi * (np.arange(CALLS) / CALLS + random.random()))
    found = 0.010 * noise * drift
    for start in random.integers(CALLS, size=3):
        found[start : start + int(random.integers(5, 20))] *= random.uniform(1.5, 3.0)
    return (found * slowdown).tolist()  # type: ignore[no-any-return]


@pytest.mark.parametrize(("slowdown", "slower"), [(1.0, 0), (1.1, RUNS)])
def test_slowdowns_are_found_and_noise_is_not(slowdown: float, slower: int) -> None:
    found = [
        change(ratio(series(2 * run, slowdown), series(2 * run + 1)), max_slowdown=0.05) is Change.SLOWER
        for run in range(RUNS)
    ]
    assert sum(found) == slower


def test_a_speedup_is_within() -> None:
    assert change(ratio(series(0, 0.8), series(1)), 0.05) is Change.WITHIN


def test_too_few_calls_leave_it_undecided() -> None:
    random = np.random.default_rng(0)
    few = [random.lognormal(0, 0.5, 6).tolist() for _ in range(2)]
    found = ratio(*few)
    assert found.low < found.value < found.high
    assert change(found, 0.05) is Change.UNDECIDED


def test_intervals_contain_the_true_ratio() -> None:
    random = np.random.default_rng(0)
    inside = 0
    for _ in range(100):
        found = ratio((1.2 * random.lognormal(0, 0.1, 100)).tolist(), random.lognormal(0, 0.1, 100).tolist())
        inside += found.low <= 1.2 <= found.high
    assert inside >= 93


def test_pairing_cancels_common_noise() -> None:
    random = np.random.default_rng(0)
    common = random.lognormal(0, 0.4, 100)
    one, other = (common * random.lognormal(0, 0.01, 100) for _ in range(2))
    alone, paired = ratio(one.tolist(), other.tolist()), ratio(one.tolist(), other.tolist(), paired=True)
    assert paired.high - paired.low < (alone.high - alone.low) / 3


def test_the_same_seed_gives_the_same_interval() -> None:
    assert ratio(series(0), series(1)) == ratio(series(0), series(1))
    assert ratio(series(0), series(0), paired=True) == Ratio(1.0, 1.0, 1.0)


def test_outliers_are_excluded_from_the_mean() -> None:
    found = Summary.of([1.0, 1.1, 0.9, 1.0, 1.05, 0.95, 1.0, 9.0])
    assert found.outliers == 1
    assert found.calls == 8
    assert found.mean == pytest.approx(1.0)
    assert found.min == 0.9
    assert found.p99 > 8
    assert found.p50 == 1.0
    assert found.std == pytest.approx(np.std([1.0, 1.1, 0.9, 1.0, 1.05, 0.95, 1.0], ddof=1))


def test_the_summary_of_one_call() -> None:
    assert Summary.of([0.5]) == Summary(1, 0.5, 0.5, 0.5, 0.5, 0.5, 0.0, 0)


def test_the_knee_is_the_smallest_that_is_nearly_best() -> None:
    assert knee({1: 100, 2: 190, 4: 340, 8: 360, 16: 350}) == (8, 4)
    assert knee({1: 100}) == (1, 1)
