"""The sets of products with the least noise for their work, and the search among them."""

from __future__ import annotations

from itertools import combinations, pairwise

import numpy as np
import pytest

from onnx_bridge.placement.frontier import Point, cheapest, frontier


@pytest.mark.parametrize("seed", range(4))
def test_no_set_has_less_noise_for_its_work(seed: int) -> None:
    random = np.random.default_rng(seed)
    names = "abcdefgh"
    costs = dict(zip(names, random.dirichlet(np.ones(8)).tolist(), strict=True))
    noise = dict(zip(names, (10.0 ** random.uniform(-9, 0, 8)).tolist(), strict=True))
    points = frontier(costs, noise)
    assert points[0].products == ()
    assert points[-1].products == tuple(names)
    assert all(a.cost < b.cost and a.noise >= b.noise for a, b in pairwise(points))
    for chosen in (chosen for count in range(9) for chosen in combinations(names, count)):
        cost, left = sum(costs[name] for name in chosen), sum(noise[name] for name in names if name not in chosen)
        assert any(point.cost <= cost + 2e-3 and point.noise <= left * 1.001 + 1e-15 for point in points)


def test_a_product_without_a_measure_is_among_the_first() -> None:
    points = frontier({"a": 0.2, "b": 0.7, "c": 0.1}, {"a": 0.9, "c": 0.1})
    assert [point.products for point in points if point.noise < 10][:2] == [("b",), ("b", "c")]


@pytest.mark.parametrize("first", [1, 2, 7, 30, 99, 100])
@pytest.mark.parametrize("error", [None, 1.0, 0.5, 8.0])
def test_the_search_ends_near_the_cheapest_that_holds(first: int, error: float | None) -> None:
    """The prediction is wrong by a factor, which the first trial shows."""
    points = [Point(place / 100, 2.0**-place, ()) for place in range(101)]
    tried: list[int] = []

    def trial(point: Point) -> tuple[bool, float | None]:
        tried.append(points.index(point))
        return tried[-1] >= first, None if error is None else point.noise / points[first].noise

    cheapest(points, trial, None if error is None else points[first].noise * error, 0.025)
    above = min([place for place in tried if place >= first], default=100)
    assert above - max([place for place in tried if place < first], default=0) <= 2
    assert len(tried) <= (6 if error is None else 3)
