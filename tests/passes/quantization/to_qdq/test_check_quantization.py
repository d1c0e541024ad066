"""check-quantization: every kind of invalid quantization, and the node's name in the error."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from passes.core.errors import InputError
from passes.quantization.to_qdq.check_quantization import CheckQuantization
from passes.rewriting.base import Context
from passes.rewriting.pipeline import Pipeline
from tests.passes.harness import apply
from tests.passes.helpers import mentioned, tiny

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
    if not scale < 0:
        refused(WEIGHT, message, s=scale, z=Z, w=W)


def test_the_number_of_scales_of_an_axis() -> None:
    two = np.ones(2, np.float32)
    refused(PAIR, "2 scales for an axis of 3", s=two, z=np.zeros(2, np.int8))
    refused(WEIGHT, "2 scales and 3 zero points", s=two, z=np.zeros(3, np.int8), w=W)
    refused(WEIGHT.replace("axis = 1", "axis = 5"), "axis 5 of a tensor of rank 2", s=two, z=np.zeros(2, np.int8), w=W)


def test_zero_points() -> None:
    refused(WEIGHT, "zero point is uint8, and its integers are int8", s=S, z=np.uint8(0), w=W)
    refused(WEIGHT, "not zero, and its integers have 32 bits", s=S, z=np.int32(4), w=W.astype(np.int32))


def test_a_zero_point_out_of_range() -> None:
    proto = ir.to_proto(tiny(WEIGHT, opset=21, s=S, w=W))
    proto.graph.initializer.append(onnx.TensorProto(name="z", data_type=onnx.TensorProto.INT8, int32_data=[300]))
    with pytest.raises(InputError, match="zero point 300 is out of range of int8"):
        CheckQuantization().run(ir.from_proto(proto), Context())


def test_a_weight_that_is_quantized_twice() -> None:
    text = """(float[2,3] x) => (float[2,3] y) { d = DequantizeLinear(w, s, z) [first] q = QuantizeLinear(d, t, z)
        e = DequantizeLinear(q, t, z) y = Add(x, e) }"""
    refused(text, "weight w is quantized twice", s=S, t=np.float32(0.07), z=Z, w=W)
    assert not apply(CheckQuantization(), tiny(text, s=S, t=S, z=Z, w=W)).rewrites


def test_pruned_channels_and_signed_weights_are_valid() -> None:
    z = np.zeros(3, np.int8)
    source = tiny(WEIGHT, s=np.array([0, 1, 1], np.float32), z=z, w=W)
    assert not apply(CheckQuantization(), source).rewrites
    refused(WEIGHT, "scale is zero", s=np.array([1, 0, 1], np.float32), z=z, w=W)
    assert not apply(CheckQuantization(), tiny(WEIGHT, s=np.array([1, -1, 1], np.float32), z=z, w=W)).rewrites
    text = WEIGHT.replace("axis = 1", "axis = 1, block_size = 3")
    source = tiny(text, opset=21, s=np.array([[-1], [2]], np.float32), z=np.zeros((2, 1), np.int8), w=W)
    assert not apply(CheckQuantization(), source).rewrites


def test_other_operators() -> None:
    text = """(uint8[2,3] x) => (uint8[2,2] y) { [first] y = QLinearMatMul(x, s, z, w, t, z, s, z) }"""
    refused(text, "scale is negative", s=S, t=np.float32(-1), z=np.uint8(0), w=np.ones((3, 2), np.uint8))


def test_it_is_the_first_pass_of_the_pipelines() -> None:
    for name in ("quantized", "default"):
        with pytest.raises(InputError, match="scale is zero"):
            Pipeline.parse(name).run(tiny(PAIR, s=np.float32(0), z=Z))


def test_dtypes_of_zero_point_and_integers_differ() -> None:
    text = PAIR.replace("[first] ", "").replace("[second]", "[first]").replace("(q, s, z)", "(q, s, u)")
    refused(text, "zero point is uint8, and its integers are int8", s=S, z=Z, u=np.uint8(0))


def test_a_scale_must_be_a_float() -> None:
    refused(WEIGHT, "its scale is int32", s=np.int32(1), z=Z, w=W)


@pytest.mark.parametrize("shape", [(1, 3), (2, 2), (2, 4)])
def test_the_number_of_blocks(shape: tuple[int, int]) -> None:
    text = WEIGHT.replace("axis = 1", "axis = 1, block_size = 2").replace("2,3]", "2,4]")
    weight = np.arange(8, dtype=np.int8).reshape(2, 4)
    scale, zero = np.ones(shape, np.float32), np.zeros(shape, np.int8)
    if shape == (2, 2):
        assert not apply(CheckQuantization(), tiny(text, opset=21, s=scale, z=zero, w=weight)).rewrites
    else:
        refused(text, "blocks", s=scale, z=zero, w=weight)


CONVOLUTION = "(uint8[1,2,4,4] x) => (uint8[1,3,2,2] y) { [first] y = QLinearConv(x, s, z, w, t, u, s, z) }"
PRODUCT = "(uint8[2,3] x) => (uint8[2,4] y) { [first] y = QLinearMatMul(x, s, z, w, t, u, s, z) }"
INTEGERS = "(uint8[2,3] x) => (int32[2,4] y) { [first] y = MatMulInteger(x, w, z, u) }"


@pytest.mark.parametrize(
    ("text", "weight", "changed", "message"),
    [
        (CONVOLUTION, (3, 2, 3, 3), {"t": np.ones(2, np.float32)}, "2 scales for an axis of 3"),
        (CONVOLUTION, (3, 2, 3, 3), {"u": np.int8(0)}, "zero point is int8, and its integers are uint8"),
        (CONVOLUTION, (3, 2, 3, 3), {"s": np.float32(np.nan)}, "scale is NaN"),
        (PRODUCT, (3, 4), {"t": np.ones(3, np.float32)}, "3 scales for an axis of 4"),
        (PRODUCT, (3, 4), {"s": np.float32(0)}, "scale is zero"),
        (INTEGERS, (3, 4), {"u": np.zeros(3, np.uint8)}, "3 zero points for an axis of 4"),
        (INTEGERS, (3, 4), {"z": np.int8(0)}, "zero point is int8, and its integers are uint8"),
    ],
)
def test_operators_on_integers(text: str, weight: tuple[int, ...], changed: dict[str, Any], message: str) -> None:
    given = {"s": S, "z": np.uint8(3), "t": S, "u": np.uint8(3), "w": np.ones(weight, np.uint8)}
    assert not apply(CheckQuantization(), tiny(text, **mentioned(text, given))).rewrites
    refused(text, message, **mentioned(text, given | changed))


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("q = com.amd.quark.ExtendedQuantizeLinear (x, s, z)", "scale is zero"),
        ("q = com.amd.quark.ExtendedQuantizeLinear (x, n, z)", "scale is NaN"),
        ("q = com.amd.quark.ExtendedQuantizeLinear <axis = 1> (x, v, o)", "2 scales for an axis of 3"),
        ("q = com.microsoft.QuantizeLinear (x, s, z)", "scale is zero"),
        ("q = com.microsoft.QuantizeLinear <axis = 1> (x, v, o)", "2 scales for an axis of 3"),
        ("q = com.microsoft.MatMulNBits <K = 3, N = 4, bits = 4, block_size = 16> (x, b, v)", "2 scales for 4 blocks"),
        ("q = com.microsoft.MatMulNBits <K = 3, N = 4, bits = 4, block_size = 16> (x, b, p)", "scale is infinite"),
    ],
)
def test_operators_of_other_domains(body: str, message: str) -> None:
    header = '<ir_version: 10, opset_import: ["": 21, "com.microsoft": 1, "com.amd.quark": 1]>'
    proto = onnx.parser.parse_model(f"{header} g (float[2,3] x) => (q) {{ [first] {body} }}")
    given = {
        "s": np.float32(0),
        "n": np.float32(np.nan),
        "z": np.int16(0),
        "v": np.ones(2, np.float32),
        "o": np.zeros(2, np.int16),
        "b": np.ones((4, 1, 8), np.uint8),
        "p": np.full(4, np.inf, np.float32),
    }
    proto.graph.initializer.extend(onnx.numpy_helper.from_array(np.asarray(each), name) for name, each in given.items())
    with pytest.raises(InputError, match=message) as caught:
        CheckQuantization().run(ir.from_proto(proto), Context())
    assert "first" in str(caught.value)


def test_the_default_pipeline_names_the_node() -> None:
    proto = ir.to_proto(tiny(WEIGHT, s=np.array([0.1, np.inf, 1], np.float32), z=np.zeros(3, np.int8), w=W))
    with pytest.raises(InputError, match="DequantizeLinear first: its scale is infinite"):
        Pipeline.parse("default").run(ir.from_proto(proto), Context())


def test_a_constant_of_zeros() -> None:
    text = """(float[2,3] x) => (float[2,3] y) { [first] q = QuantizeLinear (w, s, z) d = DequantizeLinear (q, s, z)
        y = Add(x, d) }"""
    given = {"s": np.float32(0), "z": Z}
    assert not CheckQuantization().run(tiny(text, **given, w=np.zeros((2, 3), np.float32)), Context()).rewrites
    refused(text, "scale is zero", **given, w=np.ones((2, 3), np.float32))
