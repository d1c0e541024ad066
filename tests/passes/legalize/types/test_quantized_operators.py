"""Operators with scales as dequantize, compute, quantize: within one step of ONNX Runtime's kernels."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from passes.legalize.types.quantize_linear import dequantize_compute_quantize, quantized_product_to_float
from tests.passes.device import Device
from tests.passes.dtypes import T, on_ort, rewritten, same, single, why_not
from tests.passes.harness import Array, operators

DTYPES = {"int8": T.INT8, "uint8": T.UINT8}


def integers(name: str, shape: tuple[int, ...], seed: int = 0) -> Array:
    info = np.iinfo(name)
    return np.asarray(np.random.default_rng(seed).integers(info.min, info.max, shape, endpoint=True)).astype(name)


def f32(number: float) -> Array:
    return np.array(number, np.float32)


def quantized(name: str, shape: tuple[int, ...], scale: float, seed: int = 0) -> list[Array | None]:
    """A tensor, its scale and its zero point."""
    return [integers(name, shape, seed), f32(scale), np.array(5 if name == "int8" else 120, name)]


def output(name: str, scale: float) -> list[Array | None]:
    return [f32(scale), np.array(-3 if name == "int8" else 130, name)]


def within_a_step(actual: list[Array], expected: list[Array]) -> None:
    """Whole numbers that differ by no more than one, and seldom."""
    for one, other in zip(actual, expected, strict=True):
        assert one.dtype == other.dtype
        apart = np.abs(one.reshape(other.shape).astype(int) - other.astype(int))
        assert apart.max(initial=0) <= 1
        assert (apart > 0).mean() < 0.05


POOL = {"kernel_shape": [3, 2], "pads": [1, 0, 1, 1], "strides": [2, 1]}
CASES: dict[str, tuple[str, list[tuple[int, ...]], float, dict[str, Any]]] = {
    "add": ("QLinearAdd", [(2, 3, 4), (3, 1)], 0.1733, {}),
    "mul": ("QLinearMul", [(2, 3, 4), (4,)], 0.6137, {}),
    "sigmoid": ("QLinearSigmoid", [(2, 50)], 1 / 256, {}),
    "leaky": ("QLinearLeakyRelu", [(2, 50)], 0.1, {"alpha": 0.3}),
    "leaky of default slope": ("QLinearLeakyRelu", [(2, 50)], 0.01, {}),
    "average": ("QLinearAveragePool", [(1, 2, 7, 6)], 0.0519, POOL),
    "average with padding": ("QLinearAveragePool", [(1, 2, 7, 6)], 0.0519, POOL | {"count_include_pad": 1}),
    "average, channels last": ("QLinearAveragePool", [(1, 7, 6, 2)], 0.0519, POOL | {"channels_last": 1}),
    "global": ("QLinearGlobalAveragePool", [(2, 3, 5, 4)], 0.0213, {}),
    "global, channels last": ("QLinearGlobalAveragePool", [(2, 5, 4, 3)], 0.0213, {"channels_last": 1}),
    "softmax": ("QLinearSoftmax", [(3, 8)], 1 / 256, {"axis": -1, "more": {"opset": 13}}),
    "softmax of an older opset": ("QLinearSoftmax", [(2, 3, 4)], 1 / 256, {"axis": 1, "more": {"opset": 11}}),
}


class TestContrib:
    @pytest.mark.parametrize("case", CASES)
    def test_elementwise_and_pools(self, case: str, device: Device) -> None:
        op_type, shapes, scale, attributes = CASES[case]
        for name in DTYPES:
            if op_type == "QLinearSoftmax" and name == "int8":
                continue  # ONNX Runtime's has the scale 1/256 and the zero point 0 for uint8 alone
            arrays: list[Array | None] = []
            for index, shape in enumerate(shapes):
                arrays += quantized(name, shape, 0.0937, index)  # so that there are no ties
            last = [f32(1 / 256), np.array(0, name)] if op_type == "QLinearSoftmax" else output(name, scale)
            m, inputs = single(op_type, [*arrays, *last], [DTYPES[name]], domain="com.microsoft", **attributes)
            expected = on_ort(ir.to_proto(m), inputs)
            proto = rewritten(dequantize_compute_quantize, m)
            within_a_step(on_ort(proto, inputs), expected)
            within_a_step(device.run(proto, inputs), expected)

    @pytest.mark.parametrize("name", DTYPES)
    @pytest.mark.parametrize("scale", [1 / 256, 1 / 255, 0.0168, 0.13, 0.75, 1.5])
    def test_steps_of_softmax(self, scale: float, name: str, device: Device) -> None:
        arrays = [*quantized(name, (30, 5), 0.0193), f32(scale), np.array(np.iinfo(name).min, name)]
        m, inputs = single(
            "QLinearSoftmax", arrays, [DTYPES[name]], domain="com.microsoft", axis=-1, more={"opset": 13}
        )
        expected = on_ort(ir.to_proto(m), inputs)
        proto = rewritten(dequantize_compute_quantize, m)
        assert np.array_equal(on_ort(proto, inputs)[0], expected[0])
        within_a_step(device.run(proto, inputs), expected)

    def test_concat(self, device: Device) -> None:
        arrays = [*output("uint8", 0.2), *quantized("uint8", (2, 3), 0.1, 1), *quantized("uint8", (2, 5), 0.3, 2)]
        m, inputs = single("QLinearConcat", arrays, [T.UINT8], domain="com.microsoft", axis=1)
        expected = on_ort(ir.to_proto(m), inputs)
        proto = rewritten(dequantize_compute_quantize, m)
        within_a_step(device.run(proto, inputs), expected)
        assert operators(m) == ["DequantizeLinear", "DequantizeLinear", "Concat", "QuantizeLinear"]

    def test_where(self, device: Device) -> None:
        condition = np.array([[True], [False], [True]])
        x, y = quantized("uint8", (3, 4), 0.1, 1), quantized("uint8", (1, 4), 0.3, 2)
        m, inputs = single(
            "QLinearWhere", [condition, *x, *y, *output("uint8", 0.2)], [T.UINT8], domain="com.microsoft"
        )
        expected = on_ort(ir.to_proto(m), inputs)
        within_a_step(device.run(rewritten(dequantize_compute_quantize, m), inputs), expected)

    def test_without_zero_points(self, device: Device) -> None:
        x = integers("int8", (40,))
        m, inputs = single("QLinearSigmoid", [x, f32(0.1), None, f32(0.01)], [T.INT8], domain="com.microsoft")
        real = 1 / (1 + np.exp(-x.astype(np.float32) * 0.1))
        expected = np.clip(np.rint(real / 0.01), -128, 127).astype(np.int8)  # ONNX Runtime aborts on it
        within_a_step(device.run(rewritten(dequantize_compute_quantize, m), inputs), [expected])

    @pytest.mark.parametrize("real", [False, True])
    @pytest.mark.parametrize("several", [False, True])
    def test_gemm(self, several: bool, real: bool, device: Device) -> None:
        a, b = quantized("uint8", (6, 3), 0.05), [integers("int8", (4, 6), 1), f32(0.02), np.array(3, np.int8)]
        if several:
            b[1:] = [np.linspace(0.01, 0.04, 4).astype(np.float32), np.array([0, 1, -2, 3], np.int8)]
        bias = np.array([500, -9000, 0, 70], np.int32)
        last = [] if real else output("uint8", 0.3)
        m, inputs = single(
            "QGemm",
            [*a, *b, bias, *last],
            [T.FLOAT if real else T.UINT8],
            domain="com.microsoft",
            transA=1,
            transB=1,
            alpha=1.5,
        )
        expected = on_ort(ir.to_proto(m), inputs)
        found = device.run(rewritten(dequantize_compute_quantize, m), inputs)
        if real:
            same(found, expected, 1e-4)
        else:
            within_a_step(found, expected)


class TestStandard:
    @pytest.mark.parametrize("several", [False, True])
    def test_conv_with_bias(self, several: bool, device: Device) -> None:
        w = [integers("int8", (4, 3, 3, 3), 1), f32(0.02), np.array(0, np.int8)]
        if several:
            w[1:] = [np.linspace(0.01, 0.04, 4).astype(np.float32), np.zeros(4, np.int8)]
        bias = np.array([500, -9000, 0, 7000], np.int32)
        arrays = [*quantized("uint8", (1, 3, 6, 6), 0.05), *w, *output("uint8", 0.7), bias]
        m, inputs = single("QLinearConv", arrays, [T.UINT8], pads=[1, 1, 0, 0], strides=[2, 1])
        expected = on_ort(ir.to_proto(m), inputs)
        proto = rewritten(dequantize_compute_quantize, m)
        within_a_step(device.run(proto, inputs), expected)
        assert operators(m)[:2] == ["DequantizeLinear", "DequantizeLinear"]

    def test_channels_last(self, device: Device) -> None:
        w = [integers("int8", (4, 3, 3, 3), 1), f32(0.02), np.array(0, np.int8)]
        arrays = [*quantized("uint8", (1, 6, 7, 3), 0.05), *w, *output("uint8", 0.7)]
        m, inputs = single("QLinearConv", arrays, [T.UINT8], domain="com.microsoft", channels_last=1)
        expected = on_ort(ir.to_proto(m), inputs)
        within_a_step(device.run(rewritten(dequantize_compute_quantize, m), inputs), expected)

    @pytest.mark.parametrize("zero", [0, 3])
    @pytest.mark.parametrize("op_type", ["QLinearConv", "QLinearMatMul", "QGemm"])
    def test_scales_along_an_axis_in_older_opsets(self, op_type: str, zero: int, device: Device) -> None:
        conv = op_type == "QLinearConv"
        shapes = ((1, 3, 6, 6), (4, 3, 3, 3)) if conv else ((5, 6), (6, 4))
        w = [integers("int8", shapes[1], 1), np.linspace(0.01, 0.04, 4).astype(np.float32), np.full(4, zero, np.int8)]
        bias = [] if op_type == "QLinearMatMul" else [np.array([500, -9000, 0, 7000], np.int32)]
        x, y = quantized("uint8", shapes[0], 0.05), output("uint8", 0.7)
        arrays = [*x, *w, *y, *bias] if conv else [*x, *w, *bias, *y]
        domain = "com.microsoft" if op_type == "QGemm" else ""
        m, inputs = single(op_type, arrays, [T.UINT8], opset=10, domain=domain, constant=(4, 5))
        expected = on_ort(ir.to_proto(m), inputs)
        proto = rewritten(dequantize_compute_quantize, m)
        within_a_step(on_ort(proto, inputs), expected)
        within_a_step(device.run(proto, inputs), expected)
        assert operators(m)[:2] == ["DequantizeLinear", "DequantizeLinear"]

    def test_several_zero_points_in_older_opsets(self) -> None:
        w = [integers("int8", (4, 3, 3, 3), 1), np.ones(4, np.float32), np.arange(4, dtype=np.int8)]
        arrays = [*quantized("uint8", (1, 3, 6, 6), 0.05), *w, *output("uint8", 0.7)]
        m, _ = single("QLinearConv", arrays, [T.UINT8], opset=10, constant=(4, 5))
        (reason,) = why_not(dequantize_compute_quantize, m)
        assert reason.endswith("convert-opset comes first")

    def test_matrices_by_rows_are_unchanged(self) -> None:
        a = [integers("uint8", (3, 8)), np.ones(3, np.float32), np.zeros(3, np.uint8)]
        m, _ = single(
            "QLinearMatMul", [*a, *quantized("uint8", (8, 2), 0.1), *output("uint8", 0.5)], [T.UINT8], opset=21
        )
        assert why_not(dequantize_compute_quantize, m) == ["a scale other than that of the weights is not per tensor"]

    def test_half_precision_is_unchanged(self) -> None:
        a = [integers("uint8", (3, 8)), np.array(1, np.float16), np.array(0, np.uint8)]
        b = [integers("uint8", (8, 2)), np.array(1, np.float16), np.array(0, np.uint8)]
        m, _ = single("QLinearMatMul", [*a, *b, np.array(1, np.float16), np.array(0, np.uint8)], [T.UINT8])
        assert why_not(dequantize_compute_quantize, m) == ["the scales are not float32"]


class TestToFloat:
    @pytest.mark.parametrize("bias", [False, True])
    def test_dynamic(self, bias: bool) -> None:
        a = np.random.default_rng(0).standard_normal((3, 8)).astype(np.float32)
        arrays: list[Array | None] = [a, integers("uint8", (8, 4)), f32(0.02), np.array(100, np.uint8)]
        arrays.append(np.arange(4, dtype=np.float32) if bias else None)
        m, inputs = single("DynamicQuantizeMatMul", arrays, [T.FLOAT], domain="com.microsoft")
        expected = on_ort(ir.to_proto(m), inputs)
        same(on_ort(rewritten(quantized_product_to_float, m), inputs), expected, 1e-5)

    def test_before_the_standard_had_it(self) -> None:
        arrays: list[Array | None] = [np.ones((3, 8), np.float32), integers("uint8", (8, 4)), f32(0.02)]
        m, _ = single("DynamicQuantizeMatMul", arrays, [T.FLOAT], domain="com.microsoft", opset=10)
        assert why_not(quantized_product_to_float, m) == [
            "DynamicQuantizeLinear needs opset 11, and the model has 10: convert-opset comes first"
        ]

    def test_static(self) -> None:
        a, b = integers("uint8", (3, 8)), integers("int8", (8, 4))
        scale = np.linspace(0.01, 0.02, 4).astype(np.float32)
        arrays = [a, b, f32(0.1), scale, np.array(9, np.uint8), None, np.ones(4, np.float32)]
        m, inputs = single("MatMulIntegerToFloat", arrays, [T.FLOAT], domain="com.microsoft")
        expected = on_ort(ir.to_proto(m), inputs)
        same(on_ort(rewritten(quantized_product_to_float, m), inputs), expected, 1e-5)
        assert operators(m) == ["MatMulInteger", "Cast", "Mul", "Mul", "Add"]


@settings(max_examples=40, deadline=None)
@given(
    op_type=st.sampled_from(["QLinearAdd", "QLinearMul"]),
    name=st.sampled_from(list(DTYPES)),
    shapes=st.sampled_from([((3, 4), (3, 4)), ((2, 3, 4), (4,)), ((1,), (2, 3)), ((2, 1, 3), (4, 1))]),
    scale=st.floats(0.01, 2),
    seed=st.integers(0, 999),
)
def test_any_pair(
    op_type: str, name: str, shapes: tuple[tuple[int, ...], tuple[int, ...]], scale: float, seed: int
) -> None:
    arrays = [*quantized(name, shapes[0], 0.1, seed), *quantized(name, shapes[1], 0.07, seed + 1)]
    m, inputs = single(op_type, [*arrays, *output(name, scale)], [DTYPES[name]], domain="com.microsoft")
    expected = on_ort(ir.to_proto(m), inputs)
    for one, other in zip(on_ort(rewritten(dequantize_compute_quantize, m), inputs), expected, strict=True):
        assert np.abs(one.astype(int) - other.astype(int)).max(initial=0) <= 1
