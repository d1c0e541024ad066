"""split-gemm: linear layers that become a product and a sum, and products that stay."""

from __future__ import annotations

import numpy as np
import pytest

from passes.quantization.split_gemm import split_gemm
from tests.passes.harness import apply, model, operators, reasons

W, B = np.random.default_rng(0).standard_normal((4, 5)).astype(np.float32), np.arange(5, dtype=np.float32)


@pytest.mark.parametrize("transposed", [0, 1])
@pytest.mark.parametrize("rows", ["3", "n"])
@pytest.mark.parametrize("bias", [B, B[:1], B[None], np.float32(2), np.ones((3, 5), np.float32)])
def test_a_linear_layer(transposed: int, rows: str, bias: np.ndarray) -> None:
    text = f"(float[{rows},4] x) => (float[] y) {{ y = Gemm <transB = {transposed}> (x, w, b) }}"
    m = model(text, w=W.T.copy() if transposed else W, b=bias)
    apply(split_gemm, m)
    assert operators(m) == ["MatMul", "Add"]
    assert m.graph[1].outputs[0].name == "y"


def test_no_bias() -> None:
    m = model("(float[3,4] x) => (float[] y) { y = Gemm <beta = 0.5> (x, w) }", w=W)
    apply(split_gemm, m)
    assert operators(m) == ["MatMul"]


@pytest.mark.parametrize(
    ("attributes", "word"),
    [("alpha = 0.5", "0.5"), ("beta = 2.0", "2"), ("transA = 1", "x is transposed")],
)
def test_products_that_stay(attributes: str, word: str) -> None:
    m = model(f"(float[4,4] x) => (float[] y) {{ y = Gemm <{attributes}> (x, w, b) }}", w=W, b=B)
    result = apply(split_gemm, m)
    assert operators(m) == ["Gemm"]
    assert word in " ".join(reasons(result))


def test_a_weight_that_is_computed() -> None:
    m = model("(float[3,4] x, float[4,5] w) => (float[] y) { y = Gemm (x, w) }")
    apply(split_gemm, m)
    assert operators(m) == ["Gemm"]
