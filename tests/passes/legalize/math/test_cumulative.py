"""decompose-cumulative: cumulative sums and products in both directions."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from passes.legalize.math.cumulative import decompose_cumulative
from tests.passes.device import Device
from tests.passes.legalize.one_node import Case, case, legalized, normal, skipped

OPSETS = {"CumSum": 14, "CumProd": 26}


def running(operator: str, x: np.ndarray, axis: int, *, exclusive: int = 0, reverse: int = 0) -> Case:
    attributes = {"exclusive": exclusive, "reverse": reverse}
    return case(operator, [x, np.array(axis, np.int32)], attributes, constants=[1], opset=OPSETS[operator])


@pytest.mark.parametrize("operator", OPSETS)
def test_all_forms(operator: str, device: Device) -> None:
    for exclusive, reverse, axis in product((0, 1), (0, 1), (0, 1, -1)):
        legalized(
            decompose_cumulative,
            running(operator, normal(2, 5, 3), axis, exclusive=exclusive, reverse=reverse),
            device=device,
        )


def test_rounds_are_the_logarithm_of_the_length() -> None:
    assert legalized(decompose_cumulative, running("CumProd", normal(2, 9), 1)).count("Mul") == 4
    assert legalized(decompose_cumulative, running("CumSum", normal(2, 8), 1)).count("Add") == 3
    assert "Add" not in legalized(decompose_cumulative, running("CumSum", normal(2, 1), 1, exclusive=1))


@pytest.mark.parametrize("dtype", [np.int32, np.int64, np.float64, np.float16])
def test_dtypes(dtype: type, device: Device) -> None:
    legalized(
        decompose_cumulative,
        running("CumProd", normal(7, dtype=dtype), 0),
        device=device,
        atol=1e-3 if dtype == np.float16 else 0,
    )


def test_integers_wrap() -> None:
    legalized(decompose_cumulative, running("CumProd", np.full(20, 7, np.int32), 0), rtol=0, atol=0)


def test_infinities_are_kept() -> None:
    legalized(decompose_cumulative, running("CumSum", np.array([1, np.inf, 2, -np.inf, 3], np.float32), 0))


def test_skips() -> None:
    source = case("CumSum", [normal(3), np.array(0)], opset=14)
    assert skipped(decompose_cumulative, source) == ["axis is not constant: freeze it with --freeze x1=VALUE"]


@settings(max_examples=20, deadline=None)
@given(data=st.data())
def test_any_shape(data: st.DataObject) -> None:
    shape = data.draw(st.lists(st.integers(1, 6), min_size=1, max_size=3))
    axis = data.draw(st.integers(-len(shape), len(shape) - 1))
    bits = data.draw(st.tuples(st.integers(0, 1), st.integers(0, 1)))
    operator = data.draw(st.sampled_from(list(OPSETS)))
    dtype = data.draw(st.sampled_from([np.float32, np.int64]))
    legalized(
        decompose_cumulative, running(operator, normal(*shape, dtype=dtype), axis, exclusive=bits[0], reverse=bits[1])
    )
