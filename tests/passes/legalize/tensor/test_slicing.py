"""normalize-slice and gather-slice: all kinds of bounds, compared with ONNX Runtime."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from passes.legalize.tensor.slicing import gather_slice, normalize_slice
from tests.passes.device import Device
from tests.passes.harness import operators
from tests.passes.legalize.indexing import DTYPES, SOME, declared, left, legal, numbers


def ints(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


LOWEST, HIGHEST = np.iinfo(np.int64).min, np.iinfo(np.int64).max


@pytest.mark.parametrize("dtype", SOME)
def test_slices_without_axes_are_of_the_first_axes(device: Device, dtype: str) -> None:
    result = legal(
        normalize_slice,
        device,
        "y = Slice(x, starts, ends)",
        {"x": numbers((4, 3, 2), dtype)},
        f"{declared('y', numbers((2, 3, 2), dtype))}",
        starts=ints(1),
        ends=ints(3),
    )
    assert operators(result.model) == ["Slice"]


@pytest.mark.parametrize(
    ("bounds", "made"),
    [
        ((-9, 2, 0, 1), ["Slice"]),
        ((1, HIGHEST, -3, 2), ["Slice"]),
        ((HIGHEST, LOWEST, 0, -1), ["Gather"]),
        ((-1, -9, 1, -2), ["Gather"]),
        ((0, LOWEST, 0, -3), ["Gather"]),
        ((0, 9, 1, 1), ["Identity"]),
        ((3, 1, 1, 1), ["Identity"]),
        ((2, 2, 0, -1), ["Identity"]),
    ],
)
def test_bounds_are_clamped(device: Device, bounds: tuple[int, ...], made: list[str]) -> None:
    names = ("starts", "ends", "axes", "steps")
    constants = {name: ints(each) for name, each in zip(names, bounds, strict=True)}
    x = numbers((4, 3, 2))
    y = "float[a,b,c] y"
    result = legal(normalize_slice, device, "y = Slice(x, starts, ends, axes, steps)", {"x": x}, y, **constants)
    assert operators(result.model) == made


def test_steps_without_axes(device: Device) -> None:
    constants = {"starts": ints(3, -1), "ends": ints(0, -9), "steps": ints(-2, -1)}
    nodes = "y = Slice(x, starts, ends, , steps)"
    result = legal(normalize_slice, device, nodes, {"x": numbers((4, 3))}, "float[a,b] y", **constants)
    assert operators(result.model) == ["Gather", "Gather"]


def test_attributes_of_old_opsets(device: Device) -> None:
    nodes = "y = Slice<starts = [-3], ends = [100]>(x)"
    result = legal(normalize_slice, device, nodes, {"x": numbers((4, 3))}, "float[3,3] y", opset=9)
    assert operators(result.model) == ["Slice"]


def test_unambiguous_operands_are_unchanged() -> None:
    text = "(float[4,3] x) => (float[2,3] y) { y = Slice(x, starts, ends, axes) }"
    assert left(normalize_slice, text, starts=ints(1), ends=ints(3), axes=ints(0)) == []
    assert left(gather_slice, text, starts=ints(1), ends=ints(3), axes=ints(0)) == []


def test_where_onnx_runtime_deviates() -> None:
    text = "(float[4,3] x) => (float[a,3] y) { y = Slice(x, starts, ends, , steps) }"
    (reason,) = left(normalize_slice, text, starts=ints(3), ends=ints(HIGHEST), steps=ints(-1))
    assert "deviates from the standard" in reason


def test_unknown_values() -> None:
    text = "(float[4,3] x, int64[1] s) => (float[n,3] y) { y = Slice(x, s, ends) }"
    assert left(normalize_slice, text, ends=ints(3)) == []
    (reason,) = left(gather_slice, text, ends=ints(3))
    assert reason == "the operand starts is not constant: freeze it with --freeze s=VALUE"
    text = "(float[4,3] x, int64[1] a) => (float[2,2] y) { y = Slice(x, starts, ends, a) }"
    (reason,) = left(normalize_slice, text, starts=ints(0), ends=ints(2))
    assert reason == "the operand axes is not constant: freeze it with --freeze a=VALUE"
    text = "(float[n,3] x) => (float[m,3] y) { y = Slice(x, starts, ends) }"
    (reason,) = left(normalize_slice, text, starts=ints(-9), ends=ints(3))
    assert "freeze the dimensions" in reason


@pytest.mark.parametrize(("start", "step"), [(1, None), (-2, None), (-9, 1), (3, -1), (99, -2)])
@pytest.mark.parametrize("dtype", ["int32", "int64"])
def test_bounds_that_are_computed(device: Device, start: int, step: int | None, dtype: str) -> None:
    x = numbers((5, 4))
    stop = start + 2 if step is None or step == 1 else -99
    starts, ends = np.array([0, start], dtype), np.array([5, 4 if start == -2 else stop], dtype)
    expected = x[:, start : 4 if start == -2 else stop : step]
    if start == -9:
        ends, expected = np.array([5, 2], dtype), x[:, :2]
    inputs = {"x": x, "s": starts, "e": ends}
    constants = {} if step is None else {"steps": np.array([1, step], dtype)}
    nodes = "y = Slice(x, s, e)" if step is None else "y = Slice(x, s, e, , steps)"
    result = legal(gather_slice, device, nodes, inputs, declared("y", expected), **constants)
    assert operators(result.model).count("Gather") == 1


def test_steps_that_are_computed(device: Device) -> None:
    x = numbers((5, 4))
    inputs = {"x": x, "s": ints(-1, 0), "e": ints(-99, 4), "t": ints(-2, 2)}
    legal(gather_slice, device, "y = Slice(x, s, e, , t)", inputs, declared("y", x[::-2, ::2]))


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_any_slice(device: Device, data: st.DataObject) -> None:
    shape = tuple(data.draw(st.lists(st.integers(1, 5), min_size=1, max_size=3)))
    axes = data.draw(st.lists(st.sampled_from(range(len(shape))), min_size=1, unique=True))
    bound = st.one_of(st.integers(-7, 7), st.sampled_from([LOWEST, HIGHEST]))
    rows = [(data.draw(bound), data.draw(bound), data.draw(st.sampled_from([-3, -2, -1, 1, 2, 3]))) for _ in axes]
    rows = [(start, -9 if step < 0 and end == HIGHEST else end, step) for start, end, step in rows]
    starts, ends, steps = (ints(*column) for column in zip(*rows, strict=True))
    written = ints(*(axis - len(shape) * data.draw(st.booleans()) for axis in axes))
    x = numbers(shape, data.draw(st.sampled_from(DTYPES)))
    nodes = "y = Slice(x, starts, ends, axes, steps)"
    y = declared("y", x).replace(str(list(shape)).replace(" ", ""), f"[{','.join('abc'[: len(shape)])}]")
    constants = {"starts": starts, "ends": ends, "axes": written, "steps": steps}
    legal(normalize_slice, device, nodes, {"x": x}, y, matches=False, **constants)
