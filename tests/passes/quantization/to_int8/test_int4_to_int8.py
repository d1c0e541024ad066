"""int4-to-int8: which weights are widened, and that results are unchanged."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import onnx_ir as ir
import pytest

from passes.quantization.to_int8.int4_to_int8 import int4_to_int8
from tests.passes.harness import apply, reasons
from tests.passes.helpers import tiny

STEP = int4_to_int8
S, Z = np.float32(0.1), np.int8(3)
PRODUCT = """(float[2,4] x) => (float[2,6] y) { q = QuantizeLinear(x, s, a) d = DequantizeLinear(q, s, a)
    e = DequantizeLinear <axis = 1> (w, t, z) y = MatMul(d, e) }"""
NUMBERS = np.random.default_rng(3).integers(0, 8, (4, 6))


def dtypes(source: ir.Model) -> set[str]:
    """The dtypes of integers and zero points that are dequantized."""
    nodes = [node for node in source.graph if node.op_type == "DequantizeLinear"]
    values = [value for node in nodes for value in (node.inputs[0], *node.inputs[2:])]
    return {value.dtype.name for value in values if value is not None and value.dtype is not None}


@pytest.mark.parametrize(("stored", "wide"), [(ml_dtypes.int4, "INT8"), (ml_dtypes.uint4, "UINT8")])
@pytest.mark.parametrize("several", [False, True])
def test_weights_of_products(stored: Any, wide: str, several: bool) -> None:
    scale = np.linspace(0.1, 0.3, 6, dtype=np.float32) if several else S
    zero = np.full(scale.shape, 2).astype(stored)
    source = tiny(PRODUCT, opset=21, s=S, a=Z, w=NUMBERS.astype(stored), t=scale, z=zero)
    assert len(apply(STEP, source).rewrites) == 1
    assert wide in dtypes(source)
    assert not dtypes(source) & {"INT4", "UINT4"}


def test_convolutions_and_other_users() -> None:
    weight = np.arange(-8, 8).reshape(4, 4, 1, 1).astype(ml_dtypes.int4)
    text = "(float[1,4,3,3] x) => (float[1,4,3,3] y) { e = DequantizeLinear <axis = 0> (w, t) y = Conv(x, e) }"
    source = tiny(text, opset=21, w=weight, t=np.linspace(0.1, 0.3, 4, dtype=np.float32))
    assert apply(STEP, source).rewrites
    text = "(float[4,6] x) => (float[4,6] y) { e = DequantizeLinear(w, s) y = Add(x, e) }"
    assert apply(STEP, tiny(text, opset=21, w=NUMBERS.astype(ml_dtypes.int4), s=S)).rewrites


def test_scalar_zero_point_of_a_float_product() -> None:
    """MIGraphX crashes on it with a segmentation fault."""
    text = "(float[2,4] x) => (float[2,6] y) { e = DequantizeLinear(w, s, z) y = MatMul(x, e) }"
    four = NUMBERS.astype(ml_dtypes.int4)
    assert apply(STEP, tiny(text, opset=21, w=four, s=S, z=np.array(1, ml_dtypes.int4))).rewrites


def test_unchanged() -> None:
    four, scale = NUMBERS.astype(ml_dtypes.int4), np.linspace(0.1, 0.3, 6, dtype=np.float32)
    text = "(float[2,4] x) => (float[2,6] y) { e = DequantizeLinear <axis = 1> (w, t) y = MatMul(x, e) }"
    assert "in float" in reasons(apply(STEP, tiny(text, opset=21, w=four, t=scale)))[0]
    blocks = text.replace("axis = 1", "axis = 0, block_size = 2")
    assert not apply(STEP, tiny(blocks, opset=21, w=four, t=np.ones((2, 6), np.float32))).rewrites
    assert not apply(STEP, tiny(text, opset=21, w=four.astype(np.int8), t=scale)).rewrites
