"""The search for the most work that runs in 8 bits at an accuracy that is held over a dataset (``quantize --min``).

The search is that of `onnx_bridge.placement.placement`. Each trial is a whole quantization without some nodes, whose
metrics are measured on ONNX Runtime: what is found is what the quantizer makes again if these nodes are excluded. Its
work in 8 bits is what MIGraphX is forecast to run so, in multiply-adds.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, Protocol, TypeVar

import onnx_ir as ir

from onnx_bridge.conversion.cleaning import clean
from onnx_bridge.core.errors import InputError
from onnx_bridge.core.progress import Progress
from onnx_bridge.core.third_party import shorten
from onnx_bridge.model.int8_forecast import forecast
from onnx_bridge.placement.frontier import UNMEASURED
from onnx_bridge.placement.placement import NOISE, Placement, Point, Trials
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


@dataclass(frozen=True, kw_only=True)
class Assignment(Placement):
    """The result of a search.

    Attributes:
        samples: the number of samples that metrics were measured on: the rows of all batches.
        batches: the number of batches.
        exclude: the nodes and operators to exclude, with which the model is made again.
    """

    in_json = ("runs",)

    samples: int
    batches: int
    exclude: tuple[str, ...] = ()

    @property
    def runs(self) -> int:
        """The number of quantizations."""
        return len(self.points)

    @property
    def kept(self) -> tuple[str, ...]:
        return self.exclude


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
    """

    prepared: Prepared
    original: Reference
    attempt: Callable[[Sequence[str]], _M]
    noise: Callable[[ir.Model], Mapping[str, float]]
    data: Dataset
    least: Mapping[str, float]
    runs: int
    tell: Progress
    _best: _M | None = None
    _whole: _M | None = None

    def __post_init__(self) -> None:
        self._trials = Trials(self._trial, self.runs, self.tell)

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
        self._whole = whole
        first = self._trials(excluded)
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
                noises[source] = noises.get(source, 0.0) + noise.get(result, UNMEASURED)
            elif node.op_type in PRODUCTS or node.op_type not in operators("exact"):
                base.append(source)  # what gains nothing in 8 bits only costs accuracy

        def trial(products: Sequence[str]) -> Point:
            point = self._trials([*base, *products])
            expected = first.share - sum(costs[name] for name in products)
            if point.failure is not None or point.share < expected - _ROUNDING:  # it did gain something
                base[:] = excluded
                point = self._trials([*base, *products])
            return point

        if first.passed:
            trial(())
        else:
            target = min((NOISE[name](least) for name, least in self.least.items() if name in NOISE), default=None)
            self._trials.place(costs, noises, trial, first, _NEAR, target)
        points, chosen = tuple(self._trials.points.values()), self._trials.best
        if chosen is None or self._best is None:
            raise self._failure(points)
        exclude = self._exclude(chosen.excluded)
        assignment = Assignment(
            points=points, chosen=chosen, noise=noise, samples=samples, batches=batches, exclude=exclude
        )
        return assignment, self._best

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

    def _trial(self, excluded: Sequence[str]) -> Point:
        """Quantize without some nodes, and measure; the model is kept if it is the best one."""
        made, self._whole = self._whole, None
        try:
            made = made or self.attempt(excluded)
            share = share_in_8_bits(made.model)[0]
            point = Point(tuple(excluded), share, self._scores(Reference(made.model)))
        except InputError as error:
            point = Point(tuple(excluded), failure=error.what)
        if self._trials.improves(point):
            made, self._best = self._best, made
        if made is not None:
            shutil.rmtree(made.folder)
        return point

    def _scores(self, quantized: Reference) -> tuple[Score, ...]:
        scores = Scores((), self.least, _FLOAT)
        for sample, label in self.data:
            scores.add(_QUANTIZED, quantized.run(sample), self.original.run(sample), label)
        return scores.result()

    def _failure(self, points: Sequence[Point]) -> InputError:
        nearest = min(points, key=lambda point: point.missing)
        reached = ", ".join(f"{score.metric} {score.shown}" for score in nearest.scores)
        asked = ", ".join(f"{name} {value:g}" for name, value in self.least.items())
        what = f"no quantization in {counted(len(points), 'run')} reaches {asked}"
        if reached:
            names = shorten(", ".join(nearest.excluded)) or "nothing"
            what += f"; the nearest has {reached}, {nearest.share:.0%} of the work in 8 bits, with {names} in float"
        return InputError(what, where="least", hint="ask for less, give more `runs`, or another scheme or algorithm")
