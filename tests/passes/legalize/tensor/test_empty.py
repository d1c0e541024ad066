"""constant-for-empty, evaluate-empty, drop-empty-operands, split-without-empty: tensors without elements."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from passes.legalize.tensor.empty import (
    constant_for_empty,
    drop_empty_operands,
    evaluate_empty,
    split_without_empty,
)
from tests.passes.device import Device
from tests.passes.harness import operators
from tests.passes.legalize.indexing import DTYPES, SOME, declared, left, legal, numbers
from tests.passes.legalize.one_node import case, legalized, normal, skipped


@pytest.mark.parametrize("dtype", SOME)
def test_empty_tensors_become_constants(device: Device, dtype: str) -> None:
    x = numbers((2, 3), dtype)
    inputs = {"x": x}
    nodes = "y = Slice(x, n, n)"
    result = legal(constant_for_empty, device, nodes, inputs, declared("y", x[:0]), n=np.array([1]))
    assert operators(result.model) == ["Identity"]  # an output of the graph has to be made by a node


def test_all_outputs_must_be_empty() -> None:
    text = "(float[2,3] x) => (float[0,3] y, float[2,3] z) { y, z = Split(x, n) }"
    (reason,) = left(constant_for_empty, text, n=np.array([0, 2]))
    assert reason == "only some of the outputs have no elements"


def test_tensors_with_elements_are_unchanged() -> None:
    assert left(constant_for_empty, "(float[2] x) => (float[2] y) { y = Abs(x) }") == []
    assert left(constant_for_empty, "(float[n] x) => (float[n] y) { y = Abs(x) }") == []


def test_operands_that_are_empty_along_another_axis_stay() -> None:
    text = "(float[0,n,2] x) => (float[0,m,2] y) { y = Concat<axis = 1>(x, e) }"
    assert left(drop_empty_operands, text, e=np.zeros((0, 5, 2), np.float32)) == []


@pytest.mark.parametrize(
    ("node", "output"),
    [
        ("y = ReduceSum<keepdims = 0>(e, axes)", "float[3] y"),
        ("y = ReduceMax<keepdims = 0>(e, axes)", "float[3] y"),
        ("y = Gemm(f, e, c)", "float[2,3] y"),
        ("y = Concat<axis = 0>(e, c, e)", "float[2,3] y"),
        ("y = MatMul(f, e)", "float[2,3] y"),
    ],
)
def test_nodes_of_empty_inputs_are_evaluated(device: Device, node: str, output: str) -> None:
    constants = {"one": np.array([1]), "axes": np.array([0]), "c": numbers((2, 3)), "last": np.array([1])}
    nodes = f"e = Slice(x, one, one) f = Slice(x2, one, one, last) {node}"
    inputs = {"x": numbers((2, 3)), "x2": numbers((2, 3))}
    result = legal(evaluate_empty, device, nodes, inputs, output, **constants)
    assert [each for each in operators(result.model) if each not in ("Slice", "Identity")] == []


def test_constants_and_tensors_with_elements_are_unchanged() -> None:
    text = "(float[2,3] x) => (float[2,3] y) { e = Slice(x, one, one) y = Concat<axis = 0>(e, x) }"
    assert left(evaluate_empty, text, one=np.array([1])) == []
    assert (
        left(
            evaluate_empty,
            "() => (float[3] y) { y = ReduceSum<keepdims = 0>(e, a) }",
            e=numbers((0, 3)),
            a=np.array([0]),
        )
        == []
    )


@pytest.mark.parametrize("dtype", SOME)
def test_empty_operands_are_dropped(device: Device, dtype: str) -> None:
    x, e = numbers((2, 3), dtype), numbers((2, 0), dtype)
    inputs = {"x": x}
    result = legal(drop_empty_operands, device, "y = Concat<axis = -1>(x, e)", inputs, declared("y", x), e=e)
    assert operators(result.model) == ["Identity"]


@settings(max_examples=15, deadline=None)
@given(st.data())
def test_any_concatenation(device: Device, data: st.DataObject) -> None:
    rank = data.draw(st.integers(1, 3))
    axis = data.draw(st.integers(-rank, rank - 1))
    shape = [data.draw(st.integers(1, 3)) for _ in range(rank)]
    arrays, dtype = {}, data.draw(st.sampled_from(DTYPES))
    for index in range(data.draw(st.integers(2, 4))):
        shape[axis] = data.draw(st.integers(0, 2)) if index else 2
        arrays[f"x{index}"] = numbers(tuple(shape), dtype, seed=index)
    inputs = {name: array for name, array in arrays.items() if array.size}
    constants = {name: array for name, array in arrays.items() if not array.size}
    nodes = f"y = Concat<axis = {axis}>({', '.join(arrays)})"
    y = declared("y", np.concatenate(list(arrays.values()), axis))
    legal(drop_empty_operands, device, nodes, inputs, y, matches=bool(constants), **constants)


@pytest.mark.parametrize("opset", [11, 13, 18])
@pytest.mark.parametrize(("sizes", "expected"), [([3, 0, 2], ["Split"]), ([0, 5], []), ([0, 2, 0, 3, 0], ["Split"])])
def test_parts_without_elements_are_split_off(opset: int, sizes: list[int], expected: list[str]) -> None:
    x = normal(4, 5)
    attributes = {"axis": -1} | ({"split": sizes} if opset < 13 else {})
    inputs, constants = ([x], []) if opset < 13 else ([x, np.array(sizes)], [1])
    source = case("Split", inputs, attributes, opset=opset, constants=constants, outputs=len(sizes))
    names = legalized(split_without_empty, source)
    assert [name for name in names if name != "Identity"] == expected
    assert (
        skipped(split_without_empty, case("Split", [x, np.array([2, 3])], {"axis": 1}, constants=[1], outputs=2)) == []
    )
