"""Sketches of tensors: every examined element is counted, the largest difference is included, and they stay small."""

from __future__ import annotations

import json

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from onnx_bridge.parity.checking.error_histogram import BINS, POINTS, Sketch


def sketch(actual: object, expected: object) -> Sketch:
    found = Sketch.of(np.asarray(actual), np.asarray(expected))
    assert found is not None
    return found


def test_counts_and_points() -> None:
    found = sketch([[1.0, 2.0], [3.0, 8.0]], [[1.0, 2.0], [3.0, 4.0]])
    assert (found.low, found.high, found.elements, found.left_out) == (-4, 4, 4, 0)
    assert len(found.counts) == BINS
    assert (found.counts[BINS // 2], found.counts[-1], sum(found.counts)) == (3, 1, 4)
    assert found.expected == (1, 2, 3, 4)
    assert found.actual == (1, 2, 3, 8)


def test_largest_difference_of_many_is_included() -> None:
    expected = np.zeros(1_000_003, np.float32)
    actual = expected.copy()
    actual[777_777] = 5
    found = sketch(actual, expected)
    assert len(found.actual) <= POINTS + 1
    assert 5 in found.actual
    assert len(json.dumps(found.to_json())) < 6000


def test_nan_and_inf_are_counted_separately() -> None:
    found = sketch([1.0, np.nan, np.inf, 2.0], [1.0, 1.0, np.inf, 2.5])
    assert (found.elements, found.left_out, sum(found.counts)) == (4, 2, 2)
    json.dumps(found.to_json(), allow_nan=False)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float8_e4m3fn", "int4", "uint8", "int64", "bool"])
def test_every_real_dtype(dtype: str) -> None:
    kind = np.dtype(getattr(ml_dtypes, dtype, None) or dtype)
    found = sketch(np.array([0, 1, 1]).astype(kind), np.array([0, 1, 0]).astype(kind))
    assert found.actual == (0, 1, 1)
    assert sum(found.counts) == 3


def test_no_sketch_without_differences() -> None:
    assert Sketch.of(np.array(["a"], object), np.array(["a"], object)) is None
    assert Sketch.of(np.zeros(2), np.zeros(3)) is None
    assert Sketch.of(np.zeros(0), np.zeros(0)) is None
    assert Sketch.of(np.full(2, np.nan), np.zeros(2)) is None


reals = arrays.arrays(np.float64, 7, elements=st.floats(width=64))


@given(reals, reals)
def test_any_numbers(actual: np.ndarray, expected: np.ndarray) -> None:
    found = Sketch.of(actual, expected)
    if found is not None:
        assert sum(found.counts) == 7 - found.left_out
        json.dumps(found.to_json(), allow_nan=False)
