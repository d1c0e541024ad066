"""Metrics over a dataset, against their formulas."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from onnx_bridge.core.errors import InputError
from onnx_bridge.reference.comparison.dataset_metrics import METRICS, metric_of

RNG = np.random.default_rng(0)


def value(name: str, *samples: tuple[Any, Any] | tuple[Any, Any, Any]) -> float:
    metric = METRICS[name]()
    for actual, expected, *label in samples:
        metric.add(np.asarray(actual), np.asarray(expected), np.asarray(label[0]) if label else None)
    return metric.value


LOGITS = np.eye(8, dtype=np.float32)[:4]
"""Four rows whose best classes are 0 to 3."""


def test_top_k_against_labels() -> None:
    assert value("top1", (LOGITS, LOGITS, [0, 1, 2, 7])) == 0.75
    ranks = np.tile(np.arange(8, 0, -1, dtype=np.float32), (2, 1))
    assert value("top5", (ranks, ranks, [4, 5])) == 0.5
    assert value("top1", (LOGITS, LOGITS, [0, 1, 2, 7]), (LOGITS, LOGITS, [7, 7, 7, 3])) == 0.5


def test_top_k_without_labels_is_agreement() -> None:
    other = LOGITS[[0, 1, 3, 2]]
    assert value("top1", (other, LOGITS)) == 0.5
    tied = np.array([[1, 1, 0, 0, 0, 0.0]])
    assert value("top1", (np.array([[0, 1, 0, 0, 0, 0.0]]), tied)) == 1


def test_nan_is_no_best_class() -> None:
    assert value("top1", (np.full((4, 8), np.nan), LOGITS, [0, 1, 2, 3])) == 0
    assert value("top1", (np.full((4, 8), np.nan), LOGITS)) == 0


@pytest.mark.parametrize("label", [[0, 1, 2], [0, 1, 2, 8], [0, 1, 2, -1]])
def test_labels_that_do_not_fit(label: list[int]) -> None:
    with pytest.raises(InputError):
        value("top1", (LOGITS, LOGITS, label))


def test_cosine_is_the_mean_over_samples() -> None:
    assert value("cosine", ([1.0, 0], [1.0, 0]), ([0, 2.0], [1.0, 0])) == 0.5
    assert value("cosine", ([0.0], [0.0])) == 1
    assert value("cosine", ([0.0], [1.0])) == 0


def test_sqnr_is_of_all_elements() -> None:
    signal = [RNG.standard_normal(50) for _ in range(2)]
    noise = [RNG.standard_normal(50) * 1e-3 for _ in range(2)]
    found = value("sqnr", *((a + b, a) for a, b in zip(signal, noise, strict=True)))
    power = [sum(float((each**2).sum()) for each in group) for group in (signal, noise)]
    assert found == pytest.approx(10 * math.log10(power[0] / power[1]))
    assert value("sqnr", (signal[0], signal[0])) == math.inf


@pytest.mark.parametrize("name", ["cosine", "sqnr"])
def test_nan_on_one_side_is_below_every_minimum(name: str) -> None:
    assert not value(name, ([1.0, np.nan], [1.0, 2.0])) >= -math.inf
    assert value(name, ([1.0, np.nan, np.inf], [1.0, np.nan, np.inf])) >= 1


def test_iou_of_masks() -> None:
    right = np.array([[[0, 0, 1, 1]]])
    assert value("iou", (np.array([[[0, 1, 1, 1]]]), right)) == pytest.approx((1 / 2 + 2 / 3) / 2)
    probable = np.array([[[[0.9, 0.2]]]])
    assert value("iou", (np.array([[[[0.8, 0.7]]]]), probable)) == pytest.approx((1 / 2 + 0) / 2)
    wide = np.array([[[0, 0, 1, 1, 1]]])
    scores = np.stack([wide == 0, wide == 1], axis=1).astype(np.float32)
    assert value("iou", (scores, scores)) == 1
    assert value("iou", (scores, scores, np.array([[[0, 0, 0, 1, 1]]]))) == pytest.approx((2 / 3 + 2 / 3) / 2)


def test_iou_of_boxes() -> None:
    boxes = np.array([[[0, 0, 2, 2], [10, 10, 12, 12.0], [0, 0, 0, 0]]])
    assert value("iou", (boxes[:, [1, 0, 2]], boxes)) == 1
    assert value("iou", (boxes + np.array([1, 0, 1, 0]), boxes)) == pytest.approx(1 / 3)
    assert value("iou", (boxes[:, :1], boxes[:, :2])) == 0.5
    assert value("iou", (boxes[:, :0], boxes[:, :2])) == 0


def test_iou_of_many_boxes_is_by_position() -> None:
    low = RNG.uniform(0, 100, (2000, 2))
    boxes = np.concatenate([low, low + 5], axis=1)[None].astype(np.float32)
    assert value("iou", (boxes, boxes)) == pytest.approx(1)
    assert value("iou", (boxes[:, ::-1], boxes)) < 0.1


def test_which_outputs_have_a_metric() -> None:
    def applies(name: str, shape: tuple[int, ...], dtype: str = "float32", output: str = "y") -> bool:
        return METRICS[name].applies(output, np.zeros(shape, dtype), None)

    assert applies("top1", (2, 10))
    assert applies("top1", (2, 7, 10), output="logits")
    assert not applies("top5", (2, 5))
    assert not applies("top1", (2, 3, 8, 8))
    assert applies("iou", (2, 3, 8, 8))
    assert not applies("iou", (2, 10))
    assert not applies("cosine", (2, 10), "bool")


def test_a_name_that_is_none() -> None:
    with pytest.raises(InputError):
        metric_of("top2")
