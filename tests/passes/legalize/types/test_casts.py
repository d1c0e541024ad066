"""Casts of numbers out of range, infinities, NaN, and to small dtypes, compared with numpy and ONNX Runtime."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import onnx_ir as ir
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx.helper import make_node

from passes.legalize import rules_of
from passes.legalize.types import casts
from passes.rewriting.base import Context, Pass
from tests.passes.device import Device
from tests.passes.dtypes import T, chain, on_ort, rewritten, same, single, why_not
from tests.passes.harness import Array, model, operators, reasons

FLOATS = ("float16", "bfloat16", "float32", "float64")
INTEGERS = ("int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64")
EIGHT = ("float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz")


def dtype(name: str) -> ir.DataType:
    return ir.DataType.from_numpy(np.dtype(name))


def numbers(name: str, seed: int = 0) -> Array:
    """Halves, the ends of the dtype's range, and numbers of all magnitudes."""
    random = np.random.default_rng(seed)
    if np.dtype(name).kind in "iu":
        info = np.iinfo(name)
        ends = np.array([info.min, info.min + 1, 0, 1, info.max - 1, info.max], name)
        return np.concatenate([ends, random.integers(info.min, info.max, 30, name, endpoint=True)])
    special = [0.0, -0.0, 0.5, -0.5, 0.49999997, 1.5, 2.5, -2.5, 65504, 65519, 65520, -65520, 3.4e38, 1e300, -1e300]
    special += [np.inf, -np.inf, np.nan, 1e-8, -1e-8]
    sizes = random.standard_normal(100) * 2.0 ** random.integers(-20, 20, 100)
    with np.errstate(over="ignore"):
        return np.concatenate([special, sizes]).astype(name)


def cast(source: Array, target: str, **attributes: int) -> tuple[ir.Model, dict[str, Array]]:
    to = dtype(target).value
    return single("Cast", [source], [to], to=to, **attributes)


class TestOverflow:
    @pytest.mark.runtime
    @pytest.mark.parametrize("target", ["float32", "float64"])
    def test_from_floats(self, target: str, device: Device) -> None:
        for source in FLOATS:
            if source == target:
                continue
            x = numbers(source)
            m, inputs = cast(x, target)
            (actual,) = device.run(rewritten(casts.cast_overflow_to_infinity, m), inputs)
            assert operators(m) == ["Cast", "Greater", "Where", "Less", "Where"]
            with np.errstate(over="ignore"):
                same([actual], [x.astype(target)])

    @pytest.mark.parametrize("target", ["float32", "float64"])
    def test_from_integers(self, target: str, device: Device) -> None:
        for source in INTEGERS:
            x = numbers(source)
            m, inputs = cast(x, target)
            (expected,) = on_ort(ir.to_proto(m), inputs)
            if not casts.can_overflow(dtype(source), dtype(target)):
                assert np.isfinite(expected).all()
                continue
            same(device.run(rewritten(casts.cast_overflow_to_infinity, m), inputs), [expected])

    def test_casts_that_cannot_overflow(self) -> None:
        for source, target in (("int32", "float64"), ("int16", "float32"), ("bool", "float16"), ("float32", "float16")):
            m, _ = cast(np.zeros(3, source), target)
            assert why_not(casts.cast_overflow_to_infinity, m) == []


class TestHalf:
    """Half to even, where ``ref`` cuts off: every bit, from ties and subnormals to infinities."""

    @pytest.mark.runtime
    @pytest.mark.parametrize("target", ["float16", "bfloat16"])
    @pytest.mark.parametrize("source", [*FLOATS, *INTEGERS])
    def test_rounds(self, source: str, target: str, device: Device) -> None:
        if source == target:
            return
        x = np.concatenate([numbers(source), numbers(source, 1)])
        if source == "float32":
            x = np.concatenate([x, ties(target)])
        elif np.dtype(source).kind in "iu":  # the ends of wide integers are cast_overflow_to_infinity's, within
            x = x[x <= np.iinfo(source).max // 2]
        m, inputs = cast(x, target)
        with np.errstate(over="ignore"):
            expected = [x.astype(np.float32).astype(target)]
        if target == "float16":
            same(on_ort(ir.to_proto(m), inputs), expected)
        same(device.run(rewritten(casts.cast_to_half, m), inputs), expected)

    @pytest.mark.runtime
    @pytest.mark.parametrize("target", ["float16", "bfloat16"])
    def test_any_bits(self, target: str, device: Device) -> None:
        x = np.random.default_rng(0).integers(0, 2**32, 100_000, np.uint32).view(np.float32)
        if target == "bfloat16":
            x = x[~((np.abs(x) > 2.0**-125) & (np.abs(x) < 2.0**-110))]  # may be rounded twice
        m, inputs = cast(x, target)
        with np.errstate(over="ignore", invalid="ignore"):
            expected = x.astype(target)
        (actual,) = device.run(rewritten(casts.cast_to_half, m), inputs)
        np.testing.assert_array_equal(actual.astype(np.float64), expected.astype(np.float64))

    def test_operators(self) -> None:
        m, _ = cast(np.zeros(3, np.float32), "bfloat16")
        rewritten(casts.cast_to_half, m)
        rounding = ["Mul", "Add", "Sub", "Sub", "Mul"]
        assert operators(m) == [*rounding, "Cast", "Greater", "Where", "Less", "Where"]
        m, _ = cast(np.zeros(3, np.float64), "float16")
        rewritten(casts.cast_to_half, m)
        small = ["Mul", "Round", "Abs", "Less", "Mul", "Where"]
        assert operators(m) == ["Cast", *rounding, *small, "Cast", "Greater", "Where", "Less", "Where"]

    @pytest.mark.parametrize(
        ("source", "target"), [("bool", "float16"), ("float32", "float64"), ("float16", "float16")]
    )
    def test_other_casts(self, source: str, target: str) -> None:
        m, _ = cast(np.zeros(3, source), target)
        assert why_not(casts.cast_to_half, m) == []


def ties(name: str) -> Array:
    """Numbers halfway between two 16-bit floats, and their neighbours, of all magnitudes."""
    bits = np.arange(0, 2**16, 7, np.uint16)
    halves = bits.view(name)
    next_ones = (bits + 1).astype(np.uint16).view(name)
    with np.errstate(invalid="ignore", over="ignore"):
        between = ((halves.astype(np.float64) + next_ones.astype(np.float64)) / 2).astype(np.float32)
        between = between[np.isfinite(between)]
        found = np.concatenate([between, np.nextafter(between, np.inf), np.nextafter(between, -np.inf)])
    return found[(np.abs(found) > 2.0**-110) | (found == 0)].astype(np.float32)


class TestBool:
    @pytest.mark.parametrize("source", ["float32", "float64", "float16", "int32", "uint8", "int64"])
    def test_all_but_zero_is_true(self, source: str, device: Device) -> None:
        x = numbers(source)
        m, inputs = cast(x, "bool")
        expected = on_ort(ir.to_proto(m), inputs)
        same(expected, [x != 0])
        proto = rewritten(casts.cast_to_bool, m)
        same(device.run(proto, inputs), expected)
        assert operators(m) == ["Equal", "Not"]


class TestIntegers:
    @pytest.mark.parametrize("target", ["int8", "uint8", "int16", "uint16", "uint32"])
    def test_low_bits(self, target: str, device: Device) -> None:
        x = np.array([-3.7, -1, -0.5, 0.5, 200.9, 255, 256, 300, -129, 65535, 65536, 70000, -70000], np.float32)
        m, inputs = cast(x, target)
        expected = on_ort(ir.to_proto(m), inputs)
        same(expected, [x.astype(np.int64).astype(target)])
        proto = rewritten(casts.cast_through_int64, m)
        same(device.run(proto, inputs), expected)
        same(on_ort(proto, inputs), expected)

    @pytest.mark.runtime
    @pytest.mark.parametrize("target", ["int4", "uint4"])
    @pytest.mark.parametrize("source", ["float32", "float16", "int32", "int8"])
    def test_four_bits(self, source: str, target: str, device: Device) -> None:
        x = np.arange(-40, 40).astype(source)
        if np.dtype(source).kind == "f":
            x = x / np.array(4, source)
        m, inputs = cast(x, target)
        whole = np.sign(x) * np.floor(np.abs(x) + 0.5)  # ONNX Runtime rounds halves away from zero
        expected = whole.astype(np.int32).astype(target)
        proto = rewritten(casts.cast_by_arithmetic, m)
        (actual,) = device.run(proto, inputs)
        np.testing.assert_array_equal(actual.astype(np.int32), expected.astype(np.int32))
        there = make_node("Cast", ["i0"], ["q"], to=dtype(target).value)
        back = make_node("Cast", ["q"], ["y"], to=T.INT32)
        runtime, given_inputs = chain([there, back], {"i0": x}, {"y": T.INT32})
        same(on_ort(ir.to_proto(runtime), given_inputs), [expected.astype(np.int32)])


class TestEight:
    @pytest.mark.runtime
    @pytest.mark.parametrize("saturate", [0, 1])
    def test_the_one_that_migraphx_has(self, saturate: int, device: Device) -> None:
        for source in ("float32", "float16"):
            x = numbers(source)
            expected = eight(x, "float8_e4m3fnuz", bool(saturate))
            m, inputs = cast(x, "float8_e4m3fnuz", saturate=saturate)
            (actual,) = device.run(rewritten(casts.cast_by_arithmetic, m), inputs)
            same([actual], [expected])

    @pytest.mark.runtime
    def test_back_through_float32(self, device: Device) -> None:
        x = np.arange(256, dtype=np.uint8).view("float8_e4m3fnuz")
        m, inputs = cast(x, "float16")
        proto = rewritten(casts.cast_through_float, m)
        same(device.run(proto, inputs), [x.astype(np.float16)])
        assert operators(m) == ["Cast", "Cast"]


def eight(x: Array, target: str, saturate: bool) -> Array:
    """The standard's tables of Cast, computed by ml_dtypes, which does not saturate."""
    x = x.astype(np.float32)
    if saturate:
        limit = float(ml_dtypes.finfo(target).max)
        x = np.clip(x, -limit, limit)
    return x.astype(target)


@pytest.mark.parametrize("rule", rules_of("types.casts"), ids=lambda rule: rule.name)
def test_correct_casts_are_unchanged(rule: Pass) -> None:
    for source, target in (("int32", "int64"), ("int64", "uint8"), ("float32", "float32"), ("bool", "int32")):
        m, _ = cast(np.zeros(3, source), target)
        assert why_not(rule, m) == []


@pytest.mark.parametrize("rule", rules_of("types.casts"), ids=lambda rule: rule.name)
def test_strings_are_unchanged(rule: Pass) -> None:
    node = make_node("Cast", ["i0"], ["y"], to=T.STRING)
    m, _ = chain([node], {"i0": np.zeros(2, np.float32)}, {"y": T.STRING})
    assert why_not(rule, m) == ["the node casts strings"]


@settings(max_examples=50, deadline=None)
@given(
    source=st.sampled_from((*INTEGERS, "float32", "float64")),
    target=st.sampled_from(("bool", "float16", "float32", "float64")),
    shape=st.sampled_from([(), (1,), (2, 3), (0, 2)]),
    seed=st.integers(0, 999),
)
def test_any_pair(source: str, target: str, shape: tuple[int, ...], seed: int) -> None:
    x = np.asarray(np.random.default_rng(seed).choice(numbers(source, seed), shape), source)
    m, inputs = cast(x, target)
    expected = on_ort(ir.to_proto(m), inputs)
    for rule in (casts.cast_to_bool, casts.cast_overflow_to_infinity, casts.cast_to_half):
        if rule.run(ir.from_proto(ir.to_proto(m)), Context()).rewrites:
            actual = on_ort(rewritten(rule, m), inputs)
            np.testing.assert_array_equal(actual, expected)  # but for signs of zeros: ORT's Round loses them
            assert actual[0].dtype == expected[0].dtype
            return
    assert source == target or np.can_cast(source, target)


def test_floats_to_bool_before_equal_takes_floats() -> None:
    m = model("(float[3] x) => (bool[3] y) { y = Cast <to = 9> (x) }", opset=10)
    result = casts.cast_to_bool.run(m, Context())
    assert operators(m) == ["Cast"]
    assert "Equal" in reasons(result)[0]
    assert "needs opset 11" in reasons(result)[0]
