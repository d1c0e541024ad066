"""The comparison passes for equal outputs, fails for any difference, and its metrics are numpy's."""

from __future__ import annotations

import json
import math

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from onnx_bridge.core.errors import InputError
from onnx_bridge.core.tolerance import Tolerance
from onnx_bridge.core.values import Value
from onnx_bridge.reference.comparison import metrics as measures
from onnx_bridge.reference.comparison.compare import OutputComparison, compare
from onnx_bridge.reference.comparison.tolerances import default_tolerance

NUMPY = [
    "bool",
    "int8",
    "uint8",
    "int16",
    "uint16",
    "int32",
    "uint32",
    "int64",
    "uint64",
    "float16",
    "float32",
    "float64",
]
BEYOND = [
    *("bfloat16", "float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz", "float8_e8m0fnu"),
    *("float4_e2m1fn", "int4", "uint4", "int2", "uint2"),
]
DTYPES = [np.dtype(name) for name in NUMPY] + [np.dtype(getattr(ml_dtypes, name)) for name in BEYOND]


def one(actual: object, expected: object, tolerance: Tolerance | None = None) -> OutputComparison:
    """The comparison of a single output."""
    (output,) = compare({"y": np.asarray(actual)}, {"y": np.asarray(expected)}, tolerance).outputs
    return output


def f32(*values: float) -> np.ndarray:
    return np.array(values, np.float32)


@st.composite
def arrays(draw: st.DrawFn) -> np.ndarray:
    """Any bit pattern of any dtype, including NaN, Inf and subnormal numbers."""
    dtype = draw(st.sampled_from(DTYPES))
    shape = draw(hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4))
    size = math.prod(shape)
    raw = draw(st.binary(min_size=size * dtype.itemsize, max_size=size * dtype.itemsize))
    if dtype.name in ("bool", "int4", "uint4", "int2", "uint2", "float4_e2m1fn"):
        return (np.frombuffer(raw, np.uint8) % 2).astype(dtype).reshape(shape)
    return np.frombuffer(raw, dtype).reshape(shape)


@given(arrays())
@settings(max_examples=300, deadline=None, derandomize=True)
def test_everything_agrees_with_itself(x: np.ndarray) -> None:
    result = compare({"y": x.copy()}, {"y": x})
    assert result.passed
    (output,) = result.outputs
    assert output.mismatched == 0
    assert output.worst_index is None
    assert output.elements == x.size
    assert output.max_abs in (None, 0.0)
    assert output.sqnr_db in (None, math.inf)
    json.dumps(output.to_json(), allow_nan=False)


@given(
    hnp.arrays(
        st.sampled_from([np.float64, np.float32, np.int64, np.uint64, np.int8]),
        hnp.array_shapes(max_dims=3, max_side=5),
        elements={"min_value": 0, "max_value": 100},
    ),
    st.data(),
)
@settings(max_examples=200, deadline=None, derandomize=True)
def test_one_element_beyond_tolerance_fails(expected: np.ndarray, data: st.DataObject) -> None:
    index = data.draw(st.tuples(*(st.integers(0, side - 1) for side in expected.shape)))
    actual = expected.copy()
    actual[index] += 1
    (output,) = compare({"y": actual}, {"y": expected}).outputs
    assert not output.passed
    assert output.mismatched == 1
    assert output.worst_index == index
    assert output.worst_actual == actual[index]
    assert output.worst_expected == expected[index]
    assert f"1 of {expected.size} elements beyond tolerance; worst at" in (output.reason or "")


@given(
    st.integers(0, 2**32 - 1),
    st.sampled_from([np.float32, np.float16, ml_dtypes.bfloat16, np.float64, np.int32]),
    st.sampled_from([1, 7, 64]),
)
@settings(max_examples=60, deadline=None, derandomize=True)
def test_metrics_are_those_of_numpy(seed: int, dtype: type, chunk: int) -> None:
    rng = np.random.default_rng(seed)
    expected = (rng.standard_normal((5, 9)) * 50).astype(dtype)
    actual = (expected.astype(np.float64) + rng.standard_normal((5, 9))).astype(dtype)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(measures, "CHUNK", chunk)
        output = one(actual, expected)

    a, b = actual.astype(np.float64), expected.astype(np.float64)
    off = np.abs(a - b)
    limit = output.tolerance.atol + output.tolerance.rtol * np.abs(b)  # type: ignore[union-attr]
    assert output.mismatched == np.count_nonzero(off > limit)
    assert output.worst_index == np.unravel_index(np.argmax(off / np.maximum(limit, 1e-30)), off.shape)
    assert output.max_abs == off.max()
    assert output.max_rel == (off[b != 0] / np.abs(b[b != 0])).max()
    assert output.mean_abs == pytest.approx(off.mean())
    assert output.rmse == pytest.approx(np.sqrt((off**2).mean()))
    assert output.cosine == pytest.approx((a * b).sum() / np.linalg.norm(a) / np.linalg.norm(b))
    assert output.sqnr_db == pytest.approx(10 * np.log10((b**2).sum() / (off**2).sum()))


def test_the_limit_is_absolute_plus_relative_to_the_expected_value() -> None:
    tolerance = Tolerance(rtol=0.5, atol=1.0)
    assert one([6.0], [10.0 / 3], tolerance).passed  # 2.67 ≤ 1 + 1.67
    assert one([4.0], [2.0], tolerance).passed  # 2 ≤ 1 + 1
    assert not one([2.0], [4.0 + 1e-9 + 2], tolerance).passed  # 4 > 1 + 3
    assert not one([4.0 + 1e-9], [2.0], tolerance).passed


def test_outputs_on_one_side_only_are_differences() -> None:
    result = compare({"a": f32(1), "new": f32(1)}, {"a": f32(1), "b": f32(1, 2)})
    assert not result.passed
    assert [(output.name, output.reason) for output in result.outputs] == [
        ("a", None),
        ("b", "missing"),
        ("new", "extra"),
    ]
    assert result.outputs[1].shape == (2,)


def test_outputs_are_matched_by_name_whatever_their_order() -> None:
    first, second = f32(1), f32(2)
    result = compare({"b": second, "a": first}, {"a": first, "b": second})
    assert result.passed
    assert [output.name for output in result.outputs] == ["a", "b"]


def test_no_outputs_do_not_pass() -> None:
    assert not compare({}, {}).passed


@pytest.mark.parametrize(
    ("actual", "expected", "reason"),
    [
        (f32(1), np.array([1.0]), "dtype float32 ≠ float64"),
        (np.ones((1, 3)), np.ones(3), "shape [1, 3] ≠ [3]"),
        (np.ones((1,), np.int32), np.ones((), np.int64), "dtype int32 ≠ int64; shape [1] ≠ []"),
        (np.zeros((0, 3)), np.zeros((3, 0)), "shape [0, 3] ≠ [3, 0]"),
        (np.array(["a"]), np.array([1]), "dtype string ≠ int64"),
        (np.zeros(1, "c8"), np.zeros(1, "c8"), "complex64 cannot be compared"),
        (f32(1, math.nan, 3), f32(1, 2, 3), "NaN at 1 position on one side only; worst at [1]: nan against 2"),
        (f32(1, 2), f32(1, math.inf), "Inf at 1 position on one side only; worst at [1]: 2 against inf"),
        (f32(-math.inf), f32(math.inf), "Inf at 1 position on one side only; worst at [0]: -inf against inf"),
        (
            f32(math.nan, 1, 2, math.nan),
            f32(math.inf, 1, 3, 1),
            "NaN at 2 positions on one side only, 1 of 4 elements beyond tolerance; worst at [0]: nan against inf",
        ),
        (f32(1, 2), f32(1, 2.5), "1 of 2 elements beyond tolerance; worst at [1]: 2 against 2.5"),
        (np.float32(1.25), np.float32(1.5), "1 of 1 elements beyond tolerance; worst: 1.25 against 1.5"),
        (np.array(["a", "b"]), np.array(["a", "c"]), "1 of 2 elements beyond tolerance; worst at [1]: 'b' against 'c'"),
        (np.array([True]), np.array([False]), "1 of 1 elements beyond tolerance; worst at [0]: True against False"),
    ],
)
def test_reasons(actual: np.ndarray, expected: np.ndarray, reason: str) -> None:
    assert one(actual, expected).reason == reason


def test_nan_and_inf_in_the_same_places_agree_and_are_counted() -> None:
    values = f32(math.nan, math.inf, -math.inf, 1)
    output = one(values, values + f32(0, 0, 0, 1e-7))
    assert output.passed
    assert output.nonfinite == 3
    assert output.rmse == output.max_abs == pytest.approx(1.2e-7, rel=0.1)


def test_strings_of_different_kinds_compare_by_value() -> None:
    assert one(np.array(["ä", "b"]), np.array(["ä", "b"], object)).passed


def test_64_bit_integers_differ_without_overflow() -> None:
    low, high = np.iinfo(np.int64).min, np.iinfo(np.int64).max
    output = one(np.array([high, 5]), np.array([low, 5]))
    assert (output.mismatched, output.max_abs) == (1, 2.0**64)
    assert (output.worst_actual, output.worst_expected) == (high, low)
    neighbours = one(np.array([2**63 + 1], np.uint64), np.array([2**63], np.uint64))
    assert (neighbours.mismatched, neighbours.max_abs) == (1, 1.0)


def test_cosine_of_zero_vectors() -> None:
    assert one(f32(0, 0), f32(0, 0)).cosine == 1.0
    assert one(f32(0, 0), f32(0, 1)).cosine == 0.0


def test_signal_to_noise_is_infinite_without_noise() -> None:
    assert one(f32(1, 2), f32(1, 2)).sqnr_db == math.inf
    assert one(f32(1, 2), f32(0, 0)).sqnr_db == -math.inf
    assert one(f32(1, 2), f32(1, 2)).to_json()["sqnr_db"] == "Infinity"


def test_json_is_strict_whatever_was_compared() -> None:
    samples = [f32(math.nan, 1), f32(math.inf, 1), f32(1, -math.inf), np.array(["a", "b"]), np.zeros(2, bool)]
    for actual in samples:
        for expected in samples:
            text = json.dumps(one(actual, expected).to_json(), allow_nan=False)
            assert json.loads(text)["passed"] is (actual is expected)
    assert one(samples[0], samples[2]).to_json()["worst_actual"] == "NaN"


def test_general_tolerance_leaves_integers_and_bools_exact() -> None:
    loose = Tolerance(1.0, 1.0)
    assert one(f32(2), f32(1), loose).passed
    assert not one([2], [1], loose).passed
    assert not one([True], [False], loose).passed


def test_named_tolerance_holds_for_any_dtype_of_that_output_only() -> None:
    actual, expected = {"a": np.array([2]), "b": f32(2)}, {"a": np.array([1]), "b": f32(1)}
    result = compare(actual, expected, {"a": Tolerance(0, 1)})
    assert [output.passed for output in result.outputs] == [True, False]
    with pytest.raises(InputError, match="output 'logit': .*did you mean logits?"):
        compare({"logits": f32(1)}, {"logits": f32(1)}, {"logit": Tolerance(0, 1)})


@pytest.mark.parametrize("parts", [(math.nan, 0), (0, math.inf), (-1, 0)])
def test_infinite_and_negative_tolerances_are_rejected(parts: tuple[float, float]) -> None:
    with pytest.raises(InputError, match="cannot be rtol"):
        Tolerance(*parts)


def test_zeros_do_not_pass_for_small_probabilities() -> None:
    probabilities = np.full(250_000, 4e-6, np.float32)
    assert default_tolerance(probabilities).atol < 4e-6
    output = one(np.zeros_like(probabilities), probabilities)
    assert output.mismatched == 250_000
    assert one(probabilities * np.float32(1.0005), probabilities).passed


def test_default_tolerances() -> None:
    assert default_tolerance(f32(100)) == Tolerance(1e-3, 1e-4)
    assert default_tolerance(f32(0, math.nan, math.inf)) == Tolerance(1e-3, 1e-7)
    assert default_tolerance(np.array([1.0])) == Tolerance(1e-9, 1e-10)
    for name in ("int8", "bool", "int64", "float8_e8m0fnu", "int4"):
        dtype = DTYPES[[dtype.name for dtype in DTYPES].index(name)]
        assert default_tolerance(np.ones(2, dtype)) == Tolerance(0, 0)


@pytest.mark.parametrize(
    "name", ["float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz", "float4_e2m1fn"]
)
def test_small_floats_may_differ_by_one_step_of_their_grid(name: str) -> None:
    dtype = np.dtype(getattr(ml_dtypes, name))
    every = np.arange(2 ** ml_dtypes.finfo(dtype).bits, dtype=np.uint8).view(dtype)
    grid = np.unique(every[np.isfinite(every.astype(np.float32))].astype(np.float32))
    grid = grid[grid >= 0].astype(dtype)
    assert one(grid[1:], grid[:-1]).passed
    assert one(grid[:-1], grid[1:]).passed
    three = one(grid[3:], grid[:-3])
    assert three.mismatched == three.elements


def test_memory_stays_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is converted to float64 at a time never exceeds a chunk, and no element is skipped."""
    monkeypatch.setattr(measures, "CHUNK", 10)
    expected = np.arange(95, dtype=np.float32)
    for place in (0, 9, 10, 94):
        actual = expected.copy()
        actual[place] = -5
        assert one(actual, expected).worst_index == (place,)


@pytest.mark.parametrize(
    ("actual", "expected", "reasons"),
    [
        ([f32(1), f32(2, 3)], [f32(1), f32(2, 3)], {"s[0]": None, "s[1]": None}),
        ([f32(1), f32(2, 4)], [f32(1), f32(2, 3)], {"s[0]": None, "s[1]": "1 of 2 elements"}),
        ([f32(1)], [f32(1), f32(2)], {"s[0]": None, "s[1]": "missing"}),
        ([f32(1), f32(2)], [f32(1)], {"s[0]": None, "s[1]": "extra"}),
        ([], [], {"s": None}),
        (None, None, {"s": None}),
        ([], None, {"s": "an empty sequence where no value was expected"}),
        (f32(1), None, {"s": "extra"}),
        (None, f32(1), {"s": "missing"}),
        (f32(1), [f32(1)], {"s": "extra", "s[0]": "missing"}),
    ],
)
def test_sequences_and_optionals(actual: Value, expected: Value, reasons: dict[str, str | None]) -> None:
    found = compare({"s": actual}, {"s": expected})
    assert {output.name for output in found.outputs} == reasons.keys()
    for output in found.outputs:
        said = reasons[output.name]
        assert output.reason is None if said is None else said in str(output.reason)
    assert found.passed == (set(reasons.values()) == {None})
    json.dumps([output.to_json() for output in found.outputs], allow_nan=False)


def test_a_tolerance_for_an_element_of_a_sequence() -> None:
    wide = {"s[1]": Tolerance(0, 1)}
    assert compare({"s": [f32(1), f32(2)]}, {"s": [f32(1), f32(2.5)]}, wide).passed
    assert not compare({"s": [f32(1), f32(2)]}, {"s": [f32(1.5), f32(2.5)]}, wide).passed


@pytest.mark.parametrize(
    ("actual", "expected"),
    [
        (np.array([1.0, 2.5, -3.0], np.float32), np.array([1.0, 2.0, -3.0], np.float32)),
        (np.array([1.0, np.nan, np.inf], np.float32), np.array([1.0, np.nan, 3.0], np.float32)),
        (np.array([2**62, -1]), np.array([2**62 - 1, -1])),
        (np.arange(12, dtype=np.float16).reshape(2, 6), np.arange(12, dtype=np.float16).reshape(2, 6) + 1),
        (np.array(["a", "b"], object), np.array(["a", "c"], object)),
        (np.array([], np.float32), np.array([], np.float32)),
    ],
)
def test_without_metrics_it_tells_the_same(actual: np.ndarray, expected: np.ndarray) -> None:
    whole, lean = (compare({"y": actual}, {"y": expected}, measured=each).outputs[0] for each in (True, False))
    for name in (
        "passed",
        "reason",
        "mismatched",
        "nonfinite",
        "worst_index",
        "worst_actual",
        "max_abs",
        "same",
        "severity",
    ):
        assert getattr(lean, name) == getattr(whole, name), name
    assert (lean.cosine, lean.max_ulp, lean.max_rel, lean.top1) == (None, None, None, None)
