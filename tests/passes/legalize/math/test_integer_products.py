"""Products of 8-bit integers are exact for all zero points, shapes and lengths of sums."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from passes.legalize.math.integer_products import digits_of, exact_integer_product
from passes.rewriting.rewrite import UNKNOWN_SHAPE
from tests.passes.device import Device
from tests.passes.dtypes import T, on_onnx, on_ort, rewritten, same, single, why_not
from tests.passes.harness import Array, operators

DTYPES = {"int8": T.INT8, "uint8": T.UINT8}


def integers(name: str, shape: tuple[int, ...], seed: int = 0) -> Array:
    info = np.iinfo(name)
    return np.asarray(np.random.default_rng(seed).integers(info.min, info.max, shape, endpoint=True)).astype(name)


class TestMatMulInteger:
    @pytest.mark.parametrize("name", DTYPES)
    def test_zero_points(self, name: str, device: Device) -> None:
        a, b = integers("uint8", (2, 4, 6)), integers(name, (6, 5), 1)
        for a_zero, b_zero in ((None, None), ((), ()), ((), (5,)), ((1,), None)):
            arrays: list[Array | None] = [a, b, None, None]
            if a_zero is not None:
                arrays[2] = integers("uint8", a_zero, 2)
            if b_zero is not None:
                arrays[3] = integers(name, b_zero, 3)
            m, inputs = single("MatMulInteger", arrays, [T.INT32], opset=10)
            expected = on_ort(ir.to_proto(m), inputs)
            proto = rewritten(exact_integer_product, m)
            same(device.run(proto, inputs), expected)
            same(on_ort(proto, inputs), expected)

    def test_one_zero_point_a_row(self, device: Device) -> None:
        a, b = integers("uint8", (4, 6)), integers("int8", (6, 5), 1)
        zero = integers("uint8", (4,), 2)
        m, inputs = single("MatMulInteger", [a, b, zero], [T.INT32])
        expected = (a.astype(np.int32) - zero[:, None].astype(np.int32)) @ b.astype(np.int32)
        same(device.run(rewritten(exact_integer_product, m), inputs), [expected])
        a, zero = integers("uint8", (2, 4, 6)), integers("uint8", (2, 4, 1), 2)
        m, inputs = single("MatMulInteger", [a, b, zero], [T.INT32])
        expected = (a.astype(np.int32) - zero.astype(np.int32)) @ b.astype(np.int32)
        same(device.run(rewritten(exact_integer_product, m), inputs), [expected])

    @pytest.mark.parametrize("length", [258, 259, 2122, 2123, 9400, 21932])
    def test_long_sums_of_the_largest_products(self, length: int, device: Device) -> None:
        a = np.full((1, length), 255, np.uint8)
        b = np.full((length, 2), 255, np.uint8)
        a[0, ::7], b[::5, 1] = 254, 1
        m, inputs = single("MatMulInteger", [a, b], [T.INT32])
        expected = [a.astype(np.int32) @ b.astype(np.int32)]
        proto = rewritten(exact_integer_product, m)
        same(device.run(proto, inputs), expected)
        pieces = {258: 1, 259: 2, 2122: 2, 2123: 3, 9400: 5, 21932: 9}[length]
        assert operators(m).count("MatMul") == pieces

    def test_negative_differences_in_digits(self, device: Device) -> None:
        a, b = integers("uint8", (3, 600)), integers("int8", (600, 3), 1)
        m, inputs = single("MatMulInteger", [a, b, np.array(255, np.uint8), np.array(-128, np.int8)], [T.INT32])
        expected = on_onnx(ir.to_proto(m), inputs)
        same(device.run(rewritten(exact_integer_product, m), inputs), expected)

    def test_longer_sums_are_unchanged(self) -> None:
        assert digits_of(65793) == 1
        assert digits_of(65794) is None
        a, b = np.zeros((1, 70000), np.uint8), np.zeros((70000, 1), np.uint8)
        m, _ = single("MatMulInteger", [a, b], [T.INT32])
        assert why_not(exact_integer_product, m) == ["a sum of 70000 products is not exact in float32"]

    def test_unknown_types_and_shapes(self) -> None:
        m, _ = single("MatMulInteger", [integers("uint8", (2, 3)), integers("uint8", (3, 2))], [T.INT32])
        shape, m.graph.inputs[1].shape = m.graph.inputs[1].shape, None
        assert why_not(exact_integer_product, m) == [UNKNOWN_SHAPE]
        m.graph.inputs[1].shape = shape
        m.graph.inputs[0].type = None
        assert why_not(exact_integer_product, m) == ["the factors are not known to be 8-bit integers"]


class TestConvInteger:
    @pytest.mark.parametrize(
        "attributes",
        [
            {},
            {"pads": [1, 0, 2, 1], "strides": [2, 1], "dilations": [1, 2]},
            {"auto_pad": "SAME_UPPER"},
            {"group": 2, "pads": [1, 1, 1, 1]},
        ],
    )
    def test_attributes(self, attributes: dict[str, Any], device: Device) -> None:
        group = attributes.get("group", 1)
        x, w = integers("uint8", (2, 4, 6, 5)), integers("uint8", (6, 4 // group, 3, 2), 1)
        for several in (False, True):
            zero = integers("uint8", (6,) if several else (), 3)
            m, inputs = single("ConvInteger", [x, w, np.array(7, np.uint8), zero], [T.INT32], opset=10, **attributes)
            expected = (on_onnx if several else on_ort)(ir.to_proto(m), inputs)
            proto = rewritten(exact_integer_product, m)
            same(on_ort(proto, inputs), expected)
            if "auto_pad" not in attributes:
                same(device.run(proto, inputs), expected)

    def test_many_channels(self, device: Device) -> None:
        x, w = integers("uint8", (1, 300, 4)), integers("uint8", (2, 300, 2), 1)
        m, inputs = single("ConvInteger", [x, w, np.array(255, np.uint8)], [T.INT32], opset=10)
        expected = on_ort(ir.to_proto(m), inputs)
        same(device.run(rewritten(exact_integer_product, m), inputs), expected)


class TestQLinear:
    @pytest.mark.parametrize("name", DTYPES)
    def test_matmul(self, name: str, device: Device) -> None:
        a, b = integers(name, (2, 3, 8)), integers("int8", (2, 8, 5), 1)
        arrays = [a, f32(0.02), integers(name, (), 4), b, f32(0.03), integers("int8", (), 5), f32(0.9)]
        m, inputs = single("QLinearMatMul", [*arrays, integers(name, (), 6)], [DTYPES[name]])
        expected = on_ort(ir.to_proto(m), inputs)
        proto = rewritten(exact_integer_product, m)
        same(device.run(proto, inputs), expected)
        same(on_ort(proto, inputs), expected)

    def test_matmul_by_columns(self, device: Device) -> None:
        a, b = integers("uint8", (3, 8)), integers("int8", (8, 5), 1)
        scale = np.linspace(0.01, 0.05, 5).astype(np.float32)
        zeros = integers("int8", (5,), 3)
        arrays = [a, f32(0.02), np.array(100, np.uint8), b, scale, zeros, f32(0.9), np.array(120, np.uint8)]
        m, inputs = single("QLinearMatMul", arrays, [T.UINT8])
        expected = on_ort(ir.to_proto(m), inputs)
        same(device.run(rewritten(exact_integer_product, m), inputs), expected)

    def test_matmul_by_rows(self, device: Device) -> None:
        a, b = integers("uint8", (3, 8)), integers("int8", (8, 5), 1)
        scale = np.linspace(0.01, 0.05, 3).astype(np.float32)
        zeros = integers("uint8", (3,), 3)
        arrays = [a, scale, zeros, b, f32(0.02), np.array(3, np.int8), f32(0.9), np.array(120, np.uint8)]
        m, inputs = single("QLinearMatMul", arrays, [T.UINT8])
        total = (a.astype(int) - zeros[:, None].astype(int)) @ (b.astype(int) - 3)
        real = total.astype(np.float32) * (scale[:, None] * f32(0.02) / f32(0.9))
        expected = np.clip(np.rint(real) + 120, 0, 255).astype(np.uint8)
        same(device.run(rewritten(exact_integer_product, m), inputs), [expected])

    @pytest.mark.parametrize("several", [False, True])
    @pytest.mark.parametrize("bias", [False, True])
    def test_conv(self, several: bool, bias: bool, device: Device) -> None:
        x, w = integers("uint8", (1, 3, 6, 6)), integers("int8", (4, 3, 3, 3), 1)
        scale = np.linspace(0.01, 0.05, 4).astype(np.float32) if several else f32(0.02)
        zeros = np.zeros(4, np.int8) if several else np.array(5, np.int8)
        arrays = [x, f32(0.05), np.array(100, np.uint8), w, scale, zeros, f32(0.7), np.array(128, np.uint8)]
        if bias:
            arrays.append(np.array([-3000, 9, 4000, 0], np.int32))
        m, inputs = single("QLinearConv", arrays, [T.UINT8], opset=10, pads=[1, 1, 1, 1])
        expected = on_ort(ir.to_proto(m), inputs)
        proto = rewritten(exact_integer_product, m)
        same(device.run(proto, inputs), expected)
        same(on_ort(proto, inputs), expected)

    def test_output_scales_per_axis_are_unchanged(self) -> None:
        a, b = integers("uint8", (3, 8)), integers("int8", (8, 5), 1)
        scale, zeros = np.ones(3, np.float32), np.zeros(3, np.uint8)
        arrays = [a, f32(1), np.array(0, np.uint8), b, f32(1), np.array(0, np.int8), scale, zeros]
        m, _ = single("QLinearMatMul", arrays, [T.UINT8])
        assert why_not(exact_integer_product, m) == ["the output has more than one scale"]


def f32(number: float) -> Array:
    return np.array(number, np.float32)


@settings(max_examples=40, deadline=None)
@given(
    shapes=st.sampled_from(
        [((3, 4), (4, 2)), ((2, 3, 4), (4, 2)), ((4,), (4, 2)), ((3, 4), (4,)), ((2, 1, 3, 4), (5, 4, 2)), ((4,), (4,))]
    ),
    names=st.tuples(st.sampled_from(list(DTYPES)), st.sampled_from(list(DTYPES))),
    zeros=st.tuples(st.sampled_from([None, (), (1,)]), st.sampled_from([None, (), (1,)])),
    seed=st.integers(0, 999),
)
def test_any_shapes(
    shapes: tuple[tuple[int, ...], tuple[int, ...]],
    names: tuple[str, str],
    zeros: tuple[tuple[int, ...] | None, tuple[int, ...] | None],
    seed: int,
) -> None:
    arrays: list[Array | None] = [integers(name, shape, seed) for name, shape in zip(names, shapes, strict=True)]
    arrays += [None if shape is None else integers(name, shape, seed) for name, shape in zip(names, zeros, strict=True)]
    m, inputs = single("MatMulInteger", arrays, [T.INT32])
    wide = [array.astype(np.int32) if array is not None else np.int32(0) for array in arrays]
    expected = (wide[0] - wide[2].reshape(())) @ (wide[1] - wide[3].reshape(()))
    same(on_ort(rewritten(exact_integer_product, m), inputs), [np.asarray(expected)])
