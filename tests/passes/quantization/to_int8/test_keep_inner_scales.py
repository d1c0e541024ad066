"""keep-inner-scales: scales along the summed axis become arithmetic, others are unchanged."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from passes.quantization.to_int8.keep_inner_scales import keep_inner_scales
from tests.passes.harness import apply, operators
from tests.passes.helpers import tiny

STEP = keep_inner_scales
W = np.arange(-8, 8, dtype=np.int8).reshape(4, 4)
ACTIVATION = "q = QuantizeLinear(x, a, b) d = DequantizeLinear(q, a, b)"


def source(product: str, axis: int, w: Any = W) -> Any:
    text = f"""(float[2,4] x) => (float[i,j] y) {{ {ACTIVATION}
        e = DequantizeLinear <axis = {axis}> (w, s, z) {product} }}"""
    size = w.shape[axis]
    return tiny(
        text,
        w=w,
        s=np.linspace(0.1, 0.4, size, dtype=np.float32),
        z=np.zeros(size, np.int8),
        a=np.float32(0.05),
        b=np.int8(0),
    )


@pytest.mark.parametrize(
    ("product", "inner"),
    [
        ("y = MatMul(d, e)", 0),
        ("y = Gemm(d, e)", 0),
        ("y = Gemm <transB = 1> (d, e)", 1),
        ("t = Transpose(e) y = MatMul(d, t)", 1),
    ],
)
def test_only_the_summed_axis(product: str, inner: int) -> None:
    model = source(product, inner)
    apply(STEP, model)
    assert operators(model).count("DequantizeLinear") == 1
    assert not apply(STEP, source(product, 1 - inner)).rewrites


def test_a_matrix_that_is_not_square_has_no_int8_kernel() -> None:
    assert not apply(STEP, source("y = MatMul(d, e)", 0, w=W[:, :3].copy())).rewrites


def test_activations() -> None:
    text = """(float[4,4] x) => (float[4,4] y) { q = QuantizeLinear <axis = 1> (x, s, z)
        d = DequantizeLinear <axis = 1> (q, s, z) e = DequantizeLinear(w, a, b) y = MatMul(d, e) }"""
    model = tiny(
        text, w=W, s=np.linspace(0.1, 0.4, 4, dtype=np.float32), z=np.zeros(4, np.int8), a=np.float32(0.1), b=np.int8(0)
    )
    apply(STEP, model)
    assert operators(model).count("DequantizeLinear") == 1
    assert "Mul" in operators(model)
