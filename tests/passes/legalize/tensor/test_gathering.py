"""gather-compress and gather-reverse-sequence."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from passes.legalize.tensor.gathering import gather_compress, gather_reverse_sequence
from tests.passes.device import Device
from tests.passes.harness import operators
from tests.passes.legalize.indexing import DTYPES, SOME, declared, left, legal, numbers


@pytest.mark.parametrize("dtype", SOME)
def test_compress_along_an_axis(device: Device, dtype: str) -> None:
    x, condition = numbers((2, 3, 2), dtype), np.array([True, False, True])
    y = declared("y", x[:, condition])
    result = legal(gather_compress, device, "y = Compress<axis = -2>(x, c)", {"x": x}, y, c=condition)
    assert operators(result.model) == ["Gather"]


def test_compress_of_all_elements(device: Device) -> None:
    result = legal(
        gather_compress,
        device,
        "y = Compress(x, c)",
        {"x": numbers((2, 3))},
        "float[2] y",
        c=np.array([False, True, False, False, True]),
    )
    assert operators(result.model) == ["Reshape", "Gather"]


@pytest.mark.parametrize("axis", ["", "<axis = 1>"])
def test_empty_selection(device: Device, axis: str) -> None:
    y = "float[2,0] y" if axis else "float[0] y"
    result = legal(gather_compress, device, f"y = Compress{axis}(x, c)", {"x": numbers((2, 3))}, y, c=np.zeros(2, bool))
    assert operators(result.model) == ["Identity"]


def test_a_condition_that_is_computed() -> None:
    (reason,) = left(gather_compress, "(float[2,3] x, bool[3] c) => (float[2,n] y) { y = Compress<axis = 1>(x, c) }")
    assert reason.endswith("the condition is not constant: freeze it with --freeze c=VALUE")


@pytest.mark.parametrize("dtype", SOME)
def test_sequences_of_computed_lengths(device: Device, dtype: str) -> None:
    x, lengths = numbers((2, 4, 3), dtype), np.array([3, 1])
    nodes = "y = ReverseSequence<batch_axis = 0, time_axis = 1>(x, n)"
    result = legal(gather_reverse_sequence, device, nodes, {"x": x, "n": lengths}, declared("y", x))
    assert operators(result.model).count("Gather") == 1


def test_default_axes(device: Device) -> None:
    x, lengths = numbers((4, 3)), np.array([0, 4, 2])
    legal(gather_reverse_sequence, device, "y = ReverseSequence(x, n)", {"x": x}, "float[4,3] y", opset=10, n=lengths)


def test_open_dimensions() -> None:
    (reason,) = left(
        gather_reverse_sequence, "(float[t,3] x, int64[3] n) => (float[t,3] y) { y = ReverseSequence(x, n) }"
    )
    assert "freeze the dimensions" in reason


@settings(max_examples=15, deadline=None)
@given(st.data())
def test_any_sequences(device: Device, data: st.DataObject) -> None:
    shape = tuple(data.draw(st.lists(st.integers(1, 4), min_size=2, max_size=4)))
    time = data.draw(st.sampled_from([0, 1]))
    lengths = np.array([data.draw(st.integers(0, shape[time])) for _ in range(shape[1 - time])])
    x = numbers(shape, data.draw(st.sampled_from(DTYPES)))
    nodes = f"y = ReverseSequence<batch_axis = {1 - time}, time_axis = {time}>(x, n)"
    legal(gather_reverse_sequence, device, nodes, {"x": x, "n": lengths}, declared("y", x))


@settings(max_examples=15, deadline=None)
@given(st.data())
def test_any_selection(device: Device, data: st.DataObject) -> None:
    shape = tuple(data.draw(st.lists(st.integers(1, 4), min_size=1, max_size=3)))
    axis = data.draw(st.integers(-len(shape), len(shape) - 1) | st.none())
    x = numbers(shape, data.draw(st.sampled_from(DTYPES)))
    size = x.size if axis is None else shape[axis]
    condition = np.array(data.draw(st.lists(st.booleans(), min_size=1, max_size=size)))
    y = declared("y", np.compress(condition, x, axis))
    written = "" if axis is None else f"<axis = {axis}>"
    legal(gather_compress, device, f"y = Compress{written}(x, c)", {"x": x}, y, c=condition)
