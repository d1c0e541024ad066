"""decompose-quark: bit for bit what Quark's kernels compute, on ONNX Runtime and on MIGraphX."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto

from onnx_bridge.reference.quark import operators as quark
from passes.cleanup.remove_dead import RemoveDead
from passes.quantization.to_qdq.decompose_quark import decompose_quark
from passes.rewriting.base import Context
from tests.passes.device import Device
from tests.passes.harness import reasons, run

RANDOM = np.random.default_rng(5)
X = (RANDOM.standard_normal((2, 5, 20)) * np.exp(RANDOM.standard_normal((2, 5, 20)) * 3)).astype(np.float32)
X.ravel()[:10] = [0, 0.5, 1.5, -2.5, 1, -1, 96, -127.75, 2**-20, -(2**20)]


def model(
    body: str, shape: str = "2,5,20", opset: int = 17, domain: str = "com.amd.quark", **constants: Any
) -> ir.Model:
    header = f'<ir_version: 10, opset_import: ["": {opset}, "{domain}": 1]>'
    proto = onnx.parser.parse_model(f"{header} g (float[{shape}] x) => (float[{shape}] y) {{ {body} }}")
    for name, value in constants.items():
        tensor = value if isinstance(value, onnx.TensorProto) else onnx.numpy_helper.from_array(value, name)
        proto.graph.initializer.append(tensor)
    return ir.from_proto(proto)


def computes(source: ir.Model, expected: Any, device: Device, x: Any = X) -> None:
    assert decompose_quark.run(source, Context()).rewrites
    RemoveDead().run(source, Context())
    proto = ir.to_proto(source)
    assert not [node for node in proto.graph.node if node.domain == "com.amd.quark"]
    onnx.checker.check_model(proto, full_check=True)
    np.testing.assert_array_equal(run(proto, {"x": x})["y"], expected)
    np.testing.assert_array_equal(device.run(proto, {"x": x})[0], expected)
    assert not decompose_quark.run(source, Context()).rewrites


@pytest.mark.parametrize("mode", [0, 1, 2])
@pytest.mark.parametrize(("bits", "size", "axis"), [(16, 8, 1), (12, 16, -1), (16, 7, 2)])
def test_block_floats(bits: int, size: int, axis: int, mode: int, device: Device) -> None:
    source = model(
        f"y = com.amd.quark.BFPQuantizeDequantize <bit_width = {bits}, block_size = {size}, rounding_mode = {mode}, "
        f"axis = {axis}> (x)"
    )
    computes(source, quark.bfp(X, axis=axis, bits=bits, size=size, mode=mode), device)


@pytest.mark.parametrize("mode", [0, 1, 2])
def test_block_floats_that_widen(mode: int, device: Device) -> None:
    source = model(
        "y = com.amd.quark.BFPQuantizeDequantize <bit_width = 16, block_size = 8, use_compiler_version_cpu_kernel = 1, "
        f"rounding_mode = {mode}> (x)"
    )
    computes(source, quark.bfp(X, axis=1, bits=16, size=8, mode=mode, widen=True), device)


@pytest.mark.parametrize("mode", [0, 1, 2])
@pytest.mark.parametrize("bits", [11, 13, 16])
def test_block_floats_with_sub_blocks(bits: int, mode: int, device: Device) -> None:
    source = model(
        f'y = com.amd.quark.BFPQuantizeDequantize <bfp_method = "to_bfp_prime", bit_width = {bits}, block_size = 16, '
        f"sub_block_size = 2, sub_block_shift_bits = 1, rounding_mode = {mode}, axis = 2> (x)"
    )
    computes(source, quark.bfp_prime(X, axis=2, bits=bits, size=16, mode=mode, part=2, shift=1), device)


@pytest.mark.parametrize("element", ["fp8_e5m2", "fp8_e4m3", "fp6_e3m2", "fp6_e2m3", "fp4_e2m1", "int8"])
def test_mx(element: str, device: Device) -> None:
    options = f'element_dtype = "{element}", block_size = 32, rounding_mode = 2, axis = 1'
    body = f"y = com.amd.quark.MXQuantizeDequantize <{options}>"
    computes(model(body + " (x)"), quark.mx(X, axis=1, element=element, size=32, mode=2), device)
    vector = X.ravel()[:9].copy()
    source = model(body.replace("32", "4") + " (x)", shape="9")
    computes(source, quark.mx(vector, axis=0, element=element, size=4, mode=2), device, vector)


def test_bfloat16_rounding_first_and_the_older_name(device: Device) -> None:
    source = model(
        "y = com.vai.quantize.BFPFixNeuron <bit_width = 16, block_size = 8, convert_to_bfloat_before_bfp = 1> (x)",
        domain="com.vai.quantize",
    )
    rounded = quark.extended(X, np.float32(1), "bfloat16")
    computes(source, quark.bfp(rounded, axis=1, bits=16, size=8, mode=0), device)


def test_infinities_and_one_number() -> None:
    x = X.copy()
    x[0, 0, 0], x[1, 2, 3] = np.inf, np.nan
    source = model("y = com.amd.quark.BFPQuantizeDequantize <bit_width = 16, block_size = 8> (x)")
    decompose_quark.run(source, Context())
    finite = np.where(np.isfinite(x), x, 0)
    expected = np.where(np.isfinite(x), quark.bfp(finite, axis=1, bits=16, size=8, mode=0), x)
    np.testing.assert_array_equal(run(ir.to_proto(source), {"x": x})["y"], expected)
    source = model('y = com.amd.quark.MXQuantizeDequantize <element_dtype = "fp4_e2m1"> (x)', shape="1")
    decompose_quark.run(source, Context())
    one = np.array([3.3], np.float32)
    np.testing.assert_array_equal(run(ir.to_proto(source), {"x": one})["y"], one)


PAIR = "q = com.amd.quark.ExtendedQuantizeLinear {0} (x, s, z) y = com.amd.quark.ExtendedDequantizeLinear {0} (q, s, z)"
KINDS = {
    "bfloat16": TensorProto.BFLOAT16,
    "float16": TensorProto.FLOAT16,
    "int32": TensorProto.INT32,
    "int8": TensorProto.INT8,
    "uint8": TensorProto.UINT8,
    "int16": TensorProto.INT16,
    "uint16": TensorProto.UINT16,
}


@pytest.mark.parametrize("several", [False, True])
@pytest.mark.parametrize("kind", list(KINDS))
def test_extended(kind: str, several: bool, device: Device) -> None:
    scale = np.array([0.1, 0.2, 0.37, 1, 2], np.float32) if several else np.array(0.37, np.float32)
    zero = onnx.helper.make_tensor("z", KINDS[kind], scale.shape, [0] * scale.size)
    source = model(PAIR.format("<axis = 1>" if several else ""), s=scale, z=zero)
    computes(source, quark.extended(X, scale.reshape(-1, 1) if several else scale, kind), device)


def test_16_bits_are_standard_since_opset_21() -> None:
    for opset, domain in ((17, "com.microsoft"), (21, "")):
        zero = onnx.helper.make_tensor("z", TensorProto.INT16, [], [0])
        source = model(PAIR.format(""), opset=opset, s=np.float32(0.1), z=zero)
        decompose_quark.run(source, Context())
        assert {node.domain for node in source.graph} == {domain}


def test_stored_weights() -> None:
    weight = onnx.helper.make_tensor("w", TensorProto.BFLOAT16, [20], X[0, 0].tolist())
    zero = onnx.helper.make_tensor("z", TensorProto.BFLOAT16, [], [0])
    source = model(
        "d = com.amd.quark.ExtendedDequantizeLinear (w, s, z) y = Add(x, d)", s=np.float32(2), z=zero, w=weight
    )
    decompose_quark.run(source, Context())
    expected = X + quark.extended(X[0, 0], np.float32(1), "bfloat16") * 2
    np.testing.assert_allclose(run(ir.to_proto(source), {"x": X})["y"], expected, rtol=1e-6)


def test_shapes_become_known_round_by_round() -> None:
    """The shape of the second node is known only once the first is rewritten."""
    body = """a = com.amd.quark.BFPQuantizeDequantize <bit_width = 16, block_size = 8> (x) b = Relu(a)
        y = com.amd.quark.BFPQuantizeDequantize <bit_width = 16, block_size = 8> (b)"""
    source = model(body)
    assert len(decompose_quark.run(source, Context()).rewrites) == 2


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("y = com.amd.quark.BFPQuantizeDequantize <rounding_mode = 9> (x)", "rounding_mode is unknown"),
        ('y = com.amd.quark.BFPQuantizeDequantize <bfp_method = "x"> (x)', "bfp_method is unknown"),
        ('y = com.amd.quark.MXQuantizeDequantize <element_dtype = "fp5"> (x)', "element_dtype is unknown"),
        (
            'y = com.amd.quark.BFPQuantizeDequantize <bfp_method = "to_bfp_prime", block_size = 9> (x)',
            "not a multiple of the sub_block_size",
        ),
    ],
)
def test_skips(body: str, reason: str) -> None:
    result = decompose_quark.run(model(body), Context())
    assert not result.rewrites
    assert reason in reasons(result)[0]


def test_unknown_shapes_and_rearranged_floats() -> None:
    source = model("y = com.amd.quark.BFPQuantizeDequantize (x)", shape="n,4")
    assert "freeze" in reasons(decompose_quark.run(source, Context()))[0]
    zero = onnx.helper.make_tensor("z", TensorProto.BFLOAT16, [], [0])
    text = PAIR.format("").replace("y = com", "r = Identity(q) y = com").replace("(q, s", "(r, s")
    result = decompose_quark.run(model(text, s=np.float32(1), z=zero), Context())
    assert any("rearranged" in each for each in reasons(result))
