"""select-triangle: Trilu with a computed diagonal."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from passes.legalize.tensor.triangles import select_triangle
from tests.passes.device import Device
from tests.passes.harness import operators
from tests.passes.legalize.indexing import declared, left, legal, numbers


@pytest.mark.parametrize("dtype", ["float32", "float64", "int64", "bool"])
def test_a_computed_diagonal(device: Device, dtype: str) -> None:
    x = numbers((2, 3, 4), dtype)
    inputs = {"x": x, "k": np.array(1)}
    result = legal(select_triangle, device, "y = Trilu(x, k)", inputs, declared("y", x))
    made = ["Not", "And"] if dtype == "bool" else ["Where"]
    assert operators(result.model) == ["Reshape", "Less", *made]


def test_the_main_diagonal_by_default(device: Device) -> None:
    result = legal(select_triangle, device, "y = Trilu<upper = 0>(x)", {"x": numbers((3, 4))}, "float[3,4] y")
    assert operators(result.model) == ["Greater", "Where"]


def test_open_dimensions() -> None:
    (reason,) = left(select_triangle, "(float[n,4] x, int64 k) => (float[n,4] y) { y = Trilu(x, k) }")
    assert "freeze the dimensions" in reason


@settings(max_examples=20, deadline=None)
@given(st.data())
def test_any_triangle(device: Device, data: st.DataObject) -> None:
    shape = tuple(data.draw(st.lists(st.integers(1, 4), min_size=2, max_size=4)))
    x = numbers(shape, data.draw(st.sampled_from(["float32", "float64", "int64", "bool"])))
    upper = data.draw(st.sampled_from([0, 1]))
    k = np.array(data.draw(st.integers(-6, 6)))
    legal(select_triangle, device, f"y = Trilu<upper = {upper}>(x, k)", {"x": x, "k": k}, declared("y", x))
