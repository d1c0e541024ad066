"""Reductions of tensors without elements, and ReduceLogSumExp of large numbers."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import onnx_ir as ir
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from passes.legalize.math.reductions import (
    compare_hardmax,
    fold_empty_reduction,
    reverse_last_index,
    stabilize_log_sum_exp,
)
from passes.rewriting.base import Context
from tests.passes.device import Device
from tests.passes.legalize.one_node import case, legalized, normal, skipped

KINDS = ["L1", "L2", "LogSum", "LogSumExp", "Max", "Mean", "Min", "Prod", "Sum", "SumSquare"]


class TestEmptyReductions:
    @pytest.mark.parametrize("kind", KINDS)
    @pytest.mark.parametrize("keepdims", [0, 1])
    def test_of_floats(self, kind: str, keepdims: int) -> None:
        x, axes = np.zeros((2, 0, 4), np.float32), np.array([1])
        source = case(f"Reduce{kind}", [x, axes], {"keepdims": keepdims}, constants=[1], opset=20)
        assert legalized(fold_empty_reduction, source) == ["Identity"]

    @pytest.mark.parametrize("kind", ["Max", "Min", "Sum", "Prod"])
    def test_of_integers(self, kind: str) -> None:
        source = case(f"Reduce{kind}", [np.zeros((0, 3), np.int32), np.array([0])], constants=[1], opset=20)
        assert legalized(fold_empty_reduction, source) == ["Identity"]

    def test_of_integers_that_have_no_such_number(self) -> None:
        source = case("ReduceLogSum", [np.zeros((0, 3), np.int32), np.array([0])], constants=[1])
        assert skipped(fold_empty_reduction, source) == ["ReduceLogSum of no elements is undefined for INT32"]

    @pytest.mark.parametrize(("kind", "value"), [("Max", False), ("Min", True)])
    def test_of_bools(self, kind: str, value: bool) -> None:
        source = case(f"Reduce{kind}", [np.zeros((2, 0), bool), np.array([1])], {"keepdims": 0}, constants=[1])
        assert legalized(fold_empty_reduction, source, [np.array([value, value])]) == ["Identity"]

    def test_negative_axes(self) -> None:
        # ONNX Runtime forgets to reduce here
        source = case("ReduceSum", [np.zeros((2, 0, 4), np.float32), np.array([-2])], {"keepdims": 0}, constants=[1])
        assert legalized(fold_empty_reduction, source, [np.zeros((2, 4), np.float32)]) == ["Identity"]

    def test_attributes_and_defaults(self) -> None:
        x = np.zeros((2, 0), np.float32)
        assert legalized(fold_empty_reduction, case("ReduceMax", [x], {"axes": [1]}, opset=11)) == ["Identity"]
        assert legalized(fold_empty_reduction, case("ReduceMax", [x])) == ["Identity"]
        assert legalized(fold_empty_reduction, case("ReduceMax", [x, np.array([], np.int64)], constants=[1])) == [
            "Identity"
        ]

    def test_bfloat16(self) -> None:
        model = case("ReduceMax", [np.zeros((2, 0), ml_dtypes.bfloat16), np.array([1])], constants=[1]).model
        assert fold_empty_reduction.run(model, Context()).rewrites
        tensor = model.graph[0].inputs[0].const_value
        assert tensor.dtype == ir.DataType.BFLOAT16
        assert np.isneginf(tensor.numpy().astype(np.float32)).all()

    def test_skips(self) -> None:
        x = np.zeros((2, 0), np.float32)
        reason = "the result has no elements, which the runtime does not support"
        assert skipped(fold_empty_reduction, case("ReduceSum", [x, np.array([0])], constants=[1])) == [reason]
        reason = "axes is not constant: freeze it with --freeze x1=VALUE"
        assert skipped(fold_empty_reduction, case("ReduceSum", [x, np.array([0])])) == [reason]
        source = case("ReduceSum", [x, np.array([], np.int64)], {"noop_with_empty_axes": 1}, constants=[1])
        assert skipped(fold_empty_reduction, source) == [
            "the result has no elements, which the runtime does not support"
        ]

    def test_tensors_with_elements_are_unchanged(self) -> None:
        assert skipped(fold_empty_reduction, case("ReduceSum", [normal(2, 3), np.array([0])], constants=[1])) == []
        assert skipped(fold_empty_reduction, case("ReduceSum", [normal()])) == []


class TestLogSumExp:
    def test_overflow(self, device: Device) -> None:
        x = np.array([[1000, 999], [-1000, -1001], [-np.inf, 3]], np.float32)
        source = case("ReduceLogSumExp", [x, np.array([1])], {"keepdims": 0}, constants=[1])
        found = legalized(stabilize_log_sum_exp, source, device=device)
        assert found == ["ReduceMax", "Max", "Min", "Sub", "Exp", "ReduceSum", "Log", "Add", "Squeeze"]

    def test_of_infinities(self) -> None:
        x = np.array([[-np.inf, -np.inf], [np.inf, 3]], np.float32)
        legalized(stabilize_log_sum_exp, case("ReduceLogSumExp", [x, np.array([1])], constants=[1]))

    def test_integers_are_unchanged(self) -> None:
        source = case("ReduceLogSumExp", [normal(3, 4, dtype=np.int64), np.array([1])], constants=[1])
        assert skipped(stabilize_log_sum_exp, source) == []

    def test_old_opsets(self) -> None:
        legalized(stabilize_log_sum_exp, case("ReduceLogSumExp", [normal(2, 3)], {"axes": [-1]}, opset=11))

    def test_skips(self) -> None:
        reason = "axes is not constant: freeze it with --freeze x1=VALUE"
        assert skipped(stabilize_log_sum_exp, case("ReduceLogSumExp", [normal(2, 3), np.array([0])])) == [reason]
        assert skipped(stabilize_log_sum_exp, case("ReduceLogSumExp", [normal()])) == []
        source = case(
            "ReduceLogSumExp", [normal(3), np.array([], np.int64)], {"noop_with_empty_axes": 1}, constants=[1]
        )
        assert skipped(stabilize_log_sum_exp, source) == []


@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_any_axes(data: st.DataObject) -> None:
    shape = data.draw(st.lists(st.integers(1, 3), min_size=1, max_size=4))
    rank = len(shape)
    axes = data.draw(st.lists(st.integers(-rank, rank - 1), max_size=rank, unique_by=lambda axis: axis % rank))
    keepdims = data.draw(st.integers(0, 1))
    dtype = data.draw(st.sampled_from([np.float32, np.float64, np.float16]))
    given = np.array(axes, np.int64)
    source = case("ReduceLogSumExp", [normal(*shape, dtype=dtype), given], {"keepdims": keepdims}, constants=[1])
    legalized(stabilize_log_sum_exp, source, atol=1e-2 if dtype == np.float16 else 1e-5)
    empty = data.draw(st.sampled_from(axes)) if axes else 0
    shape[empty] = 0
    given = given % rank
    operator = f"Reduce{data.draw(st.sampled_from(KINDS))}"
    attributes = {"keepdims": keepdims}
    legalized(
        fold_empty_reduction, case(operator, [np.zeros(shape, np.float32), given], attributes, constants=[1], opset=20)
    )


@pytest.mark.parametrize("op_type", ["ArgMax", "ArgMin"])
@pytest.mark.parametrize("attributes", [{}, {"axis": 1}, {"axis": -1, "keepdims": 0}])
def test_the_last_of_equal_numbers(op_type: str, attributes: dict[str, int], device: Device) -> None:
    x = normal(3, 4, 5, dtype=np.int32) // 4
    for array in (x, x.astype(np.float32)):
        source = case(op_type, [array], {**attributes, "select_last_index": 1}, opset=13)
        assert legalized(reverse_last_index, source, device=device) == ["Gather", op_type, "Sub"]
    assert skipped(reverse_last_index, case(op_type, [x], attributes, opset=13)) == []


@pytest.mark.parametrize("axis", [None, 0, 1, -1])
@pytest.mark.parametrize("opset", [9, 11, 13])
def test_hardmax(axis: int | None, opset: int, device: Device) -> None:
    if opset == 9 and axis == -1:
        return  # negative axes came with opset 11
    x = np.round(normal(3, 4, 5))
    source = case("Hardmax", [x], {} if axis is None else {"axis": axis}, opset=opset)
    assert "ArgMax" in legalized(compare_hardmax, source, device=device)
