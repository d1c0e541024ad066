"""The search for the most work that runs in 8 bits at an accuracy that is held over a dataset (``quantize --min``).

    everything in 8 bits ─► noise of each product, in one run ─► the sets of products that leave least noise for their
                            work ─► `cheapest`: the first of these in float, beside what gains nothing in 8 bits, with
                            which the accuracy holds ─► its products in 8 bits again, one by one, if it still holds

Each trial is a whole quantization without some nodes, whose metrics are measured on ONNX Runtime: what is found is what
the quantizer makes again if these nodes are excluded. Its work in 8 bits is what MIGraphX is forecast to run so, in
multiply-adds. Noise adds up nearly, so that the search begins where its sum reaches what was asked for, and mostly ends
after two more trials.
"""

from __future__ import annotations

import math
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Generic, Protocol, TypeVar

import onnx_ir as ir

from onnx_bridge.conversion.cleaning import clean
from onnx_bridge.core.errors import InputError
from onnx_bridge.core.progress import Progress
from onnx_bridge.core.schema import JsonRecord
from onnx_bridge.core.third_party import shorten
from onnx_bridge.model.int8_forecast import forecast
from onnx_bridge.quantization import frontier
from onnx_bridge.quantization.prepare import Prepared
from onnx_bridge.reference.comparison.scores import Score, Scores
from onnx_bridge.reference.reference import Reference
from onnx_bridge.samples.dataset import Dataset
from onnx_bridge.samples.files import count
from passes.core.text import counted
from passes.graphs import lineage
from passes.graphs.cost import estimate
from passes.graphs.int8_kernels import PRODUCTS
from passes.operators import operators

_FLOAT, _QUANTIZED = "float", "quantized"
_NEAR = 0.02
"""The share of the work for which no further trial is made."""
_ROUNDING = 1e-6


@dataclass(frozen=True)
class Point(JsonRecord):
    """One trial.

    Attributes:
        excluded: the nodes that stayed in float.
        share: the share of the multiply-adds that run in 8 bits, from 0 to 1.
        scores: the metrics that were asked for.
        failure: why the quantizer made no model; None if it made one.
    """

    in_json = ("passed",)

    excluded: tuple[str, ...]
    share: float = 0.0
    scores: tuple[Score, ...] = ()
    failure: str | None = None

    @property
    def passed(self) -> bool:
        """Return whether the accuracy holds."""
        return self.failure is None and all(score.passed for score in self.scores)

    @property
    def missing(self) -> float:
        """The distance of the worst score from its minimum, relative to it; below 0 if all reach theirs."""
        return max((score.missing for score in self.scores), default=math.inf)


@dataclass(frozen=True)
class Assignment(JsonRecord):
    """The result of a search.

    Attributes:
        points: all trials, in their order.
        chosen: the one with the most work in 8 bits of those that hold.
        noise: the noise of each product in 8 bits, relative to its signal, by the name of its result.
        samples: the number of samples that metrics were measured on: the rows of all batches.
        batches: the number of batches.
        exclude: the nodes and operators to exclude, with which the model is made again.
        command: the command that does; empty if the model or the data is in memory.
    """

    in_json = ("runs",)

    points: tuple[Point, ...]
    chosen: Point
    noise: Mapping[str, float]
    samples: int
    batches: int
    exclude: tuple[str, ...] = ()
    command: str = ""

    @property
    def runs(self) -> int:
        """The number of quantizations."""
        return len(self.points)


def share_in_8_bits(model: ir.Model) -> tuple[float, Mapping[str, float]]:
    """Return the share of the multiply-adds that MIGraphX will run in 8 or 4 bits, and that of each of their results.

    Results are known by their names, and by those of the nodes that they stand for.
    """
    cleaned = clean(model, pipeline="quantized").model
    nodes = {str(node.name): node for node in cleaned.graph.all_nodes()}
    products = forecast(cleaned).products
    total = sum(estimate(nodes[product.node]) for product in products) or 1
    low = 0
    shares: dict[str, float] = {}
    for product in products:
        node = nodes[product.node]
        if product.kernel != "float":
            low += estimate(node)
            shares |= dict.fromkeys((str(node.outputs[0].name), *lineage.origin(node)), estimate(node) / total)
    return low / total, shares


_NOISE: Mapping[str, Callable[[float], float]] = {
    "sqnr": lambda value: 10 ** (-value / 10),
    "cosine": lambda value: max(2 * (1 - value), 1e-12),
}
"""The noise, relative to the signal, at a value of the metrics that tell it."""


class _Made(Protocol):
    """A quantized model in a folder of its own."""

    @property
    def model(self) -> ir.Model: ...

    @property
    def folder(self) -> Path: ...


_M = TypeVar("_M", bound=_Made)


@dataclass
class Search(Generic[_M]):
    """Searches for the nodes that must stay in float.

    Attributes:
        original: runs the float model.
        attempt: quantizes without some nodes of the user's model; raises InputError if that fails.
        noise: returns the noise of the products of a quantized model, by the names of their results.
        data: the dataset of the metrics.
        least: what metrics must reach.
        runs: the most quantizations.
        best: the point with the most work in 8 bits of those that hold, the most accurate of several, and its model.
    """

    prepared: Prepared
    original: Reference
    attempt: Callable[[Sequence[str]], _M]
    noise: Callable[[ir.Model], Mapping[str, float]]
    data: Dataset
    least: Mapping[str, float]
    runs: int
    tell: Progress
    points: dict[frozenset[str], Point] = field(default_factory=dict)
    best: tuple[Point, _M] | None = None

    def run(self, whole: _M, excluded: Sequence[str]) -> tuple[Assignment, _M]:
        """Return the best assignment, and its model.

        Args:
            whole: the model that has the most in 8 bits.
            excluded: the nodes of the user's model that stay in float there.

        Raises:
            InputError: the float model itself, or no model that was tried, is as accurate as asked.
        """
        samples, batches = self._check_float()
        shares = share_in_8_bits(whole.model)[1]
        if not shares:
            what = "nothing would run in 8 bits: `onnx-bridge convert` says why"
            raise InputError(what, where="least", hint="choose another scheme")
        self.tell("measure the noise of each product")
        noise = self.noise(whole.model)
        first = self._trial(excluded, whole)
        costs: dict[str, float] = {}
        noises: dict[str, float] = {}
        origins, names, base = self.prepared.origins(), self.prepared.names, list(excluded)
        for node in self.prepared.graph.all_nodes():
            source = min(origins[str(node.name)])
            if source in excluded:
                continue
            name, result = (names.original(str(item.name)) for item in (node, node.outputs[0]))
            share = shares.get(name, shares.get(result))
            if share is not None:
                costs[source] = costs.get(source, 0.0) + share
                noises[source] = noises.get(source, 0.0) + noise.get(result, math.inf)
            elif node.op_type in PRODUCTS or node.op_type not in operators("exact"):
                base.append(source)  # what gains nothing in 8 bits only costs accuracy

        def trial(products: Sequence[str]) -> Point:
            point = self._trial([*base, *products])
            expected = first.share - sum(costs[name] for name in products)
            if point.failure is not None or point.share < expected - _ROUNDING:  # it did gain something
                base[:] = excluded
                point = self._trial([*base, *products])
            return point

        def judged(point: frontier.Point) -> tuple[bool, float | None]:
            tried = trial(point.products)
            levels = [(_NOISE[score.metric], score) for score in tried.scores if score.metric in _NOISE]
            return tried.passed, max(
                (level(score.value) / level(score.least or 0.0) for level, score in levels), default=None
            )

        target = min((_NOISE[name](least) for name, least in self.least.items() if name in _NOISE), default=None)
        if first.passed:
            trial(())
        else:
            points = frontier.frontier(costs, noises)
            frontier.cheapest(points, judged, target, _NEAR)
            self._put_back(costs, lambda products: trial(products).passed)
        if self.best is None:
            raise self._failure()
        chosen, model = self.best
        exclude = self._exclude(chosen.excluded)
        return Assignment(tuple(self.points.values()), chosen, noise, samples, batches, exclude), model

    def _put_back(self, costs: Mapping[str, float], holds: Callable[[Sequence[str]], bool]) -> None:
        """Quantize each product of the best point again that is worth it, unless more in float has failed."""
        if self.best is None:
            return
        kept = [name for name in self.best[0].excluded if name in costs]
        for name in sorted(kept, key=costs.__getitem__, reverse=True):
            fewer = [other for other in kept if other != name]
            failed = any(not point.passed and set(fewer) <= nodes for nodes, point in self.points.items())
            if costs[name] > _NEAR and not failed and holds(fewer):
                kept = fewer

    def _exclude(self, nodes: Sequence[str]) -> tuple[str, ...]:
        """Return nodes as the user excludes them: operators, if all of their nodes are among them, and nodes."""
        excluded = set(self.prepared.named(nodes))
        by_kind: dict[str, list[str]] = {}
        for name, kind in self.prepared.operators.items():
            by_kind.setdefault(kind, []).append(name)
        covered = {kind: set(self.prepared.named(names)) for kind, names in by_kind.items()}
        kinds = [kind for kind, neutral in covered.items() if len(neutral) > 1 and neutral <= excluded]
        rest = excluded.difference(*(covered[kind] for kind in kinds))
        return (*sorted(kinds), *(name for name in nodes if not rest.isdisjoint(self.prepared.named([name]))))

    def _check_float(self) -> tuple[int, int]:
        """Return the numbers of samples and batches of the data; raises InputError if the float model is too bad."""
        scores, counts = Scores((), self.least, _QUANTIZED), []
        for sample, label in self.data:
            counts.append(count([sample], self.data.specs))
            outputs = self.original.run(sample)
            scores.add(_FLOAT, outputs, outputs, label)
        for score in scores.result():
            if not score.passed:
                what = f"the float model itself has a {score.metric} of {score.shown}, {score.beyond} {score.least:g}"
                raise InputError(what, where="--min", hint="ask for less")
        return sum(counts), len(counts)

    def _trial(self, excluded: Sequence[str], made: _M | None = None) -> Point:
        """Quantize without some nodes, unless that is done, and measure."""
        key = frozenset(excluded)
        if key in self.points:
            return self.points[key]
        if len(self.points) >= self.runs:
            return Point(tuple(excluded), failure="no run is left")
        self.tell(f"trial {len(self.points) + 1} of at most {self.runs}: {counted(len(key), 'node')} in float")
        try:
            made = made or self.attempt(excluded)
            share = share_in_8_bits(made.model)[0]
            point = Point(tuple(excluded), share, self._scores(Reference(made.model)))
        except InputError as error:
            point = Point(tuple(excluded), failure=error.what)
        self.points[key] = point
        if made is not None:
            self._keep_best(point, made)
        return point

    def _keep_best(self, point: Point, made: _M) -> None:
        """Keep a model if it is the best one, and delete the other."""
        dropped: _M | None = made
        known = self.best[0] if self.best else Point(())
        if point.passed and point.share and (point.share, -point.missing) > (known.share, -known.missing):
            dropped, self.best = self.best[1] if self.best else None, (point, made)
        if dropped is not None:
            shutil.rmtree(dropped.folder)

    def _scores(self, quantized: Reference) -> tuple[Score, ...]:
        scores = Scores((), self.least, _FLOAT)
        for sample, label in self.data:
            scores.add(_QUANTIZED, quantized.run(sample), self.original.run(sample), label)
        return scores.result()

    def _failure(self) -> InputError:
        nearest = min(self.points.values(), key=lambda point: point.missing)
        reached = ", ".join(f"{score.metric} {score.shown}" for score in nearest.scores)
        asked = ", ".join(f"{name} {value:g}" for name, value in self.least.items())
        what = f"no quantization in {counted(len(self.points), 'run')} reaches {asked}"
        if reached:
            names = shorten(", ".join(nearest.excluded)) or "nothing"
            what += f"; the nearest has {reached}, {nearest.share:.0%} of the work in 8 bits, with {names} in float"
        return InputError(what, where="least", hint="ask for less, give more `runs`, or another scheme or algorithm")
