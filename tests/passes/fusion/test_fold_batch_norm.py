"""fold-batch-norm: the same numbers from another weight and bias, and when the weight must be left alone."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import onnx_ir as ir
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from passes.fusion.fold_batch_norm import fold_batch_norm
from passes.rewriting.base import Context
from tests.passes.device import Device
from tests.passes.harness import Array, apply, model, operators, reasons, run, stops

NORM = "y = BatchNormalization <epsilon = 0.001> (c, scale, shift, mean, var)"
CONV = f"(float[2,4,6,6] x) => (float[2,6,4,4] y) {{ c = Conv (x, w) {NORM} }}"


def statistics(channels: int, dtype: Any = np.float32, seed: int = 0) -> dict[str, Array]:
    random = np.random.default_rng(seed)
    scale, shift, mean = random.standard_normal((3, channels))
    values = {"scale": scale, "shift": shift, "mean": mean, "var": random.uniform(0.1, 2.0, channels)}
    return {name: each.astype(dtype) for name, each in values.items()}


def weight(*shape: int, dtype: Any = np.float32) -> Array:
    return np.random.default_rng(1).standard_normal(shape).astype(dtype)


def skipped(m: ir.Model) -> list[str]:
    result = fold_batch_norm.run(m, Context())
    assert not result.rewrites
    return reasons(result)


class TestFolds:
    def test_conv_without_bias(self) -> None:
        m = model(CONV, w=weight(6, 4, 3, 3), **statistics(6))
        result = apply(fold_batch_norm, m)
        (node,) = m.graph
        assert [value.name for value in node.inputs if value] == [
            "x",
            "w/folded",
            f"{result.rewrites[0].before[1]}/bias",
        ]
        assert len(result.rewrites[0].before) == 2
        values = statistics(6)
        factor = values["scale"].astype(float) / np.sqrt(values["var"].astype(float) + np.float32(1e-3))
        expected = weight(6, 4, 3, 3) * factor[:, None, None, None]
        np.testing.assert_array_equal(m.graph.initializers["w/folded"].const_value.numpy(), expected.astype(np.float32))

    def test_conv_keeps_its_attributes(self) -> None:
        text = f"""(float[2,4,9,9] x) => (float[2,6,N,M] y)
            {{ c = Conv <group = 2, pads = [1, 0, 2, 1], strides = [2, 1], dilations = [1, 2]> (x, w, b) {NORM} }}"""
        m = model(text, w=weight(6, 2, 3, 3), b=weight(6), **statistics(6))
        apply(fold_batch_norm, m)
        assert operators(m) == ["Conv"]
        assert list(m.graph[0].attributes["pads"].as_ints()) == [1, 0, 2, 1]

    @pytest.mark.parametrize("group", [1, 2, 4])
    def test_conv_transpose(self, group: int) -> None:
        text = f"""(float[2,4,5,5] x) => (float[2,8,N,M] y)
            {{ c = ConvTranspose <group = {group}, strides = [2, 2]> (x, w, b) {NORM} }}"""
        m = model(text, w=weight(4, 8 // group, 3, 3), b=weight(8), **statistics(8))
        apply(fold_batch_norm, m)
        assert operators(m) == ["ConvTranspose"]

    @pytest.mark.parametrize("attributes", ["", "<alpha = 0.5, beta = 2.0>", "<transB = 1, beta = 0.25>"])
    @pytest.mark.parametrize("bias", [None, (), (1,), (5,), (1, 5), (3, 1), (3, 5)])
    def test_gemm(self, attributes: str, bias: tuple[int, ...] | None) -> None:
        arrays = {"w": weight(*((5, 8) if "transB" in attributes else (8, 5))), **statistics(5)}
        if bias is not None:
            arrays["b"] = np.asarray(weight(*bias))
        inputs = "x, w" if bias is None else "x, w, b"
        m = model(f"(float[3,8] x) => (float[3,5] y) {{ c = Gemm {attributes} ({inputs}) {NORM} }}", **arrays)
        apply(fold_batch_norm, m)
        assert operators(m) == ["Gemm"]

    def test_matmul_becomes_gemm(self) -> None:
        m = model(f"(float[N,8] x) => (float[N,5] y) {{ c = MatMul (x, w) {NORM} }}", w=weight(8, 5), **statistics(5))
        apply(fold_batch_norm, m)
        assert operators(m) == ["Gemm"]

    def test_one_after_the_other_and_the_budget(self) -> None:
        text = f"""(float[2,4,6,6] x) => (float[2,6,4,4] z)
            {{ c = Conv (x, w) {NORM} z = BatchNormalization (y, scale, shift, mean, var) }}"""
        m = model(text, w=weight(6, 4, 3, 3), **statistics(6))
        assert len(apply(fold_batch_norm, m, rtol=1e-4, atol=1e-4).rewrites) == 2
        assert operators(m) == ["Conv"]
        assert stops(fold_batch_norm, model(text, w=weight(6, 4, 3, 3), **statistics(6)), 1) == 1

    def test_a_small_weight_that_others_use_stays_for_them(self) -> None:
        text = CONV.replace("y)", "y, float[2,6,4,4] z)").replace("}", "z = Conv (x, w) }")
        m = model(text, w=weight(6, 4, 3, 3), **statistics(6))
        apply(fold_batch_norm, m)
        assert operators(m) == ["Conv", "Conv"]
        assert {"w", "w/folded"} <= set(m.graph.initializers)

    def test_in_a_function(self) -> None:
        lines = ""
        for name, array in {"w": weight(2, 1, 1, 1), **statistics(2)}.items():
            shape, elements = ",".join(map(str, array.shape)), ",".join(map(repr, array.ravel().tolist()))
            lines += f"{name} = Constant <value = float[{shape}] {{{elements}}}> () "
        function = f'<opset_import: ["": 17], domain: "local"> f (x) => (y) {{ {lines} c = Conv (x, w) {NORM} }}'
        m = model("(float[2,1,4,4] x) => (float[2,2,4,4] y) { y = local.f(x) }", functions=function)
        apply(fold_batch_norm, m)
        assert operators(m) == ["f", "Conv"]

    def test_in_a_branch_with_weights_from_outside(self) -> None:
        text = f"""(float[2,4,6,6] x, bool q) => (float[N,M,H,W] z) {{
            z = If (q) <then_branch = t () => (float[2,6,4,4] y) {{ c = Conv (x, w) {NORM} }},
                        else_branch = e () => (float[2,4,6,6] n) {{ n = Neg(x) }}> }}"""
        m = model(text, w=weight(6, 4, 3, 3), **statistics(6))
        inputs = {"x": weight(2, 4, 6, 6), "q": np.array(True)}
        apply(fold_batch_norm, m, inputs=inputs)
        assert operators(m) == ["If", "Conv", "Neg"]

    def test_half_precision(self) -> None:
        text = CONV.replace("float[", "float16[")
        m = model(text, w=weight(6, 4, 3, 3, dtype=np.float16), **statistics(6, np.float16))
        apply(fold_batch_norm, m, rtol=2e-2, atol=2e-2)
        assert operators(m) == ["Conv"]

    def test_bfloat16(self) -> None:
        dtype = ml_dtypes.bfloat16
        m = model(
            CONV.replace("float[", "bfloat16["), opset=22, w=weight(6, 4, 3, 3, dtype=dtype), **statistics(6, dtype)
        )
        fold_batch_norm.run(m, Context())
        assert operators(m) == ["Conv"]
        values = {name: each.astype(float) for name, each in statistics(6, dtype).items()}
        factor = values["scale"] / np.sqrt(values["var"] + np.float32(1e-3))
        expected = (weight(6, 4, 3, 3, dtype=dtype).astype(float) * factor[:, None, None, None]).astype(dtype)
        np.testing.assert_array_equal(m.graph.initializers["w/folded"].const_value.numpy(), expected)

    def test_a_channel_that_is_switched_off(self) -> None:
        m = model(CONV, w=weight(6, 4, 3, 3), **statistics(6) | {"scale": np.zeros(6, np.float32)})
        apply(fold_batch_norm, m)
        assert operators(m) == ["Conv"]

    @pytest.mark.parametrize("opset", [7, 9, 14, 15])
    def test_opsets(self, opset: int) -> None:
        m = model(CONV, opset=opset, w=weight(6, 4, 3, 3), **statistics(6))
        apply(fold_batch_norm, m)
        assert operators(m) == ["Conv"]


class TestSkips:
    @pytest.mark.parametrize(
        ("opset", "attributes", "outputs", "reason"),
        [
            (15, "training_mode = 1", "y, m2, v2", "the node is in training mode (training_mode=1)"),
            (9, "momentum = 0.9", "y, m2, v2, m3, v3", "the node has more than one output, as in training"),
            (8, "spatial = 0", "y", "the node has statistics for every element, not for every channel (spatial=0)"),
        ],
    )
    def test_training(self, opset: int, attributes: str, outputs: str, reason: str) -> None:
        text = CONV.replace("y = Batch", f"{outputs} = Batch").replace("<epsilon", f"<{attributes}, epsilon")
        assert skipped(model(text, opset=opset, w=weight(6, 4, 3, 3), **statistics(6))) == [reason]

    @pytest.mark.parametrize(
        "text",
        [
            CONV.replace("y)", "y, float[2,6,4,4] z)").replace("}", "z = Neg(c) }"),
            CONV.replace("y)", "y, float[2,6,4,4] c)"),
        ],
        ids=["by a node", "as an output"],
    )
    def test_a_result_that_is_used(self, text: str) -> None:
        reason = "c, which it normalizes, is used elsewhere"
        assert skipped(model(text, w=weight(6, 4, 3, 3), **statistics(6))) == [reason]

    @pytest.mark.parametrize("name", ["w", "mean"])
    def test_an_input_that_callers_give(self, name: str) -> None:
        arrays = {"w": weight(6, 4, 3, 3), **statistics(6)}
        shape = ",".join(map(str, arrays.pop(name).shape))
        text = CONV.replace("x) =>", f"x, float[{shape}] {name}) =>")
        (reason,) = skipped(model(text, **arrays))
        assert reason.endswith("is not constant")

    def test_an_initializer_that_callers_may_override(self) -> None:
        m = model(CONV.replace("x) =>", "x, float[6,4,3,3] w) =>"), w=weight(6, 4, 3, 3), **statistics(6))
        (reason,) = skipped(m)
        assert reason.startswith("the weight of ")
        assert reason.endswith(" is not constant")

    def test_a_computed_bias(self) -> None:
        text = CONV.replace("x) =>", "x, float[6] b) =>").replace("(x, w)", "(x, w, b)")
        (reason,) = skipped(model(text, w=weight(6, 4, 3, 3), **statistics(6)))
        assert reason.startswith("the bias of ")

    def test_a_quantized_weight(self) -> None:
        text = CONV.replace("c = Conv", "w = DequantizeLinear (q, s) c = Conv")
        m = model(text, q=np.ones((6, 4, 3, 3), np.int8), s=np.array(0.1, np.float32), **statistics(6))
        (reason,) = skipped(m)
        assert reason.endswith("is quantized")

    def test_a_large_weight_that_others_use(self) -> None:
        text = CONV.replace("2,4,6,6", "1,512,3,3").replace("2,6,4,4", "1,512,1,1")
        text = text.replace("y)", "y, float[1,512,1,1] z)").replace("}", "z = Conv (x, w) }")
        (reason,) = skipped(model(text, w=np.ones((512, 512, 3, 3), np.float32), **statistics(512)))
        assert reason.endswith("is used elsewhere and would be duplicated")

    @pytest.mark.parametrize(
        ("scale", "var"),
        [(1e4, 1e-4), (1e-6, 1.0), (1.0, -1.0)],
        ids=["too large", "too small", "no number"],
    )
    def test_what_half_precision_cannot_hold(self, scale: float, var: float) -> None:
        values = statistics(6, np.float16) | {
            "scale": np.full(6, scale, np.float16),
            "var": np.full(6, var, np.float16),
        }
        m = model(CONV.replace("float[", "float16["), w=weight(6, 4, 3, 3, dtype=np.float16), **values)
        assert skipped(m) == ["FLOAT16 cannot represent the folded weight or bias"]

    def test_products_of_more_than_matrices(self) -> None:
        text = f"(float[2,5,8] x) => (float[2,5,5] y) {{ c = MatMul (x, w) {NORM} }}"
        (reason,) = skipped(model(text, w=weight(8, 5), **statistics(5)))
        assert reason.endswith("is not known to multiply two matrices")

    def test_nothing_linear_before(self) -> None:
        text = CONV.replace("c = Conv (x, w)", "d = Conv (x, w) c = Relu (d)")
        assert skipped(model(text, w=weight(6, 4, 3, 3), **statistics(6))) == []


@settings(max_examples=30, deadline=None)
@given(
    group=st.integers(1, 3),
    inputs=st.integers(1, 3),
    outputs=st.integers(1, 3),
    rank=st.integers(1, 3),
    transposed=st.booleans(),
    bias=st.booleans(),
    seed=st.integers(0, 99),
)
def test_any_convolution(
    group: int, inputs: int, outputs: int, rank: int, transposed: bool, bias: bool, seed: int
) -> None:
    random = np.random.default_rng(seed)
    kernel, size = [2] * rank, [4] * rank
    shape = (group * inputs, outputs, *kernel) if transposed else (group * outputs, inputs, *kernel)
    dims = ",".join(map(str, size))
    free = ",".join("NMK"[:rank])
    text = f"""(float[2,{group * inputs},{dims}] x) => (float[2,{group * outputs},{free}] y)
        {{ c = {"ConvTranspose" if transposed else "Conv"} <group = {group}> (x, w{", b" if bias else ""}) {NORM} }}"""
    arrays = {"w": random.standard_normal(shape).astype(np.float32), **statistics(group * outputs, seed=seed)}
    if bias:
        arrays["b"] = random.standard_normal(group * outputs).astype(np.float32)
    m = model(text, **arrays)
    assert len(apply(fold_batch_norm, m, rtol=1e-4, atol=1e-4).rewrites) == 1


def test_migraphx_computes_the_same(device: Device) -> None:
    text = f"(float[2,4,5,5] x) => (float[2,8,6,6] y) {{ c = ConvTranspose <group = 2> (x, w, b) {NORM} }}"
    m = model(text, w=weight(4, 4, 2, 2), b=weight(8), **statistics(8))
    before = run(ir.to_proto(m))["y"]
    apply(fold_batch_norm, m)
    np.testing.assert_allclose(device.run(ir.to_proto(m))[0], before, rtol=1e-4, atol=1e-4)
