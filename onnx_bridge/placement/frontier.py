"""The best sets of products to leave in float by what a model of additive noise predicts, and the search among them.

work in 8 bits that is lost   0 ──── 3 % ───── 12 % ──────── 100 %
predicted noise               1      0.2       0.004         0       each set has the least noise for its work
                                                 ▲
                              begins here for a target of 0.01, and tries the neighbours
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

_PLACES = 1000
"""The sets that are kept while products are added, by the work that they lose: one for each part of the whole."""
UNMEASURED = 1e6
"""The noise of a product that was not measured, relative to the signal."""
_LEAST = 1e-12


@dataclass(frozen=True)
class Point:
    """One set: the share of the work that it loses, the noise that is left, and its products."""

    cost: float
    noise: float
    products: tuple[str, ...]


def frontier(costs: Mapping[str, float], noise: Mapping[str, float]) -> list[Point]:
    """Return the sets of products with the least noise left for what they cost, from none of the products to all.

    Args:
        costs: the share of the work of each product.
        noise: the noise that each product causes by itself.
    """
    names = list(costs)
    removed = [min(noise.get(name, UNMEASURED), UNMEASURED) for name in names]
    whole = sum(costs.values()) or 1.0
    best: dict[int, tuple[float, float, int]] = {0: (0.0, 0.0, 0)}  # noise removed, −cost, and a bit for each product
    for index, name in enumerate(names):
        for gone, saved, chosen in list(best.values()):
            larger = gone + removed[index], saved - costs[name], chosen | 1 << index
            place = math.ceil(-larger[1] / whole * _PLACES)
            best[place] = max(best.get(place, larger), larger)
    points: list[Point] = []
    most = -1.0
    for gone, saved, chosen in sorted(best.values(), key=lambda entry: -entry[1]):
        if gone > most:
            products = [name for index, name in enumerate(names) if chosen >> index & 1]
            left = sum(amount for index, amount in enumerate(removed) if not chosen >> index & 1)
            points.append(Point(-saved, left, tuple(products)))
            most = gone
    return points


def cheapest(
    points: Sequence[Point], trial: Callable[[Point], tuple[bool, float | None]], target: float | None, near: float
) -> None:
    """Try points until the cheapest one that holds is known, up to a difference of cost.

    Args:
        points: in the order of their cost; the first does not hold, and the last holds.
        trial: returns whether a point holds, which is monotonic, and its true noise, relative to what is asked for.
        target: the noise with which a point is predicted to hold; None if noise predicts nothing.
        near: the difference of cost that does not matter.
    """
    low, high, step = 0, len(points) - 1, near
    wanted, before = _predicted(points, target), None
    while high - low > 1 and points[high].cost - points[low].cost > near:
        if wanted is None or wanted <= points[low].cost:
            wanted = (points[low].cost + points[high].cost) / 2
        index = bisect.bisect_left(points, wanted, low + 1, high - 1, key=lambda point: point.cost)
        held, noise = trial(points[index])
        low, high = (low, index) if held else (index, high)
        step, before = 2 * step if held == before else near, held
        wanted = _predicted(points, None if noise is None else points[index].noise / max(noise, _LEAST))
        if wanted is not None:  # if the prediction is as wrong as here
            wanted = min(wanted, points[high].cost - step) if held else max(wanted, points[low].cost + step)


def _predicted(points: Sequence[Point], target: float | None) -> float | None:
    """Return the cost of the first point that is predicted to hold."""
    if target is None:
        return None
    return next((point.cost for point in points if point.noise <= target), points[-1].cost)
