"""check-quantization: every kind of quantization that cannot be meant, and the node's name in what it says."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from passes.base import Context
from passes.check_quantization import CheckQuantization
from passes.errors import InputError
from passes.pipeline import Pipeline
from tests.passes.helpers import tiny
from tests.passes.rewriting import apply

S, Z = np.float32(0.05), np.int8(0)
PAIR = """(float[2,3] x) => (float[2,3] y) { [first] q = QuantizeLinear <axis = 1> (x, s, z)
    [second] y = DequantizeLinear <axis = 1> (q, s, z) }"""
WEIGHT = "(float[2,3] x) => (float[2,3] y) { [first] d = DequantizeLinear <axis = 1> (w, s, z) y = Add(x, d) }"
W = np.array([[0, 1, 2], [0, -3, 4]], np.int8)


def refused(text: str, message: str, **constants: Any) -> None:
    with pytest.raises(InputError, match=message) as caught:
        CheckQuantization().run(tiny(text, opset=21, **constants), Context())
    assert "first" in str(caught.value)


@pytest.mark.parametrize(
    ("scale", "message"),
    [
        (np.float32(0), "scale is zero"),
        (np.float32(np.nan), "scale is NaN"),
        (np.float32(np.inf), "scale is infinite"),
        (np.float32(-0.5), "scale is negative: -0.5"),
    ],
)
def test_one_scale(scale: Any, message: str) -> None:
    refused(PAIR, message, s=scale, z=Z)
    refused(WEIGHT, message, s=scale, z=Z, w=W)


def test_as_many_as_the_axis_is_long() -> None:
    two = np.ones(2, np.float32)
    refused(PAIR, "2 scales for an axis of 3", s=two, z=np.zeros(2, np.int8))
    refused(WEIGHT, "2 scales and 3 zero points", s=two, z=np.zeros(3, np.int8), w=W)
    refused(WEIGHT.replace("axis = 1", "axis = 5"), "axis 5 of a tensor of rank 2", s=two, z=np.zeros(2, np.int8), w=W)


def test_zero_points() -> None:
    refused(WEIGHT, "zero point is uint8, and its integers are int8", s=S, z=np.uint8(0), w=W)
    refused(WEIGHT, "not zero, and its integers are of 32 bits", s=S, z=np.int32(4), w=W.astype(np.int32))


def test_a_zero_point_out_of_range() -> None:
    proto = ir.to_proto(tiny(WEIGHT, opset=21, s=S, w=W))
    proto.graph.initializer.append(onnx.TensorProto(name="z", data_type=onnx.TensorProto.INT8, int32_data=[300]))
    with pytest.raises(InputError, match="zero point 300 is out of the range of int8"):
        CheckQuantization().run(ir.from_proto(proto), Context())


def test_a_weight_that_is_quantized_twice() -> None:
    text = """(float[2,3] x) => (float[2,3] y) { d = DequantizeLinear(w, s, z) [first] q = QuantizeLinear(d, t, z)
        e = DequantizeLinear(q, t, z) y = Add(x, e) }"""
    refused(text, "weight w is quantized twice", s=S, t=np.float32(0.07), z=Z, w=W)
    assert not apply(CheckQuantization(), tiny(text, s=S, t=S, z=Z, w=W)).rewrites


def test_pruned_channels_and_signed_blocks_are_meant() -> None:
    source = tiny(WEIGHT, s=np.array([0, 1, 1], np.float32), z=np.zeros(3, np.int8), w=W)
    assert not apply(CheckQuantization(), source).rewrites
    refused(WEIGHT, "scale is zero", s=np.array([1, 0, 1], np.float32), z=np.zeros(3, np.int8), w=W)
    text = WEIGHT.replace("axis = 1", "axis = 1, block_size = 3")
    source = tiny(text, opset=21, s=np.array([[-1], [2]], np.float32), z=np.zeros((2, 1), np.int8), w=W)
    assert not apply(CheckQuantization(), source).rewrites


def test_other_operators() -> None:
    text = """(uint8[2,3] x) => (uint8[2,2] y) { [first] y = QLinearMatMul(x, s, z, w, t, z, s, z) }"""
    refused(text, "scale is negative", s=S, t=np.float32(-1), z=np.uint8(0), w=np.ones((3, 2), np.uint8))


def test_it_is_the_first_of_the_pipelines() -> None:
    for name in ("quantized", "default"):
        with pytest.raises(InputError, match="scale is zero"):
            Pipeline.parse(name).run(tiny(PAIR, s=np.float32(0), z=Z))
