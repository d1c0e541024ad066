"""The search for the most work in fewer bits with which a model still holds: one for all formats.

    everything in fewer bits ─► noise of each node by itself ─► the sets of nodes that leave least noise for their work
                  ─► `cheapest`: the first of these in float with which it holds ─► its nodes in fewer bits again, one
                                                                                    by one, if it still holds

Each trial is a whole quantization or conversion, which is measured. Noise adds up nearly, so that the search begins
where its sum reaches what was asked for, and mostly ends after two more trials.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from onnx_bridge.core.progress import Progress
from onnx_bridge.core.schema import JsonRecord
from onnx_bridge.placement.frontier import cheapest, frontier
from onnx_bridge.reference.comparison.scores import Score
from passes.core.text import counted

NOISE: Mapping[str, Callable[[float], float]] = {
    "sqnr": lambda value: 10 ** (-value / 10),
    "cosine": lambda value: max(2 * (1 - value), 1e-12),
    "margin": lambda value: 10 ** (-value / 10),
}
"""The noise at a value of the metrics that tell it: relative to the signal, or to the tolerance."""
_FAR = 10
"""The predicted noise, relative to what is asked for, from which on a trial is not worth its time."""


@dataclass(frozen=True)
class Point(JsonRecord):
    """One trial.

    Attributes:
        excluded: the nodes that stayed in float.
        share: the share of the work in fewer bits, from 0 to 1.
        scores: the metrics that were asked for.
        failure: why no model was made; None if one was.
    """

    in_json = ("passed",)

    excluded: tuple[str, ...]
    share: float = 0.0
    scores: tuple[Score, ...] = ()
    failure: str | None = None

    @property
    def passed(self) -> bool:
        """Return whether the model holds."""
        return self.failure is None and all(score.passed for score in self.scores)

    @property
    def missing(self) -> float:
        """The distance of the worst score from its minimum, relative to it; below 0 if all reach theirs."""
        return max((score.missing for score in self.scores), default=math.inf)

    @property
    def noise(self) -> float | None:
        """The noise of the worst score, relative to what was asked for; None if no metric tells it."""
        levels = [(NOISE[score.metric], score) for score in self.scores if score.metric in NOISE]
        return max((level(score.value) / level(score.least or 0.0) for level, score in levels), default=None)


@dataclass(frozen=True, kw_only=True)
class Placement(JsonRecord):
    """The result of a search.

    Attributes:
        points: all trials, in their order.
        chosen: the one with the most work in fewer bits of those that hold.
        noise: the noise at the outputs that each node in fewer bits causes by itself, relative to the signal.
        command: the command that makes the model again; empty if the model or the data is in memory.
    """

    points: tuple[Point, ...]
    chosen: Point
    noise: Mapping[str, float]
    command: str = ""

    @property
    def bits(self) -> str:
        """The format in words, as in `the share in 8 bits`."""
        return "8 bits"

    @property
    def kept(self) -> tuple[str, ...]:
        """The nodes that stay in float, as the command names them."""
        return self.chosen.excluded


@dataclass
class Trials:
    """Tries sets of nodes in float, each once, and none beyond a budget.

    Attributes:
        attempt: makes a model with some nodes in float, and measures it.
        runs: the most attempts.
        points: the trials by their nodes, in their order.
        best: the trial with the most work in fewer bits of those that hold, the most accurate of several.
    """

    attempt: Callable[[Sequence[str]], Point]
    runs: int
    tell: Progress
    points: dict[frozenset[str], Point] = field(default_factory=dict)
    best: Point | None = None

    def __call__(self, excluded: Sequence[str]) -> Point:
        """Return the trial of some nodes in float."""
        key = frozenset(excluded)
        if key not in self.points:
            if len(self.points) >= self.runs:
                return Point(tuple(excluded), failure="no run is left")
            self.tell(f"trial {len(self.points) + 1} of at most {self.runs}: {counted(len(key), 'node')} in float")
            self.points[key] = point = self.attempt(excluded)
            if self.improves(point):
                self.best = point
        return self.points[key]

    def improves(self, point: Point) -> bool:
        """Return whether a trial is better than the best one."""
        known = self.best or Point(())
        return point.passed and point.share > 0 and (point.share, -point.missing) > (known.share, -known.missing)

    def place(
        self,
        costs: Mapping[str, float],
        noise: Mapping[str, float],
        trial: Callable[[Sequence[str]], Point],
        first: Point,
        near: float,
        target: float | None = None,
    ) -> None:
        """Search for the nodes that must stay in float for the model to hold; the result is the best trial.

        Args:
            costs: the share of the work of each node.
            noise: the noise that each node causes by itself; without an entry it was not measured.
            trial: tries nodes of ``costs``, beside others.
            first: the trial with none of them, which does not hold.
            near: the share of the work for which no further trial is made.
            target: the noise that may be left; by default it follows from the first trial.
        """
        needed = [name for name in costs if math.isinf(noise.get(name, 0.0))]
        first = trial(needed) if needed else first
        if first.passed:
            return
        free = {name: cost for name, cost in costs.items() if name not in needed}
        points = frontier(free, noise)
        if target is None and first.noise is not None and 0 < first.noise < math.inf:
            target = points[0].noise / first.noise

        def judged(products: Sequence[str]) -> tuple[bool, float | None]:
            point = trial([*needed, *products])
            return point.passed, point.noise

        cheapest(points, lambda point: judged(point.products), target, near)
        self._put_back(free, noise, needed, near, trial)

    def _put_back(
        self,
        costs: Mapping[str, float],
        noise: Mapping[str, float],
        needed: Sequence[str],
        near: float,
        trial: Callable[[Sequence[str]], Point],
    ) -> None:
        """Take each node of the best trial out of float that is worth it, unless that is known or predicted to fail."""
        if self.best is None:
            return
        kept = [name for name in self.best.excluded if name in costs]
        for name in sorted(kept, key=costs.__getitem__, reverse=True):
            fewer = [other for other in kept if other != name]
            if costs[name] < near or self._failed(fewer) or self._predicted(costs, noise, fewer) > _FAR:
                continue
            if trial([*needed, *fewer]).passed:
                kept = fewer

    def _failed(self, nodes: Sequence[str]) -> bool:
        """Return whether more nodes in float have failed."""
        return any(not point.passed and set(nodes) <= key for key, point in self.points.items())

    def _predicted(self, costs: Mapping[str, float], noise: Mapping[str, float], excluded: Sequence[str]) -> float:
        """Return the noise that is predicted, from that of the best trial; 0 if nothing predicts it."""
        assert self.best is not None

        def left(nodes: Sequence[str]) -> float:
            return sum(noise.get(name, 0.0) for name in costs if name not in nodes)

        known, measured = left(self.best.excluded), self.best.noise
        return left(excluded) / known * measured if known and measured is not None else 0.0
