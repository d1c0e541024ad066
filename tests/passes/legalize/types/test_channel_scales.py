"""scale-after-product: weights with a scale for each output channel."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

from passes.legalize.types.channel_scales import scale_after_product
from tests.passes.device import Device
from tests.passes.harness import Array, model
from tests.passes.legalize.images import check, floats, skipped

CONV = "Conv <pads=[1,1,1,1], group=2> (x, d{})"
CASES = {
    "Conv": ((1, 4, 5, 5), (6, 2, 3, 3), 0, CONV.format("")),
    "Conv with bias": ((1, 4, 5, 5), (6, 2, 3, 3), 0, CONV.format(", b")),
    "Conv of one dimension": ((2, 3, 7), (6, 3, 2), 0, "Conv (x, d, b)"),
    "MatMul": ((2, 3, 4), (4, 6), 1, "MatMul(x, d)"),
    "batched MatMul": ((2, 3, 4), (2, 4, 6), 2, "MatMul(x, d)"),
    "Gemm": ((3, 4), (4, 6), 1, "Gemm(x, d, b)"),
    "transposed Gemm": ((3, 4), (6, 4), 0, "Gemm <transB=1> (x, d, b)"),
}


def of(
    shape: tuple[int, ...],
    weights: tuple[int, ...],
    axis: int,
    node: str,
    *,
    zeros: Array | None = None,
) -> tuple[ir.Model, dict[str, Array]]:
    channels = weights[axis]
    w = np.random.default_rng(0).integers(-128, 128, weights).astype(np.int8)
    scales = np.random.default_rng(1).uniform(0.01, 0.2, channels).astype(np.float32)
    sizes = ",".join(map(str, shape))
    text = f"(float[{sizes}] x) => (y) {{ d = DequantizeLinear <axis={axis}> (w, s, z) y = {node} }}"
    zero = np.zeros(channels, np.int8) if zeros is None else zeros
    return model(text, w=w, s=scales, z=zero, b=floats(channels)), {"x": floats(*shape)}


@pytest.mark.parametrize("case", CASES)
def test_numbers(case: str, device: Device) -> None:
    *_, node = CASES[case]
    m, feeds = of(*CASES[case])
    check(scale_after_product, m, feeds, device)
    last = [node.op_type for node in m.graph if node.op_type not in ("DequantizeLinear", "Reshape")]
    assert last == [node.split()[0].partition("(")[0], "Mul", *(["Add"] if "b)" in node else [])]
    assert [node.op_type for node in m.graph].count("DequantizeLinear") == 2  # the first is not used any more


@pytest.mark.parametrize(
    ("case", "why"),
    [
        (((3, 4), (4, 4), 0, "MatMul(x, d)"), "the weight does not have one scale for each output channel"),
        (((3, 4), (4, 6), 1, "Gemm <alpha=0.5> (x, d, b)"), "the product is multiplied by alpha or beta"),
    ],
)
def test_what_it_leaves_alone(case: tuple[tuple[int, ...], tuple[int, ...], int, str], why: str) -> None:
    assert skipped(scale_after_product, of(*case)[0]) == [why]


def test_zero_points() -> None:
    m, _ = of(*CASES["MatMul"], zeros=np.arange(6, dtype=np.int8))
    assert skipped(scale_after_product, m) == ["the weight has a zero point other than 0"]


def test_weights_that_are_not_dequantized() -> None:
    m = model("(float[3,4] x) => (float[3,6] y) { y = MatMul(x, w) }", w=floats(4, 6))
    assert skipped(scale_after_product, m) == []
