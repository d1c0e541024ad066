"""The search for the nodes that stay in float, on a model of noise that adds up."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pytest

from onnx_bridge.core.progress import silent
from onnx_bridge.placement.placement import Point, Trials
from onnx_bridge.reference.comparison.scores import Score

LEAST = 30.0


def searched(costs: Mapping[str, float], noise: Mapping[str, float], told: Mapping[str, float], runs: int) -> Trials:
    """Search with what is told of the noise; trials have the real one."""

    def attempt(excluded: Sequence[str]) -> Point:
        left = sum(noise[name] for name in costs if name not in excluded)
        score = Score("quantized", "y", "sqnr", float(-10 * np.log10(left + 1e-12)), "dB", least=LEAST)
        return Point(tuple(excluded), 1 - sum(costs[name] for name in excluded), (score,))

    trials = Trials(attempt, runs, silent)
    first = trials(())
    assert not first.passed
    trials.place(costs, told, trials, first, 1e-9, 10 ** (-LEAST / 10))
    return trials


def network(seed: int) -> tuple[dict[str, float], dict[str, float]]:
    random = np.random.default_rng(seed)
    names = [f"n{index}" for index in range(30)]
    noise = dict(zip(names, (10.0 ** random.uniform(-9, -5, 30)).tolist(), strict=True))
    noise |= {"n3": 0.1, "n11": 0.02, "n25": 0.004}
    return dict(zip(names, random.dirichlet(np.ones(30) * 9).tolist(), strict=True)), noise


@pytest.mark.parametrize("seed", range(4))
def test_three_noisy_nodes_take_few_trials(seed: int) -> None:
    costs, noise = network(seed)
    trials = searched(costs, noise, noise, 30)
    assert trials.best is not None
    assert set(trials.best.excluded) == {"n3", "n11", "n25"}
    assert len(trials.points) <= 4


def test_a_node_of_infinite_noise_is_left_out_at_once() -> None:
    costs, noise = network(0)
    trials = searched(costs, noise, dict.fromkeys(("n3", "n11", "n25"), float("inf")), 30)
    assert [len(point.excluded) for point in trials.points.values()] == [0, 3]


def test_what_was_told_wrong_is_put_back_and_the_budget_ends_the_search() -> None:
    costs, noise = network(1)
    wrong = noise | {"n7": 0.005}
    trials = searched(costs, noise, wrong, 30)
    assert trials.best is not None
    assert set(trials.best.excluded) == {"n3", "n11", "n25"}
    assert len(searched(costs, noise, wrong, 2).points) == 2
