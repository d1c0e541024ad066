"""count-range, evaluate-window and constant-eye."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from passes.legalize.tensor.generators import constant_eye, count_range, evaluate_window
from tests.passes.device import Device
from tests.passes.harness import Array, operators
from tests.passes.legalize.indexing import declared, left, legal, numbers


def scalars(start: float, limit: float, delta: float, dtype: str = "float32") -> dict[str, Array]:
    return {name: np.array(each, dtype) for name, each in zip("sld", (start, limit, delta), strict=True)}


@pytest.mark.parametrize("dtype", ["float32", "float64", "int16", "int32", "int64"])
def test_ranges_that_are_computed(device: Device, dtype: str) -> None:
    inputs = scalars(7, -2, -3, dtype)
    result = legal(count_range, device, "y = Range(s, l, d)", inputs, declared("y", np.zeros(3, dtype)))
    assert sorted(operators(result.model)) == ["Add", "Mul", "Reshape", "Reshape"]


@pytest.mark.parametrize(("bounds", "count"), [((0, 5, 2), 3), ((5, 0, -1), 5), ((3, 3, 1), 0), ((3, 1, 1), 0)])
def test_ranges_of_constants(device: Device, bounds: tuple[int, int, int], count: int) -> None:
    result = legal(count_range, device, "y = Range(s, l, d)", {}, f"float[{count}] y", **scalars(*bounds))
    assert ("Identity" in operators(result.model)) == (count == 0)


def test_unknown_ranges() -> None:
    (reason,) = left(count_range, "(float s, float l, float d) => (float[n] y) { y = Range(s, l, d) }")
    assert reason == "the start is not constant: freeze it with --freeze s=VALUE"
    text = "(float l) => (float[n] y) { y = Range(s, l, s) }"
    (reason,) = left(count_range, text, s=np.float32(1))
    assert reason == "the limit is not constant: freeze it with --freeze l=VALUE"
    (reason,) = left(count_range, f"(int64 s) => (int64[{2**62}] y) {{ y = Range(s, s, s) }}")
    assert "steps" in reason


@pytest.mark.parametrize("periodic", [0, 1])
@pytest.mark.parametrize("operator", ["HannWindow", "HammingWindow", "BlackmanWindow"])
def test_windows(device: Device, operator: str, periodic: int) -> None:
    nodes = f"w = {operator}<periodic = {periodic}>(n) y = Mul(x, w)"
    result = legal(evaluate_window, device, nodes, {"x": numbers((5,))}, "float[5] y", n=np.array(5))
    assert operators(result.model) == ["Mul"]
    nodes = f"y = {operator}<periodic = {periodic}, output_datatype = 11>(n)"
    legal(evaluate_window, device, nodes, {"n": np.array(6, np.int32)}, "double[6] y")


MEL = {"m": np.array(4), "n": np.array(16), "r": np.array(8000), "f": np.float32(0), "g": np.float32(4000)}


def test_filter_banks(device: Device) -> None:
    nodes = "w = MelWeightMatrix(m, n, r, f, g) y = MatMul(x, w)"
    result = legal(evaluate_window, device, nodes, {"x": numbers((2, 9))}, "float[2,4] y", **MEL)
    assert operators(result.model) == ["MatMul"]


def test_unknown_sizes() -> None:
    (reason,) = left(evaluate_window, "(int64 n) => (float[m] y) { y = HannWindow(n) }")
    assert reason == "the size of the output is not constant: freeze it with --freeze n=VALUE"
    constants = {name: each for name, each in MEL.items() if name != "r"}
    text = "(int64 r) => (float[9,4] y) { y = MelWeightMatrix(m, n, r, f, g) }"
    (reason,) = left(evaluate_window, text, **constants)
    assert reason == "the size of the output is not constant: freeze it with --freeze r=VALUE"


@pytest.mark.parametrize("k", [0, 1, -2, 9, -9])
@pytest.mark.parametrize(("dtype", "name"), [("", "float"), (", dtype = 7", "int64"), (", dtype = 11", "double")])
def test_eyes(device: Device, dtype: str, name: str, k: int) -> None:
    nodes, y = f"y = EyeLike<k = {k}{dtype}>(x)", f"{name}[3,4] y"
    result = legal(constant_eye, device, nodes, {"x": numbers((3, 4))}, y)
    assert operators(result.model) == ["Identity"]


def test_an_eye_of_open_dimensions() -> None:
    (reason,) = left(constant_eye, "(float[n,4] x) => (float[n,4] y) { y = EyeLike(x) }")
    assert "freeze the dimensions" in reason


@settings(max_examples=20, deadline=None)
@given(st.data())
def test_any_range(device: Device, data: st.DataObject) -> None:
    dtype = data.draw(st.sampled_from(["float32", "float64", "int16", "int32", "int64"]))
    step = st.integers(-4, 4) if dtype.startswith("int") else st.integers(-16, 16).map(lambda each: each / 4)
    start, limit, delta = data.draw(step), data.draw(step), data.draw(step.filter(bool))
    count = max(int(np.ceil((limit - start) / delta)), 0)
    inputs, constants = scalars(start, limit, delta, dtype), {}
    if data.draw(st.booleans()) or count == 0:
        inputs, constants = {}, inputs
    legal(count_range, device, "y = Range(s, l, d)", inputs, declared("y", np.zeros(count, dtype)), **constants)
