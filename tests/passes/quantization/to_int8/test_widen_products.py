"""widen-products: half-precision products of dequantized values, and of others."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir
import pytest

from passes.graphs.int8_kernels import forecast_kernel
from passes.graphs.scopes import Scope
from passes.quantization.to_int8.widen_products import widen_products
from passes.rewriting.base import Context
from passes.shapes.inference import infer
from tests.passes.harness import apply, reasons
from tests.passes.helpers import mentioned, tiny

STEP = widen_products
X = """q = QuantizeLinear(x, s, z) d = DequantizeLinear(q, s, z) h = Cast <to = 10> (d)"""
W = "e = DequantizeLinear(w, s, z) g = Cast <to = 10> (e)"
GIVEN: dict[str, Any] = {
    "s": np.float32(0.05),
    "z": np.int8(0),
    "w": np.arange(-10, 10, dtype=np.int8).reshape(4, 5),
    "k": np.arange(-60, 48, dtype=np.int8).reshape(3, 4, 3, 3),
    "b": np.linspace(-1, 1, 5).astype(np.float16),
    "c": np.linspace(-1, 1, 3).astype(np.float16),
    "r": np.array([2, 4]),
    "f": np.ones((4, 5), np.float16),
}


def model(body: str, given: str = "2,4", result: str = "2,5") -> ir.Model:
    return tiny(f"(float[{given}] x) => (float16[{result}] y) {{ {body} }}", opset=21, **mentioned(body, GIVEN))


CASES = {
    "MatMul": (f"{X} {W} y = MatMul(h, g)", "2,4", "2,5"),
    "Gemm": (f"{X} {W} y = Gemm(h, g, b)", "2,4", "2,5"),
    "Conv": (f"{X} {W.replace('w', 'k')} y = Conv(h, g, c)", "1,4,3,3", "1,3,1,1"),
    "rearranged": (
        f"{X} {W} a = Reshape(h, r) t = Transpose(g) u = Transpose(t) y = MatMul(a, u)",
        "1,2,4",
        "2,5",
    ),
    "a bias that is computed": (f"{X} {W} v = Add(b, b) y = Gemm(h, g, v)", "2,4", "2,5"),
}


@pytest.mark.parametrize("case", list(CASES))
def test_products(case: str) -> None:
    source = model(*CASES[case])
    assert len(apply(STEP, source, rtol=2e-3, atol=2e-3).rewrites) == 1
    (product,) = (node for node in source.graph if node.op_type in ("MatMul", "Gemm", "Conv"))
    (cast,) = product.outputs[0].consumers()
    assert cast.op_type == "Cast"
    infer(source)
    assert forecast_kernel(product, Scope(source, source.graph)).kernel == "int8"


def test_unchanged() -> None:
    for body in (
        f"{X} y = MatMul(h, f)",  # one operand is no integer
        f"{X} {W} a = Relu(h) y = MatMul(a, g)",
        f"{X.replace('h = Cast <to = 10> (d)', '')} {W.replace('g = Cast <to = 10> (e)', '')} p = MatMul(d, e) "
        "y = Cast <to = 10> (p)",
    ):
        assert not STEP.run(model(body), Context()).rewrites
    assert "alpha" in reasons(STEP.run(model(f"{X} {W} y = Gemm <alpha = 0.5> (h, g)"), Context()))[0]
