"""saturate-before-quantize: where Clip is inserted, where not, and that no integer changes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnx_ir as ir
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from passes.quantization.to_int8.saturate_before_quantize import saturate_before_quantize
from passes.rewriting.base import Context
from tests.passes.harness import apply, operators, reasons, run, stops
from tests.passes.helpers import tiny

STEP = saturate_before_quantize
S, Z = np.float32(0.05), np.int8(0)
TEXT = "(float[2,4,3] x) => (float[2,4,3] y) { q = QuantizeLinear(x, s, z) y = DequantizeLinear(q, s, z) }"
X = {"x": np.linspace(-20, 20, 24, dtype=np.float32).reshape(2, 4, 3)}


def bounds(source: ir.Model) -> list[float]:
    clip = next(node for node in source.graph if node.op_type == "Clip")
    found = [value.const_value for value in clip.inputs[1:] if value is not None]
    return [float(each.numpy()) for each in found if each is not None]


@pytest.mark.parametrize(
    ("zero", "low", "high"),
    [(np.int8(0), -6.4, 6.35), (np.int8(-128), 0, 12.75), (np.uint8(0), 0, 12.75), (np.uint8(128), -6.4, 6.35)],
)
def test_per_tensor(zero: Any, low: float, high: float) -> None:
    source = tiny(TEXT, s=S, z=zero)
    apply(STEP, source, inputs=X)
    assert operators(source) == ["Clip", "QuantizeLinear", "DequantizeLinear"]
    np.testing.assert_allclose(bounds(source), [low, high], rtol=1e-6)


def test_along_an_axis() -> None:
    text = """(float[2,4,3] x) => (float[2,4,3] y) {
        q = QuantizeLinear <axis = -2> (x, s, z) y = DequantizeLinear <axis = -2> (q, s, z) }"""
    source = tiny(text, s=np.array([0.01, 0.5, 0.1, 0.02], np.float32), z=np.array([0, 5, -128, 127], np.int8))
    apply(STEP, source, inputs=X)
    assert operators(source) == ["Max", "Min", "QuantizeLinear", "DequantizeLinear"]


@pytest.mark.parametrize(
    "between",
    ["r = Identity(q)", "r = Reshape(q, k)", "p, r = Split <axis = 1> (q)", "p = Pad(q, n) r = Slice(p, n, k)"],
)
def test_integers_rearranged_before_dequantization(between: str) -> None:
    text = f"(float[2,4] x) => (y) {{ q = QuantizeLinear(x, s, z) {between} y = DequantizeLinear(r, s, z) }}"
    source = tiny(text, s=S, z=Z, k=np.array([4, 2]), n=np.array([0, 0, 0, 0]))
    STEP.run(source, Context())
    assert operators(source)[0] == "Clip"


def test_sixteen_bits_of_microsoft_and_half_precision() -> None:
    text = """(float[2,4,3] x) => (float16[2,4,3] y) { h = Cast <to = 10> (x)
        q = QuantizeLinear(h, s, z) y = DequantizeLinear(q, s, z) }"""
    source = tiny(text, opset=21, s=np.float16(0.05), z=Z)
    apply(STEP, source, inputs=X)
    assert operators(source)[1] == "Clip"
    source = tiny(
        TEXT.replace("y = D", "y = com.microsoft.D").replace("q = Q", "q = com.microsoft.Q"), s=S, z=np.int16(7)
    )
    source.opset_imports["com.microsoft"] = 1
    apply(STEP, source, inputs=X)
    assert operators(source) == ["Clip", "QuantizeLinear", "DequantizeLinear"]


@pytest.mark.parametrize(
    "before",
    [
        "Clip(x, low, high)",
        "Sigmoid(x)",
        "Softmax(x)",
        "DequantizeLinear(w, s, z)",
    ],
)
def test_values_in_range(before: str) -> None:
    text = f"""(float[2,4,3] x) => (float[3,4,2] y) {{ v = {before} a = Transpose(v)
        q = QuantizeLinear(a, s, z) y = DequantizeLinear(q, s, z) }}"""
    source = tiny(text, s=S, z=Z, low=np.float32(-3), high=np.float32(2), w=np.ones((2, 4, 3), np.int8))
    assert not apply(STEP, source, inputs=X).rewrites


def test_relu_still_needs_the_upper_bound() -> None:
    source = tiny(TEXT.replace("{ q", "{ r = Relu(x) q").replace("(x, s", "(r, s"), s=S, z=np.int8(-128))
    apply(STEP, source, inputs=X)
    assert operators(source)[:2] == ["Relu", "Clip"]


def test_without_dequantization_and_of_constants() -> None:
    source = tiny("(float[4] x) => (int8[4] q) { q = QuantizeLinear(x, s, z) }", s=S, z=Z)
    assert not apply(STEP, source).rewrites
    text = "(float[4] x) => (y) { q = QuantizeLinear(w, s, z) d = DequantizeLinear(q, s, z) y = Add(x, d) }".replace(
        "(y)", "(float[4] y)"
    )
    assert not apply(STEP, tiny(text, s=S, z=Z, w=np.ones(4, np.float32))).rewrites


@pytest.mark.parametrize(
    "text",
    [
        "q = QuantizeLinear(x, s, z) i = Cast <to = 1> (q) a = Add(x, k) y = Mul(i, a)",
        "q = QuantizeLinear(x, s, z) t = Transpose(q) d = DequantizeLinear(t, s, z) e = Transpose(d) a = Add(x, k) "
        "y = Mul(e, a)",
    ],
)
def test_float_consumers(text: str, tmp_path: Path, runtime: Any) -> None:
    from fixtures.gpu_view import gpu_view

    """MIGraphX would give Add the quantized and dequantized x; Clip prevents that."""
    source = tiny(f"(float[2,4] x) => (float[2,4] y) {{ {text} }}", s=np.float32(0.01), z=Z, k=np.float32(1.5))
    apply(STEP, source, inputs={"x": X["x"].reshape(-1)[:8].reshape(2, 4)})
    assert operators(source)[0] == "Clip"
    path = tmp_path / "model.onnx"
    onnx.save(onnx.shape_inference.infer_shapes(ir.to_proto(source)), path)
    view = gpu_view(path, tmp_path / "program.mxr", runtime)
    assert [each.operator for each in view.operators].count("dequantizelinear") == text.count("DequantizeLinear")


@pytest.mark.parametrize(
    ("text", "constants", "reason"),
    [
        (TEXT.replace("{ q", "{ s = Abs(t) q"), {"t": S}, ""),
        (TEXT, {"z": np.array(0, ml_dtypes.float8_e4m3fn)}, "rounds by each number's size"),
        (
            TEXT.replace("(x, s, z)", "<axis = 1, block_size = 2> (x, b, c)").replace(
                "(q, s, z)", "<axis = 1, block_size = 2> (q, b, c)"
            ),
            {"b": np.ones((2, 2, 3), np.float32), "c": np.zeros((2, 2, 3), np.int8)},
            "in blocks",
        ),
        (TEXT, {"s": np.float32(3e38)}, "not finite"),
    ],
)
def test_skips(text: str, constants: dict[str, Any], reason: str) -> None:
    source = tiny(text, opset=21, **({"s": S} if "t" not in constants else {}) | {"z": Z} | constants)
    result = apply(STEP, source, inputs=X)
    assert not result.rewrites
    assert (reason or "not constant") in reasons(result)[0]


def test_budget() -> None:
    assert [stops(STEP, tiny(TEXT, s=S, z=Z), limit) for limit in range(3)] == [0, 1, 1]


@settings(max_examples=40, deadline=None)
@given(power=st.integers(-90, 90), zero=st.integers(-128, 127), seed=st.integers(0, 99))
def test_no_integer_changes(power: int, zero: int, seed: int) -> None:
    text = "(float[64] x) => (int8[64] q, float[64] y) { q = QuantizeLinear(x, s, z) y = DequantizeLinear(q, s, z) }"
    random = np.random.default_rng(seed)
    scale = float(np.float32(2.0**power * random.uniform(1, 2)))
    source = tiny(text, s=np.float32(scale), z=np.int8(zero))
    x = (random.standard_normal(64) * scale * 150).astype(np.float32)
    x[:8] = np.float32(scale) * (np.array([-128, 127, -129, 128, -128.5, 127.5, 0, 1e4]) - zero).astype(np.float32)
    before = run(ir.to_proto(source), {"x": x})
    apply(STEP, source, inputs={"x": x})
    assert "Clip" in operators(source)
    np.testing.assert_array_equal(run(ir.to_proto(source), {"x": x})["q"], before["q"])
