"""What the outputs of a node are held to: equality where ONNX defines the result, else what rounding requires."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import onnx_ir as ir
import pytest

from onnx_bridge.verdicts.node_tolerances import NodeTolerance, node_tolerance
from onnx_bridge.verdicts.probe_request import migraphx_type
from passes.graphs.scopes import Scope, name_nodes
from passes.probing.probe import Probe
from passes.shapes import inference
from tests.passes.helpers import tiny

Array = np.ndarray[Any, np.dtype[Any]]
BFLOAT16 = np.dtype(ml_dtypes.bfloat16)


def probe_of(text: str, opset: int = 21, *, replaces: Probe | None = None) -> Probe:
    model = tiny(text, opset=opset)
    inference.infer(model)
    scope = Scope(model, model.graph)
    name_nodes(scope)
    return Probe.of(list(model.graph), scope, replaces=replaces)


def tolerance_of(text: str, expected: Array, opset: int = 21) -> NodeTolerance:
    return node_tolerance(probe_of(text, opset), expected)


def cut_off(x: Array, dtype: np.dtype[Any]) -> Array:
    """Numbers that are cut off where they should be rounded to 16 bits."""
    nearest = x.astype(dtype)
    beyond = np.abs(nearest.astype(np.float32)) > np.abs(x)
    return np.where(beyond, np.nextafter(nearest, np.zeros((), dtype)), nearest)


@pytest.fixture
def numbers() -> Array:
    return np.random.default_rng(0).standard_normal(256).astype(np.float32)


@pytest.mark.parametrize("dtype", [np.dtype(np.float16), BFLOAT16], ids=str)
def test_a_cast_must_round(dtype: np.dtype[Any], numbers: Array) -> None:
    to = ir.DataType.from_numpy(dtype)
    expected = numbers.astype(dtype)
    held = tolerance_of(f"(float[256] x) => (y) {{ y = Cast<to={to.value}>(x) }}", expected)
    assert held.reason(expected, expected) == (None, 0.0)
    reason, error = held.reason(cut_off(numbers, dtype), expected)
    assert reason is not None and error is not None and error > 0


@pytest.mark.parametrize("dtype", [np.dtype(np.float16), BFLOAT16], ids=str)
def test_how_ref_rounds_says_nothing_of_another_target(dtype: np.dtype[Any], numbers: Array) -> None:
    probe = probe_of(f"(float[256] x) => (y) {{ y = Cast<to={ir.DataType.from_numpy(dtype).value}>(x) }}")
    expected = numbers.astype(dtype)
    held = node_tolerance(probe, expected, stands_in=True)
    assert held.reason(cut_off(numbers, dtype), expected)[0] is None
    assert held.reason(-expected, expected)[0] is not None


@pytest.mark.parametrize(
    "text",
    [
        "(float[256] x) => (y) { y = Identity(x) }",
        "(float[16,16] x) => (y) { y = Transpose(x) }",
        "(float[256] x, float[256] z) => (y) { y = Max(x, z) }",
        "(float[256] x) => (y) { z = Relu(x) y = Round(z) }",
    ],
)
def test_what_moves_or_rounds_is_exact(text: str, numbers: Array) -> None:
    held = tolerance_of(text, numbers)
    assert held.reason(numbers, numbers)[0] is None
    assert held.reason(np.nextafter(numbers, np.float32(9)), numbers)[0] is not None


@pytest.mark.parametrize("dtype", [np.dtype(np.float16), BFLOAT16], ids=str)
def test_arithmetic_in_16_bits_may_cut_off_but_not_lose_a_bit_more(dtype: np.dtype[Any], numbers: Array) -> None:
    name = ir.DataType.from_numpy(dtype).name.lower()
    expected = numbers.astype(dtype)
    held = tolerance_of(f"({name}[256] x) => (y) {{ y = Sigmoid(x) }}", expected)
    assert held.reason(cut_off(numbers, dtype), expected)[0] is None
    eps = float(ml_dtypes.finfo(dtype).eps)  # type: ignore[no-untyped-call]
    assert held.reason((numbers * (1 + 5 * eps)).astype(dtype), expected)[0] is not None


def test_sums_may_be_off_by_a_share_of_the_largest() -> None:
    expected = np.array([1e3, 1e-3], np.float32)
    off = expected + np.float32(1e-3)
    few, many = "(float[2] x, float[2] z) => (y) { y = Add(x, z) }", "(float[2,9] x) => (y) { y = ReduceSum(x) }"
    assert tolerance_of(few, expected).reason(off, expected)[0] is not None
    assert tolerance_of(many, expected).reason(off, expected)[0] is None
    for transform in ("DFT<axis=1>(x)", "STFT(x, step)"):  # of which the reference's own zeros are as far off
        text = f"(float[2,9,1] x, int64 step) => (y) {{ y = {transform} }}"
        assert tolerance_of(text, expected, 19).reason(off, expected)[0] is None


def test_a_quantizer_of_float32_is_exact_and_others_may_differ_in_few_elements() -> None:
    expected = np.arange(64, dtype=np.uint8)
    one, all_ = expected.copy(), expected + 1
    one[3] += 1
    exact = tolerance_of("(float[64] x, float s, uint8 z) => (y) { y = QuantizeLinear(x, s, z) }", expected)
    assert exact.reason(one, expected)[0] is not None
    close = tolerance_of("(float16[64] x, float16 s, uint8 z) => (y) { y = QuantizeLinear(x, s, z) }", expected)
    assert close.reason(one, expected)[0] is None
    assert close.reason(all_, expected)[0] is not None
    two = expected.copy()
    two[3] += 2
    assert close.reason(two, expected)[0] is not None


def test_a_rehearsal_may_delete_a_pair_that_rounds_to_float8(numbers: Array) -> None:
    probe = probe_of("""(float[256] x) => (y) { one = Constant<value_float = 1.0>()
        q = QuantizeLinear<output_dtype = 17>(x, one) y = DequantizeLinear(q, one) }""")
    rounded = numbers.astype(ml_dtypes.float8_e4m3fn).astype(np.float32)
    assert node_tolerance(probe, rounded).reason(numbers, rounded)[0] is not None
    deleted = node_tolerance(probe, rounded, rehearsed=True)
    assert deleted.reason(numbers, rounded)[0] is None
    assert deleted.reason(1.25 * numbers, rounded)[0] is not None
    integers = probe_of("(float[256] x, float s) => (y) { q = QuantizeLinear(x, s) y = DequantizeLinear(q, s) }")
    assert node_tolerance(integers, rounded, rehearsed=True).reason(numbers, rounded)[0] is not None


def test_a_replacement_is_held_to_what_it_replaces(numbers: Array) -> None:
    cast = probe_of("(float[256] x) => (y) { y = Cast<to=10>(x) }")
    replacement = probe_of("(float[256] x) => (y) { z = Mul(x, x) y = Cast<to=10>(z) }", replaces=cast)
    expected = numbers.astype(np.float16)
    assert node_tolerance(replacement, expected).reason(cut_off(numbers, np.dtype(np.float16)), expected)[0] is not None


def test_an_undefined_dtype_has_no_type_in_migraphx() -> None:
    assert migraphx_type(ir.DataType.UNDEFINED) is None
    assert migraphx_type(ir.DataType.FLOAT) == "float_type"


def test_a_product_of_integers_is_exact_whose_scales_have_16_bits() -> None:
    """MIGraphX 2.16 multiplies such a product in 16 bits as well: one of six elements is a step away."""
    text = """(uint8[2,4] a, {0} s, uint8 z, uint8[4,3] b) => (uint8[2,3] y)
              {{ y = QLinearMatMul(a, s, z, b, s, z, s, z) }}"""
    expected = np.array([[168, 115, 255], [1, 66, 151]], np.uint8)
    off = np.array([[168, 115, 254], [1, 66, 151]], np.uint8)
    assert tolerance_of(text.format("float16"), expected).reason(off, expected)[0] is not None
    assert tolerance_of(text.format("float"), expected).reason(off, expected) == (None, 1.0)
