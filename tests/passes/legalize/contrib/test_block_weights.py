"""Low-bit weights in blocks: every form against ONNX Runtime, and on MIGraphX."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import onnx_ir as ir
import pytest

from passes.cleanup.remove_dead import RemoveDead
from passes.legalize.contrib.block_weights import (
    decompose_gather_block_quantized,
    decompose_mat_mul_bnb4,
    plain_mat_mul_n_bits,
)
from passes.rewriting.base import Context
from passes.rewriting.rewrite import NodeRewrite
from passes.shapes.inference import infer
from tests.passes.device import Device
from tests.passes.harness import operators, reasons, run
from tests.passes.helpers import tiny

RANDOM = np.random.default_rng(0)
X = {"x": RANDOM.standard_normal((3, 40)).astype(np.float32)}
INDICES = {"i": np.array([[0, 9, 3], [3, 3, 1]])}


def integers(*shape: int) -> Any:
    return RANDOM.integers(0, 256, shape).astype(np.uint8)


def computes(rule: NodeRewrite, source: ir.Model, inputs: Any, device: Device) -> ir.Model:
    source.opset_imports["com.microsoft"] = 1
    expected = run(ir.to_proto(source), inputs)["y"]
    infer(source)
    assert rule.run(source, Context()).rewrites
    RemoveDead().run(source, Context())
    proto = ir.to_proto(source)
    np.testing.assert_allclose(run(proto, inputs)["y"], expected, rtol=1e-5, atol=1e-5)
    actual = device.run(proto, inputs)[0]
    np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-4)
    assert not rule.run(source, Context()).rewrites
    return source


def test_mat_mul_n_bits_keeps_4_bits(device: Device) -> None:
    text = """(float[3,40] x) => (float[3,6] y) {
        y = com.microsoft.MatMulNBits <K = 40, N = 6, bits = 4, block_size = 16> (x, w, s, z, , c) }"""
    source = tiny(
        text,
        w=integers(6, 3, 8),
        s=RANDOM.random(18).astype(np.float32),
        z=integers(6, 2),
        c=RANDOM.standard_normal(6).astype(np.float32),
    )
    assert operators(computes(plain_mat_mul_n_bits, source, X, device)) == ["MatMulNBits", "Add"]


def test_mat_mul_n_bits_without_changes() -> None:
    text = """(float[3,40] x) => (float[3,6] y) {
        y = com.microsoft.MatMulNBits <K = 40, N = 6, bits = 4, block_size = 16> (x, w, s, z) }"""
    source = tiny(text, w=integers(6, 3, 8), s=RANDOM.random(18).astype(np.float32), z=integers(12))
    assert not plain_mat_mul_n_bits.run(source, Context()).rewrites


@pytest.mark.parametrize("kind", [0, 1])
def test_mat_mul_bnb4(kind: int, device: Device) -> None:
    text = f"""(float[3,40] x) => (float[3,6] y) {{
        y = com.microsoft.MatMulBnb4 <K = 40, N = 6, block_size = 16, quant_type = {kind}> (x, w, s) }}"""
    source = tiny(text, w=integers(120), s=RANDOM.random(15).astype(np.float32))
    assert operators(computes(decompose_mat_mul_bnb4, source, X, device)) == ["MatMul"]


@pytest.mark.parametrize("zeros", [False, True])
@pytest.mark.parametrize("bits", [4, 8])
def test_gather_packed(bits: int, zeros: bool, device: Device) -> None:
    text = f"""(int64[2,3] i) => (float[2,3,48] y) {{ y = com.microsoft.GatherBlockQuantized
        <gather_axis = 0, quantize_axis = 1, block_size = 16, bits = {bits}> (w, i, s{", z" if zeros else ""}) }}"""
    constants = {"w": integers(10, 48 * bits // 8), "s": RANDOM.random((10, 3)).astype(np.float32)}
    if zeros:
        constants["z"] = integers(10, 2 if bits == 4 else 3)
    computes(decompose_gather_block_quantized, tiny(text, opset=21, **constants), INDICES, device)


@pytest.mark.parametrize("zeros", [False, True])
@pytest.mark.parametrize("dtype", [ml_dtypes.int4, ml_dtypes.uint4])
def test_gather_with_a_shorter_last_block(dtype: Any, zeros: bool, device: Device) -> None:
    text = f"""(int64[2,3] i) => (float[2,3,40] y) {{ y = com.microsoft.GatherBlockQuantized
        <gather_axis = 0, quantize_axis = 1, block_size = 16> (w, i, s{", z" if zeros else ""}) }}"""
    constants = {"w": RANDOM.integers(0, 8, (10, 40)).astype(dtype), "s": RANDOM.random((10, 3)).astype(np.float32)}
    if zeros:
        constants["z"] = RANDOM.integers(0, 8, (10, 3)).astype(dtype)
    computes(decompose_gather_block_quantized, tiny(text, opset=21, **constants), INDICES, device)


def test_skips() -> None:
    text = """(float[3,40] x, uint8[120] w) => (float[3,6] y) {
        y = com.microsoft.MatMulBnb4 <K = 40, N = 6, block_size = 16, quant_type = 1> (x, w, s) }"""
    source = tiny(text, s=RANDOM.random(15).astype(np.float32))
    assert reasons(decompose_mat_mul_bnb4.run(source, Context())) == ["the weights are not constant"]
