"""widen-scales: half-precision scales become float32, and no value changes."""

from __future__ import annotations

import numpy as np

from passes.quantization.to_int8.widen_scales import widen_scales
from tests.passes.harness import apply, operators, reasons
from tests.passes.helpers import tiny

STEP = widen_scales
TEXT = "(float16[2,3] x) => (float16[2,3] y) { q = QuantizeLinear(x, s, z) y = DequantizeLinear(q, s, z) }"


def test_a_pair() -> None:
    source = tiny(TEXT, opset=19, s=np.float16(0.0312), z=np.int8(-3))
    apply(STEP, source)
    assert operators(source) == ["Cast", "QuantizeLinear", "DequantizeLinear", "Cast"]


def test_a_weight_along_an_axis() -> None:
    text = "(float16[2,3] x) => (float16[2,3] y) { d = DequantizeLinear <axis = 0> (w, s) y = Add(x, d) }"
    source = tiny(text, opset=19, w=np.arange(6, dtype=np.int8).reshape(2, 3), s=np.array([0.1, 7], np.float16))
    apply(STEP, source)
    assert operators(source) == ["DequantizeLinear", "Cast", "Add"]


def test_unchanged() -> None:
    source = tiny(TEXT.replace("float16", "float"), s=np.float32(0.1), z=np.int8(0))
    assert not apply(STEP, source).rewrites
    text = TEXT.replace("x)", "x, float16 s)")
    given = {"x": np.ones((2, 3), np.float16), "s": np.array(1, np.float16)}
    result = apply(STEP, tiny(text, opset=19, z=np.int8(0)), inputs=given)
    assert reasons(result) == ["the scale is not constant"] * 2
