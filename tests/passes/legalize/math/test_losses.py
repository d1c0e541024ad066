"""decompose-loss: every reduction, with and without weights and ignored labels, of all ranks."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from passes.legalize.math.losses import decompose_loss
from tests.passes.device import Device
from tests.passes.legalize.one_node import Case, case, legalized, normal, skipped

NLL, SCE = "NegativeLogLikelihoodLoss", "SoftmaxCrossEntropyLoss"
CLASSES = 5


def loss(
    operator: str,
    reduction: str = "mean",
    *,
    space: tuple[int, ...] = (),
    weighted: bool = False,
    ignore: int | None = None,
    outputs: int = 1,
    dtype: type = np.float32,
    labels: type = np.int64,
    opset: int = 13,
) -> Case:
    x = normal(3, CLASSES, *space, dtype=dtype)
    target = np.random.default_rng(1).integers(0, CLASSES, (3, *space)).astype(labels)
    if ignore is not None:
        target.reshape(-1)[::3] = ignore
    inputs = [x, target, *([abs(normal(CLASSES, dtype=dtype)) + dtype(0.1)] if weighted else [])]
    attributes = {"reduction": reduction} | ({} if ignore is None else {"ignore_index": ignore})
    return case(operator, inputs, attributes, opset=opset, outputs=outputs)


@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
def test_all_forms(reduction: str, device: Device) -> None:
    for weighted, (ignore, operator, space) in product(
        (False, True), [(None, SCE, ()), (-1, NLL, (4,)), (1, SCE, (2, 1, 3)), (10, NLL, ())]
    ):
        source = loss(operator, reduction, space=space, weighted=weighted, ignore=ignore)
        legalized(decompose_loss, source, device=device)


@pytest.mark.parametrize("space", [(), (2, 2)])
def test_logarithms_of_probabilities(space: tuple[int, ...], device: Device) -> None:
    legalized(decompose_loss, loss(SCE, space=space, outputs=2), device=device)


def test_large_scores_do_not_overflow() -> None:
    scores = np.array([[1000, 0, 999], [-1000, 0, 1]], np.float32)
    legalized(decompose_loss, case(SCE, [scores, np.array([0, 0])], opset=13, outputs=2))


def test_an_ignored_score_may_be_infinite(device: Device) -> None:
    scores = np.array([[0.5, -np.inf], [0.5, 0.25]], np.float32)
    source = case(NLL, [scores, np.array([1, 1])], {"ignore_index": 1, "reduction": "none"}, opset=13)
    legalized(decompose_loss, source, [np.zeros(2, np.float32)], device=device)


def test_dtypes_and_opsets(device: Device) -> None:
    legalized(decompose_loss, loss(SCE, labels=np.int32, space=(2,), outputs=2, opset=12), device=device)
    legalized(decompose_loss, loss(NLL, dtype=np.float64, weighted=True, opset=22), device=device)
    legalized(decompose_loss, loss(SCE, dtype=np.float16), atol=2e-3, rtol=2e-3)


def test_without_weights() -> None:
    assert "Mul" not in legalized(decompose_loss, loss(NLL, ignore=1))
    assert legalized(decompose_loss, loss(NLL, "sum")).count("ReduceSum") == 2


def test_other_operators_are_unchanged() -> None:
    assert skipped(decompose_loss, case("LogSoftmax", [normal(2, 3)])) == []


@settings(max_examples=20, deadline=None)
@given(data=st.data())
def test_any_form(data: st.DataObject) -> None:
    source = loss(
        data.draw(st.sampled_from([NLL, SCE])),
        data.draw(st.sampled_from(["none", "mean", "sum"])),
        space=tuple(data.draw(st.lists(st.integers(1, 3), max_size=3))),
        weighted=data.draw(st.booleans()),
        ignore=data.draw(st.one_of(st.none(), st.integers(-5, 9))),
        dtype=data.draw(st.sampled_from([np.float32, np.float64])),
        labels=data.draw(st.sampled_from([np.int32, np.int64])),
    )
    legalized(decompose_loss, source)
