"""bfloat16 on the reference: models that the pass convert-precision makes."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import onnx
import onnx_ir as ir

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
