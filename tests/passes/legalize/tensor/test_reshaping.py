"""reshape-by-output, operand-by-output and constant-shape."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from passes.legalize.tensor.reshaping import constant_shape, operand_by_output, reshape_by_output
from tests.passes.device import Device
from tests.passes.harness import Array, operators
from tests.passes.legalize.indexing import SOME, declared, left, legal, numbers


def ints(*values: int) -> Array:
    return np.array(values, np.int64)


@pytest.mark.parametrize("dtype", SOME)
def test_axes_that_are_computed(device: Device, dtype: str) -> None:
    x = numbers((2, 1, 3), dtype)
    nodes = "y = Unsqueeze(x, a)"
    result = legal(reshape_by_output, device, nodes, {"x": x, "a": ints(0, -1)}, declared("y", x[None, ..., None]))
    assert operators(result.model) == ["Reshape"]
    result = legal(reshape_by_output, device, "y = Squeeze(x, a)", {"x": x, "a": ints(1)}, declared("y", x[:, 0]))
    assert operators(result.model) == ["Reshape"]


@pytest.mark.parametrize("shape", [(6, 1), (0, -1), (-1,), (3, 2)])
def test_a_shape_that_is_computed(device: Device, shape: tuple[int, ...]) -> None:
    x = numbers((2, 3))
    y = declared("y", x.reshape([x.shape[axis] if size == 0 else size for axis, size in enumerate(shape)]))
    inputs = {"x": x, "s": ints(*shape)}
    assert operators(legal(reshape_by_output, device, "y = Reshape(x, s)", inputs, y).model) == ["Reshape"]


def test_scalars(device: Device) -> None:
    one, scalar = numbers((1,)), numbers(())
    result = legal(reshape_by_output, device, "y = Reshape(x, s)", {"x": one}, "float y", s=ints())
    assert operators(result.model) == ["Squeeze"]
    result = legal(reshape_by_output, device, "y = Reshape(x, s)", {"x": scalar}, "float y", s=ints())
    assert operators(result.model) == ["Identity"]
    result = legal(reshape_by_output, device, "y = Unsqueeze(x, a)", {"x": scalar}, "float[1,1] y", a=ints(0, 1))
    assert operators(result.model) == ["Reshape"]


def test_unambiguous_operands_are_unchanged() -> None:
    assert left(reshape_by_output, "(float[2,3] x) => (float[6] y) { y = Reshape(x, s) }", s=ints(6)) == []
    assert left(reshape_by_output, "(float[2,1] x) => (float[2] y) { y = Squeeze(x, s) }", s=ints(1)) == []
    assert left(reshape_by_output, "(float[2] x) => (float[2,1] y) { y = Unsqueeze(x, s) }", s=ints(1)) == []
    assert left(operand_by_output, "(float[2] x) => (float[2,2] y) { y = Expand(x, s) }", s=ints(2, 2)) == []


def test_unknown_shapes() -> None:
    (reason,) = left(reshape_by_output, "(float[2,3] x, int64[2] s) => (float[a,b] y) { y = Reshape(x, s) }")
    assert reason == "the shape is not constant: freeze it with --freeze s=VALUE"
    (reason,) = left(operand_by_output, "(float[1,3] x, int64[2] s) => (float[a,b] y) { y = Expand(x, s) }")
    assert reason == "the shape of the output is not constant: freeze it with --freeze s=VALUE"
    (reason,) = left(constant_shape, "(float[n,3] x) => (int64[2] y) { y = Shape(x) }")
    assert "freeze the dimensions" in reason
    (reason,) = left(reshape_by_output, "(float[2,3] x, int64[1] s) => (float[4] y) { y = Reshape(x, s) }")
    assert reason == "the output is declared to have shape (4,), which does not fit (2, 3)"


@pytest.mark.parametrize(
    ("node", "operand", "output"),
    [
        ("y = Expand(x, n)", ints(2, 1, 3), "float[2,2,3] y"),
        ("y = Tile(x, n)", ints(2, 3), "float[4,9] y"),
        ("y, z = Split<axis = -1>(x, n)", ints(2, 1), "float[2,2] y, float[2,1] z"),
        ("y, z = TopK<axis = 0>(x, n)", ints(1), "float[1,3] y, int64[1,3] z"),
        ("y, z = TopK<largest = 0>(x, n)", ints(2), "float[2,2] y, int64[2,2] z"),
    ],
)
def test_operands_that_follow_from_the_output(device: Device, node: str, operand: Array, output: str) -> None:
    x = np.array([[3, 1, 2], [6, 5, 4]], np.float32)
    result = legal(operand_by_output, device, node, {"x": x, "n": operand}, output)
    assert operators(result.model) == [node.partition("= ")[2].partition("(")[0].partition("<")[0]]


@pytest.mark.parametrize("value", ["", "<value = int64[1] {7}>", "<value = bool[1] {1}>"])
def test_constant_of_shape(device: Device, value: str) -> None:
    dtype = "int64" if "int64" in value else "bool" if value else "float"
    nodes, inputs = f"y = ConstantOfShape{value}(n)", {"n": ints(2, 3)}
    result = legal(operand_by_output, device, nodes, inputs, f"{dtype}[2,3] y")
    assert operators(result.model) == ["Expand"]


@pytest.mark.parametrize(
    ("node", "output"),
    [
        ("Shape", "int64[3] y"),
        ("Shape<start = 1>", "int64[2] y"),
        ("Shape<start = -2, end = -1>", "int64[1] y"),
        ("Shape<start = -9, end = 9>", "int64[3] y"),
        ("Shape<start = 2, end = 1>", "int64[0] y"),
        ("Size", "int64 y"),
    ],
)
def test_shapes_are_constants(device: Device, node: str, output: str) -> None:
    result = legal(constant_shape, device, f"y = {node}(x)", {"x": numbers((2, 3, 4))}, output)
    assert operators(result.model) == ["Identity"]


@settings(max_examples=20, deadline=None)
@given(st.data())
def test_any_expansion_and_repetition(device: Device, data: st.DataObject) -> None:
    shape = tuple(data.draw(st.lists(st.integers(1, 3), min_size=1, max_size=3)))
    repeats = [data.draw(st.integers(1, 3)) for _ in shape]
    x = numbers(shape, data.draw(st.sampled_from(["float32", "int32", "int64", "bool"])))
    if data.draw(st.booleans()):
        inputs = {"x": x, "n": ints(*repeats)}
        legal(operand_by_output, device, "y = Tile(x, n)", inputs, declared("y", np.tile(x, repeats)))
    wide = [
        each if size == 1 else data.draw(st.sampled_from([1, size])) for each, size in zip(repeats, shape, strict=True)
    ]
    wide = [*[2] * data.draw(st.integers(0, 1)), *wide]
    y = declared("y", np.broadcast_to(x, np.broadcast_shapes(shape, tuple(wide))))
    legal(operand_by_output, device, "y = Expand(x, n)", {"x": x, "n": ints(*wide)}, y)
