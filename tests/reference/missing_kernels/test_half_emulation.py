"""16-bit floats on the reference: models that the pass convert-precision makes, and roundings."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import onnx
import onnx_ir as ir

from onnx_bridge.reference.missing_kernels.half_emulation import emulate_halves
from onnx_bridge.reference.reference import Reference
from passes.rewriting.base import Context
from passes.specialize.convert_precision import ConvertPrecision
from tests.passes.harness import feeds, model, reasons, run
from tests.passes.helpers import initializers


def test_what_convert_precision_makes() -> None:
    text = "(float[1,2,5,5] x) => (float[1,2,3,3] y) { a = Conv(x, w)  y = Relu(a) }"
    w = np.random.default_rng(0).standard_normal((2, 2, 3, 3)).astype(np.float32)
    found = ConvertPrecision(to="bf16").run(model(text, w=w), Context())
    assert reasons(found) == ["Conv of opset 17 does not support bfloat16"]
    source = model(text, opset=22, w=w)
    expected = run(ir.to_proto(source))["y"]
    assert not ConvertPrecision(to="bf16").run(source, Context()).skips
    proto = ir.to_proto(source)
    onnx.checker.check_model(proto, full_check=True)
    actual = Reference(source).run(dict(feeds(proto)))["y"]
    assert isinstance(actual, np.ndarray)
    np.testing.assert_allclose(actual, expected, rtol=0.02, atol=0.02)
    (weights,) = (array for array in initializers(source).values() if array.ndim == 4)
    assert weights.tobytes() == w.astype(ml_dtypes.bfloat16).tobytes()


def test_float16_is_rounded_after_each_node() -> None:
    """ONNX Runtime by itself rounds only what a model returns."""
    source = model("(float16[3] x) => (float16[3] y) { a = Mul(x, x)  y = Sqrt(a) }")
    inputs = {"x": np.array([1000, 1.0009765625, 1], np.float16)}
    assert np.isfinite(np.asarray(Reference(source).run(dict(inputs))["y"])).all()
    emulated = emulate_halves(source)
    onnx.checker.check_model(ir.to_proto(emulated), full_check=True)
    (actual,) = Reference(emulated).run(dict(inputs)).values()
    with np.errstate(over="ignore"):
        expected = np.sqrt(np.square(inputs["x"]))  # numpy rounds both
    assert np.isinf(expected[0])
    np.testing.assert_array_equal(np.asarray(actual), expected)


def test_what_has_no_16_bits_stays() -> None:
    source = model("(float[3] x) => (float[3] y) { y = Sqrt(x) }")
    assert emulate_halves(source) is source
