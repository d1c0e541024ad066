"""float-weight: constant weights that are dequantized become numbers, as ONNX Runtime computes them."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import onnx_ir as ir
import pytest

from passes.legalize.types.float_weights import float_weight
from tests.passes.device import Device
from tests.passes.harness import Array, apply, model
from tests.passes.legalize.images import check, floats, skipped

CASES = {
    "MatMul": ((2, 3, 4), (4, 6), 1, "MatMul(x, d)"),
    "Gemm": ((3, 4), (6, 4), 0, "Gemm <transB=1, alpha=0.5> (x, d, b)"),
    "Conv": ((1, 4, 5, 5), (6, 2, 3, 3), 0, "Conv <pads=[1,1,1,1], group=2> (x, d, b)"),
}


def of(case: str, zeros: Array | None, scales: int | None = None) -> tuple[ir.Model, dict[str, Array]]:
    """The model of a case; ``scales`` is how many there are, default: one number."""
    shape, weights, axis, node = CASES[case]
    integers = np.random.default_rng(0).integers(-128, 128, weights).astype(np.int8)
    scale = np.random.default_rng(1).uniform(0.01, 0.2, scales or ()).astype(np.float32)
    sizes, zero = ",".join(map(str, shape)), "" if zeros is None else ", z"
    text = f"(float[{sizes}] x) => (y) {{ d = DequantizeLinear <axis={axis}> (w, s{zero}) y = {node} }}"
    given = {} if zeros is None else {"z": zeros}
    return model(text, w=integers, s=scale, b=floats(6), **given), {"x": floats(*shape)}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("scales", [None, 6])
@pytest.mark.parametrize("zero", [None, 3])
def test_numbers(case: str, scales: int | None, zero: int | None, device: Device) -> None:
    zeros = None if zero is None else np.full(scales or (), zero, np.int8)
    m, feeds = of(case, zeros, scales)
    check(float_weight, m, feeds, device)
    assert [node.op_type for node in m.graph] == ["DequantizeLinear", case]  # the first is not used any more
    assert m.graph[-1].inputs[1].producer() is None


@pytest.mark.parametrize(
    ("dtype", "node", "scales"),
    [
        (ml_dtypes.float8_e4m3fnuz, "<axis=0, block_size=2> (w, s)", np.full((2, 6), 0.5, np.float32)),
        (ml_dtypes.float8_e5m2, "(w, s)", np.float32(0.5)),
        (np.int8, "<axis=0, block_size=2> (w, s)", np.full((2, 6), 0.5, np.float32)),
        (np.int8, "(w, s)", np.float16(0.5)),
    ],
)
def test_every_dtype_and_blocks(dtype: Any, node: str, scales: Array) -> None:
    x = f"float{'16' if scales.dtype == np.float16 else ''}[3,4] x"
    text = f"({x}) => (y) {{ d = DequantizeLinear {node} y = MatMul(x, d) }}"
    weights = np.random.default_rng(0).integers(-8, 8, (4, 6)).astype(dtype)
    m = model(text, opset=21, w=weights, s=scales)
    apply(float_weight, m, inputs={"x": floats(3, 4).astype(scales.dtype)})
    assert m.graph[-1].inputs[1].producer() is None


def test_what_it_leaves_alone() -> None:
    text = "(float[3,4] x, int8[4,6] w) => (float[3,6] y) { d = DequantizeLinear(w, s) y = MatMul(x, d) }"
    assert len(skipped(float_weight, model(text, s=np.float32(0.1)))) == 1
    text = "(float[3,4] x, float s) => (float[3,6] y) { d = DequantizeLinear(w, s) y = MatMul(x, d) }"
    assert len(skipped(float_weight, model(text, w=np.ones((4, 6), np.int8)))) == 1
    assert skipped(float_weight, model("(float[3,4] x) => (y) { y = MatMul(x, w) }", w=floats(4, 6))) == []
