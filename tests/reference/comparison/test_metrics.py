"""ULPs, top-k agreement and shares equal those of a plain computation."""

from __future__ import annotations

import math

import ml_dtypes
import numpy as np
import pytest

from onnx_bridge.reference.comparison import metrics
from onnx_bridge.reference.comparison.compare import OutputComparison, compare

FLOATS = [np.dtype(each) for each in ("float16", "float32", "float64")] + [
    np.dtype(getattr(ml_dtypes, name))
    for name in (
        "bfloat16",
        "float8_e4m3fn",
        "float8_e4m3fnuz",
        "float8_e5m2",
        "float8_e5m2fnuz",
        "float8_e8m0fnu",
        "float4_e2m1fn",
    )
]


def one(actual: np.ndarray, expected: np.ndarray, name: str = "y") -> OutputComparison:
    (output,) = compare({name: actual}, {name: expected}).outputs
    return output


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_an_ulp_is_the_step_to_the_next_number(dtype: np.dtype) -> None:
    """Every number of a small dtype, some of a large one; zeros of both signs are the same number."""
    if dtype.itemsize == 1:
        every = np.arange(2 ** ml_dtypes.finfo(dtype).bits, dtype=np.uint8).view(dtype)
        numbers = np.unique(every[np.isfinite(every.astype(np.float64))].astype(np.float64)).astype(dtype)
    else:
        start = np.array([-2.0, -1.0, 0.0, 1.0, 100.0], dtype)
        bits = start.view(f"u{dtype.itemsize}")
        numbers = np.sort(np.concatenate([(bits + bits.dtype.type(each)).view(dtype) for each in range(5)]).ravel())
        pairs = [(numbers[5 * row : 5 * row + 4], numbers[5 * row + 1 : 5 * row + 5]) for row in range(5)]
        for low, high in pairs:
            assert one(high.copy(), low.copy()).max_ulp == 1
        return
    assert one(numbers[1:].copy(), numbers[:-1].copy()).max_ulp == 1
    assert one(numbers[::-1].copy(), numbers).max_ulp == len(numbers) - 1


def test_ulps_across_zero_and_over_the_whole_range() -> None:
    tiny = np.array([np.finfo(np.float32).smallest_subnormal], np.float32)
    assert one(tiny, -tiny).max_ulp == 2
    assert one(np.array([-0.0], np.float32), np.array([0.0], np.float32)).max_ulp == 0
    largest = np.array([np.finfo(np.float64).max])
    assert one(largest, -largest).max_ulp == pytest.approx(2.0**64, rel=1e-3)


def test_ulps_are_for_finite_floats_only() -> None:
    assert one(np.array([1, 2]), np.array([1, 3])).max_ulp is None
    nan = np.array([math.nan, math.inf], np.float32)
    assert one(nan, nan).max_ulp is None
    assert one(np.array([math.nan, 1], np.float32), np.array([math.nan, 1], np.float32)).max_ulp == 0


@pytest.mark.parametrize(
    ("actual", "expected", "share"),
    [
        (np.array([1, 2, 3, 5]), np.array([1, 2, 3, 4]), 0.75),
        (np.array([math.nan, math.inf, 1], np.float32), np.array([math.nan, -math.inf, 1], np.float32), 2 / 3),
        (np.array(["a", "b"]), np.array(["a", "c"]), 0.5),
        (np.array([True, False]), np.array([True, True]), 0.5),
        (np.zeros(0), np.zeros(0), None),
    ],
)
def test_share_of_equal_elements(
    actual: np.ndarray, expected: np.ndarray, share: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    for chunk in (1, 3, 100):
        monkeypatch.setattr(metrics, "CHUNK", chunk)
        assert one(actual, expected).same == share


def test_top_k_agreement_of_logits(monkeypatch: pytest.MonkeyPatch) -> None:
    expected = np.array([[0, 1, 2, 3, 4, 5], [5, 4, 3, 2, 1, 0], [0, 0, 9, 0, 0, 0], [1, 1, 1, 1, 1, 1]], np.float32)
    actual = expected.copy()
    actual[1] = [4.5, 5, 3, 2, 1, 0]  # the best is second
    actual[2] = [1, 1, 0, 1, 1, 1]  # the best is last
    actual[3] = [0, 0, 0, 0, 0, 7]  # all were equally good
    for chunk in (1, 7, 1000):
        monkeypatch.setattr(metrics, "CHUNK", chunk)
        output = one(actual, expected)
        assert (output.top1, output.top5) == (0.5, 0.75)
    assert one(expected.reshape(2, 2, 6), expected.reshape(2, 2, 6), "logits").top1 == 1.0


def test_rows_with_nan_have_no_best_class() -> None:
    expected = np.array([[0, 1, math.nan, 3, 4, 5], [5, 4, 3, 2, 1, 0]], np.float32)
    assert (one(expected, expected).top1, one(expected, expected).top5) == (1.0, 1.0)
    assert one(expected[:1], expected[:1]).top1 is None
    assert one(expected[:1], expected[1:]).top1 == 0.0


@pytest.mark.parametrize(
    "array",
    [np.ones((2, 4), "f4"), np.ones((2, 6), "i8"), np.ones(6, "f4"), np.ones((1, 2, 6), "f4"), np.ones((0, 6), "f4")],
    ids=["four classes", "integers", "one dimension", "features", "no rows"],
)
def test_outputs_that_are_not_logits(array: np.ndarray) -> None:
    output = one(array, array)
    assert (output.top1, output.top5) == (None, None)
