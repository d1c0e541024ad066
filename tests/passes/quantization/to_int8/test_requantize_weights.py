"""requantize-weights: grids that are recovered, and weights that are on none."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from passes.quantization.to_int8.requantize_weights import on_grid, requantize_weights
from tests.passes.harness import apply, operators, reasons
from tests.passes.helpers import tiny

STEP = requantize_weights
RANDOM = np.random.default_rng(3)
Q = RANDOM.integers(-127, 128, (6, 5))


def source(product: str, weight: Any, shape: str = "2,6") -> ir.Model:
    text = f"(float[{shape}] x) => (y) {{ q = QuantizeLinear(x, s, z) d = DequantizeLinear(q, s, z) {product} }}"
    kind = "float[i,j,k,l]" if "Conv" in product else "float[i,j]"
    return tiny(text.replace("(y)", f"({kind} y)"), w=weight, s=np.float32(0.04), z=np.int8(0))


@pytest.mark.parametrize("scale", [2.0**-6, 0.0123, 3e-5, 17.0])
def test_one_scale(scale: float) -> None:
    weight = (Q * np.float32(scale)).astype(np.float32)
    model = source("y = MatMul(d, w)", weight)
    apply(STEP, model, rtol=1e-5)
    assert operators(model) == ["QuantizeLinear", "DequantizeLinear", "DequantizeLinear", "MatMul"]


@pytest.mark.parametrize(
    ("product", "axis", "shape"),
    [
        ("y = MatMul(d, w)", 1, (6, 5)),
        ("y = Gemm(d, w)", 1, (6, 5)),
        ("y = Gemm <transB = 1> (d, w)", 0, (5, 6)),
        ("y = Conv(d, w)", 0, (5, 6, 2, 2)),
    ],
)
def test_one_scale_per_output_channel(product: str, axis: int, shape: tuple[int, ...]) -> None:
    integers = RANDOM.integers(-127, 128, shape)
    scales = RANDOM.uniform(0.01, 0.05, shape[axis]).astype(np.float32)
    aligned = scales.reshape([-1 if each == axis else 1 for each in range(len(shape))])
    model = source(product, (integers * aligned).astype(np.float32), "2,6,4,4" if "Conv" in product else "2,6")
    apply(STEP, model)
    weight = model.graph[-1].inputs[1]
    assert weight is not None
    node = weight.producer()
    assert node is not None and node.op_type == "DequantizeLinear"
    assert node.inputs[1].shape == [shape[axis]]  # type: ignore[union-attr]


def test_asymmetric_weights() -> None:
    weight = ((RANDOM.integers(0, 256, (6, 5)) - 17) * np.float32(0.02)).astype(np.float32)
    weight[0, :2] = np.array([-17, 238], np.float32) * np.float32(0.02)
    model = source("y = MatMul(d, w)", weight)
    apply(STEP, model)
    assert operators(model).count("DequantizeLinear") == 2


def test_weights_on_no_grid() -> None:
    model = source("y = MatMul(d, w)", RANDOM.standard_normal((6, 5)).astype(np.float32))
    assert reasons(apply(STEP, model)) == ["the weight w is not on an 8-bit quantization grid"]
    assert on_grid(np.array([[1, np.nan]], np.float32), None) is None


def test_only_where_the_other_operand_is_quantized() -> None:
    weight = (Q * np.float32(0.5)).astype(np.float32)
    assert not apply(STEP, tiny("(float[2,6] x) => (float[2,5] y) { y = MatMul(x, w) }", w=weight)).rewrites
    assert not apply(STEP, source("y = Gemm <alpha = 0.5> (d, w)", weight)).rewrites


@settings(max_examples=40, deadline=None)
@given(power=st.integers(-40, 40), bits=st.integers(2, 8), seed=st.integers(0, 999))
def test_any_grid_is_recovered(power: int, bits: int, seed: int) -> None:
    random = np.random.default_rng(seed)
    scale = np.float32(2.0**power * random.uniform(1, 2))
    weight = random.integers(-(2 ** (bits - 1)), 2 ** (bits - 1), (4, 8)).astype(np.float32) * scale
    found = on_grid(weight, None)
    assert found is not None
    integers, step, zero = found
    again = (integers.astype(np.float32) - zero) * step
    assert (np.abs(again - weight) <= 4e-7 * np.abs(weight)).all()
