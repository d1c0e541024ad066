"""Scores: metrics of the outputs of several sides over a dataset, against labels or the reference."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from onnx_bridge.core.errors import InputError
from onnx_bridge.core.schema import JsonRecord
from onnx_bridge.core.values import Array, Value, flat
from onnx_bridge.reference.comparison.dataset_metrics import Metric, metric_of


@dataclass(frozen=True)
class Score(JsonRecord):
    """The value of one metric of one output.

    Attributes:
        side: what computes it: the reference, or what is compared with it.
        value: NaN if one side is NaN.
        unit: the unit of the value; empty for a share.
        against: what it was computed against: ``labels`` or ``reference``.
        least: what it must be, or the most that a metric may be that falls; None if nothing was asked for, and for the
            reference.
    """

    in_json = ("passed",)

    side: str
    output: str
    metric: str
    value: float
    unit: str = ""
    against: str = "reference"
    least: float | None = None

    @property
    def passed(self) -> bool:
        return self.missing <= 0

    @property
    def falls(self) -> bool:
        """Return whether less is better."""
        return metric_of(self.metric).falls

    @property
    def missing(self) -> float:
        """The distance to what was asked for, relative to it; at most 0 if that is reached."""
        if self.least is None or self.value == self.least:
            return 0.0
        gap = (self.least - self.value) * (-1 if self.falls else 1)
        return math.inf if math.isnan(gap) else gap / (abs(self.least) or 1.0)

    @property
    def beyond(self) -> str:
        """The side of what was asked for that a value must not be on."""
        return "above" if self.falls else "below"

    @property
    def shown(self) -> str:
        if self.unit:
            return f"{self.value:.2f} {self.unit}"
        return f"{self.value:.6g}"


class Scores:
    """Collects metrics, sample by sample; the side named ``reference`` has scores against labels alone."""

    def __init__(self, names: Sequence[str], least: Mapping[str, float], reference: str) -> None:
        self._kinds = {name: metric_of(name) for name in dict.fromkeys((*names, *least))}
        if not self._kinds:
            raise InputError("no metric was asked for", where="metrics", hint="as `metrics=('top1', 'cosine')`")
        self._least, self._reference = least, reference
        self._scores: dict[tuple[str, str, str], Metric] = {}

    def add(self, side: str, actual: Mapping[str, Value], expected: Mapping[str, Value], label: Array | None) -> None:
        """Add the outputs of one sample.

        Args:
            actual: the outputs; paired with those expected by name, or by position if names differ.
            label: the labels of the sample; they belong to the first output that has the metric.

        Raises:
            InputError: an output is missing or has another shape, or the labels do not fit.
        """
        outputs, right = flat(actual), flat(expected)
        if outputs.keys() != right.keys() and len(outputs) == len(right):
            outputs = dict(zip(right, outputs.values(), strict=True))
        for metric, kind in self._kinds.items():
            given = label
            for name, array in right.items():
                if not kind.applies(name, array, given):
                    continue
                if name not in outputs or (outputs[name].shape != array.shape and array.shape[-1:] != (4,)):
                    shape = list(outputs[name].shape) if name in outputs else "missing"
                    what = f"the shape is {shape} on {side}, and {list(array.shape)} in the reference"
                    raise InputError(what, where=f"output {name!r}")
                if side != self._reference or given is not None:
                    self._scores.setdefault((side, name, metric), kind()).add(outputs[name], array, given)
                given = None

    def result(self) -> tuple[Score, ...]:
        """Return the scores of each side, output and metric; raises InputError if a metric applies to no output."""
        for name in self._kinds:
            if all(metric != name for _, _, metric in self._scores):
                what = "the metric applies to no output of the model"
                raise InputError(
                    what, where=f"metric {name}", hint="`onnx_bridge.reference.comparison.dataset_metrics` defines it"
                )
        return tuple(
            Score(
                side,
                output,
                name,
                score.value,
                score.unit,
                "labels" if score.labelled else "reference",
                None if side == self._reference else self._least.get(name),
            )
            for (side, output, name), score in self._scores.items()
            if side != self._reference or score.labelled
        )
