"""Constants that ONNX Runtime has no kernels for: weights in blocks of 4-bit floats, as exporters write them."""

from __future__ import annotations

from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx.reference import ReferenceEvaluator

from onnx_bridge.core.errors import InputError
from onnx_bridge.reference.reference import Reference
from tests.passes.harness import model

OPSET = 25
RANDOM = np.random.default_rng(0)
W = RANDOM.normal(size=(64, 8)).astype(ml_dtypes.float4_e2m1fn)
HALF = np.float32(0.5)
CASES = {
    "blocks": ("f = DequantizeLinear <axis = 0, block_size = 32> (w, s)", {"s": np.float32([[1] * 8, [0.5] * 8])}),
    "MXFP4": (
        f"f = DequantizeLinear <axis = 0, block_size = 32, output_dtype = {onnx.TensorProto.FLOAT}> (w, s)",
        {"s": np.exp2(RANDOM.integers(-3, 3, (2, 8))).astype(ml_dtypes.float8_e8m0fnu)},
    ),
    "NVFP4": (
        "s = DequantizeLinear (s8, t)  f = DequantizeLinear <axis = 0, block_size = 16> (w, s)",
        {"s8": RANDOM.uniform(1, 4, (4, 8)).astype(ml_dtypes.float8_e4m3fn), "t": HALF},
    ),
    "cast": (f"f = Cast <to = {onnx.TensorProto.FLOAT}> (w)", {}),
    "moved": ("v = Transpose (w)  u = Transpose (v)  f = DequantizeLinear (u, s)", {"s": HALF}),
    "shared scale": ("f = DequantizeLinear (w, s)  n = Mul(x, s)  z = Div(n, s)  o = Sub(z, x)", {"s": HALF}),
}


def of_weights(case: str) -> ir.Model:
    text, constants = CASES[case]
    return model(f"(float[2,64] x) => (float[2,8] y) {{ {text}  y = MatMul(x, f) }}", opset=OPSET, w=W, **constants)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("kept", ["file", "memory", "newer IR version"])
def test_a_product(case: str, kept: str, tmp_path: Path) -> None:
    source, path = of_weights(case), tmp_path / "m.onnx"
    x = RANDOM.normal(size=(2, 64)).astype(np.float32)
    proto = ir.to_proto(source)
    (expected,) = ReferenceEvaluator(proto).run(None, {"x": x})
    if kept == "newer IR version":
        proto.ir_version += 40
    path.write_bytes(proto.SerializeToString())
    before = ir.to_proto(source).SerializeToString()
    actual = Reference(source if kept == "memory" else path).run({"x": x})["y"]
    np.testing.assert_allclose(np.asarray(actual), expected, rtol=1e-5, atol=1e-5)
    assert ir.to_proto(source).SerializeToString() == before


def test_numbers_that_are_an_output() -> None:
    source = model("() => (float[64,8] y) { y = DequantizeLinear(w, s) }", opset=OPSET, w=W, s=HALF)
    actual = Reference(source).run({})["y"]
    np.testing.assert_array_equal(np.asarray(actual), W.astype(np.float32) * HALF)


def test_a_long_chain_is_refused() -> None:
    text = "".join(f"s{index + 1} = Neg(s{index})  " for index in range(5000))
    source = model(f"() => (float[64,8] y) {{ {text} y = DequantizeLinear(w, s5000) }}", opset=OPSET, w=W, s0=HALF)
    with pytest.raises(InputError):
        Reference(source)


@pytest.mark.parametrize(
    "text",
    [
        "q = QuantizeLinear <output_dtype = 23> (x, s)  y = DequantizeLinear(q, s)",
        "r = RandomNormalLike(s)  f = DequantizeLinear(w, r)  y = MatMul(x, f)",
        "r = RandomNormal <shape = [1]> ()  t = Squeeze(r)  f = DequantizeLinear(w, t)  y = MatMul(x, f)",
        "f = DequantizeLinear <axis = 9, block_size = 5> (w, s)  y = MatMul(x, f)",
    ],
    ids=["of inputs", "of random numbers", "of random numbers without operands", "nothing"],
)
def test_what_is_no_constant_is_refused(text: str) -> None:
    source = model("(float[2,64] x) => (float[2,8] y) { y = MatMul(x, w) }", opset=OPSET, w=W, s=HALF)
    proto = ir.to_proto(source)
    del proto.graph.node[:]
    proto.graph.node.extend(onnx.parser.parse_graph(f"g () => () {{ {text} }}").node)
    with pytest.raises(InputError):
        Reference(proto.SerializeToString())
