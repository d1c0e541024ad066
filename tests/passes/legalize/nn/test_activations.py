"""Activations without overflow, and Softmax before opset 13."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from passes.legalize.nn.activations import flatten_softmax, stabilize_activation
from tests.passes.device import Device
from tests.passes.legalize.one_node import case, legalized, normal, skipped

LARGE = np.array([-1e4, -90, -20, -1e-3, 0, 1e-3, 20, 90, 1e4, np.inf, -np.inf], np.float32)


@pytest.mark.parametrize("opset", [7, 22])
def test_softplus_of_large_numbers(opset: int, device: Device) -> None:
    found = legalized(stabilize_activation, case("Softplus", [LARGE], opset=opset), device=device)
    assert found == ["Relu", "Abs", "Neg", "Exp", "Add", "Log", "Add"]


def test_softplus_of_other_dtypes() -> None:
    x = LARGE.astype(np.float64)
    legalized(stabilize_activation, case("Softplus", [x], opset=22), [np.logaddexp(x, 0)])
    legalized(stabilize_activation, case("Softplus", [LARGE.astype(np.float16)], opset=22), atol=1e-3)


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_log_softmax_of_large_numbers(axis: int, device: Device) -> None:
    legalized(stabilize_activation, case("LogSoftmax", [normal(2, 3) * 1000], {"axis": axis}), device=device)


def test_log_softmax_over_the_last_axis_of_an_old_opset() -> None:
    legalized(stabilize_activation, case("LogSoftmax", [normal(2, 3)], opset=11))
    legalized(stabilize_activation, case("LogSoftmax", [normal(2, 3, 4)], {"axis": 2}, opset=9))
    assert skipped(stabilize_activation, case("LogSoftmax", [normal(2, 3, 4)], {"axis": 1}, opset=11)) == []


@pytest.mark.parametrize("operator", ["Softmax", "LogSoftmax"])
def test_flat_rows(operator: str, device: Device) -> None:
    for axis in (None, 0, 1, 2, -1, -2):
        attributes = {} if axis is None else {"axis": axis}
        found = legalized(flatten_softmax, case(operator, [normal(2, 3, 4)], attributes, opset=11), device=device)
        assert found == ["Reshape", operator, "Reshape"]


def test_unchanged() -> None:
    assert skipped(flatten_softmax, case("Softmax", [normal(2, 3, 4)], {"axis": 1}, opset=13)) == []
    assert skipped(flatten_softmax, case("Softmax", [normal(2, 3)], opset=11)) == []
    assert skipped(stabilize_activation, case("Softmax", [normal(2, 3)])) == []
    reason = "the rewrite needs opset 7, and the model has 6: convert-opset comes first"
    assert skipped(stabilize_activation, case("Softplus", [LARGE], opset=6)) == [reason]


@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_any_axis(data: st.DataObject) -> None:
    shape = data.draw(st.lists(st.integers(1, 4), min_size=1, max_size=4))
    axis = data.draw(st.integers(-len(shape), len(shape) - 1))
    x = normal(*shape, dtype=data.draw(st.sampled_from([np.float32, np.float64]))) * 30
    source = case(data.draw(st.sampled_from(["Softmax", "LogSoftmax"])), [x], {"axis": axis}, opset=11)
    if (len(shape), axis % len(shape)) != (2, 1):
        legalized(flatten_softmax, source, atol=1e-4)
    legalized(stabilize_activation, case("LogSoftmax", [x], {"axis": axis}), atol=1e-4)
