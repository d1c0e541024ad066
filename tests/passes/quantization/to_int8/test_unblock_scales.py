"""unblock-scales: blocks that span their axis, blocks that do not, and single scales."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import onnx_ir as ir
import pytest

from passes.quantization.to_int8.unblock_scales import unblock_scales
from passes.rewriting.base import Context
from tests.passes.harness import apply
from tests.passes.helpers import tiny

STEP = unblock_scales
W = np.arange(-12, 12, dtype=np.int8).reshape(4, 6)


def dequantized(axis: int, size: int, scale: Any, zero: Any = None, weight: Any = W) -> ir.Model:
    given = "w, s" if zero is None else "w, s, z"
    text = f"""(float[4,6] x) => (float[4,6] y) {{
        d = DequantizeLinear <axis = {axis}, block_size = {size}> ({given}) y = Add(x, d) }}"""
    return tiny(text, opset=21, w=weight, s=scale, **({} if zero is None else {"z": zero}))


@pytest.mark.parametrize("dtype", [np.int8, ml_dtypes.int4])
@pytest.mark.parametrize(
    ("axis", "size", "shape", "left"), [(0, 4, (1, 6), 1), (1, 6, (4, 1), 0), (-1, 8, (4, 1), 0), (0, 128, (1, 6), 1)]
)
def test_one_axis(axis: int, size: int, shape: tuple[int, ...], left: int, dtype: Any) -> None:
    scale = np.linspace(0.1, 0.5, max(shape), dtype=np.float32).reshape(shape)
    zero = (np.arange(max(shape)) - 3).reshape(shape).astype(dtype)
    source = dequantized(axis, size, scale, zero, np.clip(W, -8, 7).astype(dtype))
    apply(STEP, source)
    node = source.graph[0]
    assert node.attributes.get_int("axis") == left
    assert "block_size" not in node.attributes
    assert [value.shape for value in node.inputs[1:] if value is not None] == [[max(shape)]] * 2


def test_one_scale() -> None:
    weight = W.reshape(1, 24)
    text = (
        "(float[1,24] x) => (float[1,24] y) { d = DequantizeLinear <axis = 1, block_size = 24> (w, s) y = Add(x, d) }"
    )
    source = tiny(text, opset=21, w=weight, s=np.full((1, 1), 0.3, np.float32))
    apply(STEP, source)
    assert source.graph[0].inputs[1].shape == []  # type: ignore[union-attr]
    assert not source.graph[0].attributes


@pytest.mark.parametrize(("scale", "zero"), [([1], [1]), ([1], []), ([], [1]), ([1], None)])
def test_a_single_scale_becomes_a_scalar(scale: list[int], zero: list[int] | None) -> None:
    given = "s" if zero is None else "s, z"
    text = f"""(float[1,4] x) => (float[1,4] y) {{
        q = QuantizeLinear <axis = 0> (x, {given}) y = DequantizeLinear <axis = 0> (q, {given}) }}"""
    zeros = {} if zero is None else {"z": np.full(zero, 3, np.uint8)}
    source = tiny(text, s=np.full(scale, 0.1, np.float32), **zeros)
    assert len(apply(STEP, source).rewrites) == 2
    for node in source.graph:
        assert [value.shape for value in node.inputs[1:] if value is not None] == [[]] * (len(node.inputs) - 1)
        assert not node.attributes


def test_computed_scales() -> None:
    text = """(float[1,4] x, float[1] s) => (float[1,4] y) {
        q = QuantizeLinear (x, s) y = DequantizeLinear (q, s) }"""
    result = apply(STEP, tiny(text))
    assert not result.rewrites
    assert {skip.reason for skip in result.skips} == {"the scale or zero point is not constant"}


def test_quantize() -> None:
    text = """(float[4,6] x) => (float[4,6] y) { q = QuantizeLinear <axis = 1, block_size = 6> (x, s, z)
        y = DequantizeLinear <axis = 1, block_size = 6> (q, s, z) }"""
    source = tiny(
        text, opset=21, s=np.linspace(0.1, 0.5, 4, dtype=np.float32).reshape(4, 1), z=np.zeros((4, 1), np.int8)
    )
    assert len(apply(STEP, source).rewrites) == 2


def test_true_blocks() -> None:
    assert not apply(STEP, dequantized(0, 2, np.ones((2, 6), np.float32))).rewrites
    assert not apply(STEP, dequantized(1, 3, np.ones((4, 2), np.float32))).rewrites
    assert not STEP.run(dequantized(1, 3, np.ones((), np.float32)), Context()).rewrites, "ONNX Runtime rejects it"
    per_axis = "(float[4,6] x) => (float[4,6] y) { d = DequantizeLinear <axis = 0> (w, s) y = Add(x, d) }"
    assert not apply(STEP, tiny(per_axis, opset=21, w=W, s=np.ones(4, np.float32))).rewrites
