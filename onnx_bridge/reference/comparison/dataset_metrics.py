"""Metrics over a dataset, one sample at a time: of what a model computes against labels, or against the reference.

    for each sample:  metric.add(actual, expected, label)
    metric.value

Positions that are NaN, or the same Inf, on both sides are left out of ``cosine`` and ``sqnr``. A number that is NaN on
one side only makes their value NaN, which is below every minimum.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections import Counter
from typing import ClassVar

import numpy as np

from onnx_bridge.core.errors import InputError, nearest
from onnx_bridge.core.values import Array
from onnx_bridge.reference.comparison.tolerances import is_float

_MATCHED = 1000
"""The most boxes of a sample that are matched; more are those of a dense head, each in its place."""


class Metric(ABC):
    """One metric of one output.

    Attributes:
        name: as users give it.
        unit: the unit of its value; empty for a share.
        falls: whether less is better: what is asked for is then the most that it may be.
        labelled: whether it was computed against labels.
    """

    name: ClassVar[str]
    unit: ClassVar[str] = ""
    falls: ClassVar[bool] = False
    labelled: bool = False

    @classmethod
    def applies(cls, name: str, expected: Array, label: Array | None) -> bool:
        """Return whether an output, of a name, has this metric; by default, if it has numbers."""
        return is_float(expected.dtype) or expected.dtype.kind in "iu"

    @abstractmethod
    def add(self, actual: Array, expected: Array, label: Array | None) -> None:
        """Add one sample; both arrays have the same shape, except for boxes."""

    @property
    @abstractmethod
    def value(self) -> float:
        """The value over all samples so far; NaN without any."""


class _TopK(Metric):
    """Top-k accuracy: the share of rows whose right class has fewer than k classes above it.

        Σ_rows [ |{c : actual[c] > actual[right]}| < k ] / rows

    The right class is the label, or without labels the best class of the reference (of several, the best placed). Rows
    are those of ``[rows, classes]``, or of a last axis of classes if there is a label for each, or if the output is
    named ``logits``. A NaN is no best class.
    """

    k: ClassVar[int]

    def __init__(self) -> None:
        self._right, self._rows = 0, 0

    @classmethod
    def applies(cls, name: str, expected: Array, label: Array | None) -> bool:
        if not is_float(expected.dtype) or expected.ndim < 1 or expected.shape[-1] <= cls.k:
            return False
        labelled = label is not None and label.size == expected.size // expected.shape[-1]
        return expected.ndim == 2 or labelled or (expected.ndim > 2 and "logits" in name.lower())

    def add(self, actual: Array, expected: Array, label: Array | None) -> None:
        classes = expected.shape[-1]
        rows, right = (array.reshape(-1, classes).astype(np.float64) for array in (actual, expected))
        if label is None:
            right = np.where(np.isnan(right), -np.inf, right)
            chosen = right == right.max(axis=1, keepdims=True)
        else:
            chosen = np.arange(classes) == _classes_of(label, rows)[:, None]
            self.labelled = True
        best = np.where(chosen & ~np.isnan(rows), rows, -np.inf).max(axis=1, keepdims=True)
        valid = (chosen & ~np.isnan(rows)).any(axis=1)
        self._right += int(np.count_nonzero(((rows > best).sum(axis=1) < self.k) & valid))
        self._rows += len(rows)

    @property
    def value(self) -> float:
        return self._right / self._rows if self._rows else math.nan


class Top1(_TopK):
    """Top-1 accuracy (`_TopK` with k = 1)."""

    name, k = "top1", 1


class Top5(_TopK):
    """Top-5 accuracy (`_TopK` with k = 5)."""

    name, k = "top5", 5


class Perplexity(Metric):
    """The perplexity of labels, such as the next token of a text: e to the mean of their negative log-probabilities.

    exp( −Σ_rows ln softmax(actual)[label] / rows )
    """

    name, falls, labelled = "perplexity", True, True

    def __init__(self) -> None:
        self._sum, self._rows = 0.0, 0

    @classmethod
    def applies(cls, name: str, expected: Array, label: Array | None) -> bool:
        wide = is_float(expected.dtype) and expected.ndim > 1
        return wide and label is not None and label.size == expected.size // expected.shape[-1]

    def add(self, actual: Array, expected: Array, label: Array | None) -> None:
        assert label is not None
        rows = actual.reshape(-1, actual.shape[-1]).astype(np.float64)
        with np.errstate(invalid="ignore"):  # of infinities
            rows = rows - rows.max(axis=1, keepdims=True)
            logs = rows[np.arange(len(rows)), _classes_of(label, rows)] - np.log(np.exp(rows).sum(axis=1))
        self._sum, self._rows = self._sum + float(logs.sum()), self._rows + len(rows)

    @property
    def value(self) -> float:
        with np.errstate(over="ignore"):
            return float(np.exp(-self._sum / self._rows)) if self._rows else math.nan


class Cosine(Metric):
    """The mean over samples of the cosine of the angle between both outputs, as vectors.

        mean_samples  Σ actual·expected / √(Σ actual² · Σ expected²)

    1 if both are zero, and 0 if one is.
    """

    name = "cosine"

    def __init__(self) -> None:
        self._sum, self._samples = 0.0, 0

    def add(self, actual: Array, expected: Array, label: Array | None) -> None:
        output, wanted = _comparable(actual, expected)
        lengths = math.sqrt(float(output @ output)) * math.sqrt(float(wanted @ wanted))
        self._sum += float(output @ wanted) / lengths if lengths else float(not output.any() and not wanted.any())
        self._samples += 1

    @property
    def value(self) -> float:
        return self._sum / self._samples if self._samples else math.nan


class Sqnr(Metric):
    """The signal to quantization noise ratio in dB, over all elements of all samples.

        10 · log₁₀( Σ expected² / Σ (actual − expected)² )

    Inf without noise.
    """

    name, unit = "sqnr", "dB"

    def __init__(self) -> None:
        self._signal, self._noise, self._seen = 0.0, 0.0, False

    def add(self, actual: Array, expected: Array, label: Array | None) -> None:
        output, wanted = _comparable(actual, expected)
        self._signal += float(wanted @ wanted)
        self._noise += float((output - wanted) @ (output - wanted))
        self._seen = True

    @property
    def value(self) -> float:
        if not self._seen or math.isnan(self._signal + self._noise):
            return math.nan
        if not self._noise:
            return math.inf
        return 10 * math.log10(self._signal / self._noise) if self._signal else -math.inf


class Iou(Metric):
    """Intersection over union, of masks or of boxes.

    Masks: integers of three dimensions or more, or bools, are classes; of floats ``[N, C, H, W]`` the best of C
    classes, or, for C = 1, whether they are above 0.5, or above 0 if the reference has numbers outside of 0 to 1.
    Over all samples, and then the mean over the classes that either side has:

        mean_c  Σ |actual = c ∧ right = c| / Σ |actual = c ∨ right = c|

    Right is the label if it has the shape of the mask, else the reference.

    Boxes: floats ``[…, 4]`` of corners (x1, y1, x2, y2). Up to 1000 boxes of a sample are matched one to one with the
    reference's, the pair with the largest intersection over union first; more boxes are paired by position. The value
    is the sum over all pairs, divided by the larger number of boxes. Boxes without an area are left out.
    """

    name = "iou"

    def __init__(self) -> None:
        self._both: Counter[int] = Counter()
        self._either: Counter[int] = Counter()
        self._sum, self._boxes = 0.0, 0

    @classmethod
    def applies(cls, name: str, expected: Array, label: Array | None) -> bool:
        if is_float(expected.dtype):
            return expected.ndim >= 2 and (expected.shape[-1] == 4 or expected.ndim == 4)
        return expected.dtype.kind == "b" or (expected.dtype.kind in "iu" and expected.ndim >= 3)

    def add(self, actual: Array, expected: Array, label: Array | None) -> None:
        if is_float(expected.dtype) and expected.shape[-1] == 4:
            total, count = _box_iou(actual.reshape(-1, 4), expected.reshape(-1, 4))
            self._sum, self._boxes = self._sum + total, self._boxes + count
            return
        mask, right = _classes(actual, expected), _classes(expected, expected)
        if label is not None and label.size == right.size:
            right, self.labelled = label.reshape(right.shape), True
        for kind in np.union1d(mask, right):
            ours, wanted = mask == kind, right == kind
            self._both[int(kind)] += int(np.count_nonzero(ours & wanted))
            self._either[int(kind)] += int(np.count_nonzero(ours | wanted))

    @property
    def value(self) -> float:
        if self._either:
            return sum(self._both[kind] / total for kind, total in self._either.items()) / len(self._either)
        return self._sum / self._boxes if self._boxes else math.nan


METRICS: dict[str, type[Metric]] = {metric.name: metric for metric in (Top1, Top5, Cosine, Sqnr, Iou, Perplexity)}
"""The metrics by name."""


def metric_of(name: str) -> type[Metric]:
    """Return the metric of a name; raises InputError if there is none."""
    if name not in METRICS:
        hint = nearest(name, METRICS) or f"there are {', '.join(METRICS)}"
        raise InputError(f"the metric {name!r} does not exist", where="metric", hint=hint)
    return METRICS[name]


def _classes_of(label: Array, rows: Array) -> Array:
    """Return the class of each row; raises InputError if labels do not fit."""
    if label.size != len(rows):
        raise InputError(f"there are {label.size} labels for {len(rows)} rows", where="labels")
    flat, classes = label.reshape(-1).astype(np.int64), rows.shape[1]
    if flat.size and not 0 <= flat.min() <= flat.max() < classes:
        what = f"the labels are from {flat.min()} to {flat.max()}, and the model has {classes} classes"
        raise InputError(what, where="labels", hint="give numbers of classes from 0")
    return flat


def _comparable(actual: Array, expected: Array) -> tuple[Array, Array]:
    """Return both as vectors of float64, without the positions that are not finite in the same way."""
    output, wanted = (array.reshape(-1).astype(np.float64) for array in (actual, expected))
    kept = ~((np.isnan(output) & np.isnan(wanted)) | (np.isinf(output) & (output == wanted)))
    return (output, wanted) if kept.all() else (output[kept], wanted[kept])


def _classes(array: Array, expected: Array) -> Array:
    """Return a mask of class numbers."""
    if not is_float(array.dtype):
        return array.astype(np.int64)
    if array.shape[1] > 1:
        return np.asarray(array.astype(np.float64).argmax(axis=1))
    probable = bool(((expected >= 0) & (expected <= 1)).all())
    return np.asarray(array[:, 0] > (0.5 if probable else 0)).astype(np.int64)


def _box_iou(actual: Array, expected: Array) -> tuple[float, int]:
    """Return the sum of the intersections over unions of paired boxes, and the larger number of boxes."""
    boxes, others = actual.astype(np.float64), expected.astype(np.float64)
    if max(len(boxes), len(others)) > _MATCHED and len(boxes) == len(others):
        some = (_areas(boxes) > 0) | (_areas(others) > 0)
        return float(_overlaps(boxes[some], others[some]).sum()), int(some.sum())
    boxes, others = boxes[_areas(boxes) > 0], others[_areas(others) > 0]
    table = _overlaps(boxes[:, None], others[None])
    total = 0.0
    for _ in range(min(len(boxes), len(others))):
        row, column = np.unravel_index(int(table.argmax()), table.shape)
        if table[row, column] <= 0:
            break
        total += float(table[row, column])
        table[row], table[:, column] = -1, -1
    return total, max(len(boxes), len(others))


def _areas(boxes: Array) -> Array:
    sides = boxes[..., 2:] - boxes[..., :2]
    return np.asarray(np.where((sides > 0).all(axis=-1), sides.prod(axis=-1), 0.0))


def _overlaps(boxes: Array, others: Array) -> Array:
    """Return the intersection over union of boxes, which broadcast."""
    low, high = np.maximum(boxes[..., :2], others[..., :2]), np.minimum(boxes[..., 2:], others[..., 2:])
    both = np.clip(high - low, 0, None).prod(axis=-1)
    either = _areas(boxes) + _areas(others) - both
    return np.asarray(np.divide(both, either, out=np.zeros_like(both), where=either > 0))
