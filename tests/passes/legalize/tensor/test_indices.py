"""count-from-start: negative indices."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from passes.legalize.tensor.gathering import count_from_start
from tests.passes.device import Device
from tests.passes.harness import Array, operators
from tests.passes.legalize.indexing import DTYPES, SOME, declared, left, legal, numbers


def indices(shape: tuple[int, ...], size: int, seed: int = 0) -> Array:
    """Along the last axis no two are the same place."""
    drawn = np.argsort(np.random.default_rng(seed).random((*shape[:-1], size)), axis=-1)[..., : shape[-1]]
    return drawn - size * (drawn % 2)


@pytest.mark.parametrize("dtype", SOME)
def test_gather_elements(device: Device, dtype: str) -> None:
    x, i = numbers((3, 4), dtype), indices((2, 3), 4)
    y = declared("y", x[:2, :3])
    nodes = "y = GatherElements<axis = -1>(x, i)"
    result = legal(count_from_start, device, nodes, {"x": x}, y, i=i)
    assert operators(result.model) == ["GatherElements"]
    result = legal(count_from_start, device, nodes, {"x": x, "i": i}, y)
    assert operators(result.model) == ["Mod", "GatherElements"]


@pytest.mark.parametrize("reduction", ["none", "add", "mul", "max", "min"])
@pytest.mark.parametrize("dtype", ["float32", "int64", "int8"])
def test_scatter_nd(device: Device, dtype: str, reduction: str) -> None:
    x, u = numbers((3, 4, 2), dtype), numbers((2, 2), dtype, seed=1) // 9
    i = np.array([[-1, 0], [1, -4]])
    nodes = f'y = ScatterND<reduction = "{reduction}">(x, i, u)'
    legal(count_from_start, device, nodes, {"x": x, "u": u}, declared("y", x), i=i)
    result = legal(count_from_start, device, nodes, {"x": x, "i": i, "u": u}, declared("y", x))
    assert operators(result.model) == ["Mod", "ScatterND"]


def test_scatter_nd_of_bools(device: Device) -> None:
    x, u, i = numbers((3, 4), "bool"), numbers((2, 4), "bool", seed=1), np.array([[-1], [-3]])
    legal(count_from_start, device, "y = ScatterND(x, i, u)", {"x": x, "u": u}, declared("y", x), i=i)


def test_32_bit_indices(device: Device) -> None:
    x, i = numbers((3, 4)), indices((3, 4), 4).astype(np.int32)
    legal(count_from_start, device, "y = GatherElements<axis = 1>(x, i)", {"x": x, "i": i}, declared("y", x))


def test_unchanged() -> None:
    text = "(float[3,4] x, float[2,4] u) => (float[3,4] y) { y = ScatterND(x, i, u) }"
    assert left(count_from_start, text, i=np.array([[0], [2]])) == []
    text = "(float[n,4] x, float[2,4] u) => (float[n,4] y) { y = ScatterND(x, i, u) }"
    (reason,) = left(count_from_start, text, i=np.array([[0], [-1]]))
    assert "freeze the dimensions" in reason
    text = "(float[3,4] x, int64[3,4] j) => (float[3,4] y) { i = Mod(j, n) y = GatherElements<axis = 1>(x, i) }"
    assert left(count_from_start, text, n=np.array([4])) == []


@settings(max_examples=25, deadline=None)
@given(st.data())
def test_any_gather_elements(device: Device, data: st.DataObject) -> None:
    shape = tuple(data.draw(st.lists(st.integers(1, 4), min_size=1, max_size=3)))
    axis = data.draw(st.integers(-len(shape), len(shape) - 1))
    sizes = [data.draw(st.integers(1, size)) for size in shape]
    sizes[axis] = data.draw(st.integers(1, 5))
    x = numbers(shape, data.draw(st.sampled_from(DTYPES)))
    i = np.random.default_rng(data.draw(st.integers(0, 99))).integers(-shape[axis], shape[axis], sizes)
    y = declared("y", np.zeros(sizes, x.dtype))
    nodes = f"y = GatherElements<axis = {axis}>(x, i)"
    legal(count_from_start, device, nodes, {"x": x}, y, matches=False, i=i)
    legal(count_from_start, device, nodes, {"x": x, "i": i}, y)
