"""BitCast by arithmetic: bit-exact for all kinds of numbers."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import onnx_ir as ir
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from passes.legalize.types.bit_cast import bit_cast_by_arithmetic
from tests.passes.device import Device
from tests.passes.dtypes import on_ort, rewritten, same, single, why_not
from tests.passes.harness import Array, operators

PAIRS = [
    ("float32", "int32"),
    ("float32", "uint32"),
    ("float64", "int64"),
    ("float64", "uint64"),
    ("float16", "uint16"),
    ("bfloat16", "int16"),
    ("float16", "bfloat16"),
]


def dtype(name: str) -> ir.DataType:
    return ir.DataType.from_numpy(np.dtype(name))


def floats(name: str, seed: int = 0) -> Array:
    """All kinds of floats, in all binades; one NaN, which is quiet and without a sign."""
    info = ml_dtypes.finfo(name)
    width = np.dtype(name).itemsize
    patterns = np.random.default_rng(seed).integers(0, 2 ** (8 * width) - 1, 300, f"u{width}", endpoint=True)
    found = patterns.view(name)
    with np.errstate(invalid="ignore"):
        found = found[~np.isnan(found.astype(np.float64))]
    tiny, least, most = float(info.smallest_subnormal), float(info.smallest_normal), float(info.max)
    special = [0.0, -0.0, 1.0, -1.0, 1.5, tiny, -tiny, 3 * tiny, least, -least, least - tiny, 2 * least]
    special += [most, -most, np.inf, -np.inf, np.nan]
    return np.concatenate([np.array(special).astype(name), found])


@pytest.mark.runtime
@pytest.mark.parametrize(("one", "other"), PAIRS)
def test_there_and_back(one: str, other: str, device: Device) -> None:
    x = floats(one)
    if other == "bfloat16":
        x = x[~np.isnan(x.view("bfloat16").astype(np.float64))]
    for given_array, target in ((x, other), (x.view(other), one)):
        m, inputs = single("BitCast", [given_array], [dtype(target)], opset=26, to=dtype(target).value)
        (actual,) = device.run(rewritten(bit_cast_by_arithmetic, m), inputs)
        width = f"u{actual.dtype.itemsize}"
        assert actual.dtype == np.dtype(target)
        np.testing.assert_array_equal(actual.view(width), given_array.view(width))


@pytest.mark.parametrize(
    ("one", "other"), [("int8", "uint8"), ("uint16", "int16"), ("uint32", "int32"), ("int64", "uint64")]
)
def test_integers(one: str, other: str, device: Device) -> None:
    info = np.iinfo(one)
    x = np.array([info.min, info.min + 1, 0, 1, info.max - 1, info.max], one)
    m, inputs = single("BitCast", [x], [dtype(other)], opset=26, to=dtype(other).value)
    proto = rewritten(bit_cast_by_arithmetic, m)
    assert operators(m) == ["Cast"]
    same(device.run(proto, inputs), [x.view(other)])
    same(on_ort(proto, inputs), [x.view(other)])


def test_bool(device: Device) -> None:
    x = np.array([True, False])
    m, inputs = single("BitCast", [x], [dtype("uint8")], opset=26, to=dtype("uint8").value)
    same(device.run(rewritten(bit_cast_by_arithmetic, m), inputs), [x.view(np.uint8)])
    m, inputs = single("BitCast", [x.view(np.uint8)], [dtype("bool")], opset=26, to=dtype("bool").value)
    same(device.run(rewritten(bit_cast_by_arithmetic, m), inputs), [x])


def test_nan_is_quiet_and_without_a_sign(device: Device) -> None:
    patterns = np.array([0x7F800001, 0xFFC00000, 0x7FFFFFFF], np.uint32)
    m, inputs = single("BitCast", [patterns.view(np.float32)], [dtype("uint32")], opset=26, to=dtype("uint32").value)
    proto = rewritten(bit_cast_by_arithmetic, m)
    same(device.run(proto, inputs), [np.full(3, 0x7FC00000, np.uint32)])
    m, inputs = single("BitCast", [patterns], [dtype("float32")], opset=26, to=dtype("float32").value)
    assert np.isnan(device.run(rewritten(bit_cast_by_arithmetic, m), inputs)[0]).all()


def test_minus_zero_by_onnx_runtime() -> None:
    bits = np.array([-(2**31), 0], np.int32)
    m, inputs = single("BitCast", [bits], [dtype("float32")], opset=26, to=dtype("float32").value)
    same(on_ort(rewritten(bit_cast_by_arithmetic, m), inputs), [bits.view(np.float32)])


@settings(max_examples=30, deadline=None)
@given(
    pair=st.sampled_from([("float32", "int32"), ("float64", "uint64")]),
    shape=st.sampled_from([(), (1,), (2, 3), (2, 1, 2)]),
    back=st.booleans(),
    seed=st.integers(0, 999),
)
def test_shapes(pair: tuple[str, str], shape: tuple[int, ...], back: bool, seed: int) -> None:
    one, other = pair[:: -1 if back else 1]
    numbers = floats(pair[0], seed)
    x = np.random.default_rng(seed).choice(numbers, shape)
    x = np.asarray(x, pair[0])
    source, expected = (x.view(pair[1]), x) if back else (x, x.view(pair[1]))
    m, inputs = single("BitCast", [source], [dtype(other)], opset=26, to=dtype(other).value)
    same(on_ort(rewritten(bit_cast_by_arithmetic, m), inputs), [expected])
    assert np.dtype(one) == source.dtype


def test_the_same_dtype() -> None:
    m, _ = single("BitCast", [floats("float32")], [dtype("float32")], opset=26, to=dtype("float32").value)
    rewritten(bit_cast_by_arithmetic, m)
    assert operators(m) == ["Identity"]


def test_other_dtypes_are_unchanged() -> None:
    x = np.zeros(2, ml_dtypes.float8_e5m2)
    m, _ = single("BitCast", [x], [dtype("int8")], opset=26, to=dtype("int8").value)
    assert why_not(bit_cast_by_arithmetic, m) == ["a BitCast from float8e5m2 to int8 is not supported"]
