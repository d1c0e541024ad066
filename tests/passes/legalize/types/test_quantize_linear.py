"""Quantization by arithmetic: all dtypes, granularities and precisions, compared with ONNX Runtime."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from passes.legalize.types.quantize_linear import (
    dequantize_by_arithmetic,
    quantize_by_arithmetic,
    standard_quantization,
)
from tests.passes.device import Device
from tests.passes.dtypes import T, on_onnx, on_ort, rewritten, same, single, why_not
from tests.passes.harness import Array, operators

TARGETS = {"int8": T.INT8, "uint8": T.UINT8, "int16": T.INT16, "uint16": T.UINT16}
SHAPES: dict[str, tuple[tuple[int, ...], dict[str, Any]]] = {
    "one": ((), {}),
    "axis": ((3,), {"axis": -2}),
    "blocked": ((2, 3, 3), {"axis": 2, "block_size": 2}),
}


def zero_points(name: str, shape: tuple[int, ...], seed: int = 0) -> Array:
    info = np.iinfo(name)
    return np.asarray(np.random.default_rng(seed).integers(info.min, info.max, shape, endpoint=True)).astype(name)


def scales(shape: tuple[int, ...], dtype: str = "float32", seed: int = 0) -> Array:
    return np.asarray(np.random.default_rng(seed).uniform(0.02, 0.5, shape)).astype(dtype)


class TestQuantize:
    @pytest.mark.parametrize("name", TARGETS)
    def test_granularities(self, name: str, device: Device) -> None:
        x = np.random.default_rng(0).standard_normal((2, 3, 6)).astype(np.float32) * 40
        x.flat[:6] = [0.25, 0.75, -0.25, 1e9, -1e9, 0]  # ties, and out of range
        for shape, attributes in SHAPES.values():
            scale = scales(shape)
            if not shape:
                scale = np.array(0.5, np.float32)
            m, inputs = single("QuantizeLinear", [x, scale, zero_points(name, shape)], [TARGETS[name]], **attributes)
            expected = on_ort(ir.to_proto(m), inputs)
            proto = rewritten(quantize_by_arithmetic, m)
            same(device.run(proto, inputs), expected)
            same(on_ort(proto, inputs), expected)

    def test_constant_scales_take_no_operators(self) -> None:
        x = np.zeros((2, 3, 6), np.float32)
        for shape, attributes in SHAPES.values():
            arrays = [x, scales(shape), zero_points("int8", shape)]
            m, _ = single("QuantizeLinear", arrays, [T.INT8], constant=[1, 2], **attributes)
            rewritten(quantize_by_arithmetic, m)
            assert operators(m) == ["Div", "Round", "Cast", "Add", "Max", "Min", "Cast"]

    def test_halves_by_constant_scales(self, device: Device) -> None:
        for scale in (0.1, 0.3, 0.07, 1 / 3):  # which must not become factors
            x = (np.arange(-300, 300, dtype=np.float32) + np.float32(0.5)) * np.float32(scale)
            arrays = [x, np.array(scale, np.float32), np.array(3, np.int16)]
            m, inputs = single("QuantizeLinear", arrays, [T.INT16], constant=[1, 2])
            expected = on_ort(ir.to_proto(m), inputs)
            same(device.run(rewritten(quantize_by_arithmetic, m), inputs), expected)

    def test_half(self, device: Device) -> None:
        x = (np.random.default_rng(1).standard_normal(500) * 9).astype(np.float16)
        m, inputs = single("QuantizeLinear", [x, np.array(0.07, np.float16), np.array(3, np.uint8)], [T.UINT8])
        expected = on_ort(ir.to_proto(m), inputs)
        same(device.run(rewritten(quantize_by_arithmetic, m), inputs), expected)

    def test_int32(self, device: Device) -> None:
        x = np.array([-9000, -3, -1, 0, 1, 3, 7, 2**20], np.int32)
        m, inputs = single("QuantizeLinear", [x, np.array(2, np.float32), np.array(3, np.int8)], [T.INT8], opset=13)
        expected = on_onnx(ir.to_proto(m), inputs)
        same(device.run(rewritten(quantize_by_arithmetic, m), inputs), expected)

    def test_without_a_zero_point(self, device: Device) -> None:
        x = np.linspace(-50, 200, 40, dtype=np.float32)
        for target, attributes in ((T.UINT8, {}), (T.INT16, {"output_dtype": T.INT16})):
            m, inputs = single("QuantizeLinear", [x, np.array(0.5, np.float32)], [target], **attributes)
            expected = on_ort(ir.to_proto(m), inputs)
            same(device.run(rewritten(quantize_by_arithmetic, m), inputs), expected)

    @pytest.mark.runtime
    @pytest.mark.parametrize(("name", "limits"), [("int4", (-8, 7)), ("uint4", (0, 15))])
    def test_four_bits(self, name: str, limits: tuple[int, int], device: Device) -> None:
        x = np.linspace(-20, 20, 81, dtype=np.float32)
        zero = np.array(2).astype(name)
        arrays = [x, np.array(0.5, np.float32), zero]
        m, inputs = single("QuantizeLinear", arrays, [ir.DataType.from_numpy(zero.dtype).value], constant=[2])
        (actual,) = device.run(rewritten(quantize_by_arithmetic, m), inputs)
        np.testing.assert_array_equal(actual.astype(int), np.clip(np.rint(x / 0.5) + 2, *limits))

    def test_unknown_types_and_shapes(self) -> None:
        m, _ = single("QuantizeLinear", [np.zeros(3, np.float32), scales(())], [T.UINT8])
        m.graph.inputs[1].shape = None
        assert why_not(quantize_by_arithmetic, m) == ["the shape of i1 is unknown: freeze it with freeze-shapes"]
        m.graph.inputs[0].type = None
        assert why_not(quantize_by_arithmetic, m) == ["the input or output dtype is unknown"]


class TestDequantize:
    @pytest.mark.parametrize("name", [*TARGETS, "int32"])
    def test_granularities(self, name: str, device: Device) -> None:
        x = zero_points(name, (2, 3, 6), 4)
        for shape, attributes in SHAPES.values():
            zero = np.zeros(shape, name) if name == "int32" else zero_points(name, shape)
            m, inputs = single("DequantizeLinear", [x, scales(shape), zero], [T.FLOAT], **attributes)
            expected = on_ort(ir.to_proto(m), inputs)
            proto = rewritten(dequantize_by_arithmetic, m)
            same(device.run(proto, inputs), expected, 1e-6)
            same(on_ort(proto, inputs), expected)

    def test_half(self, device: Device) -> None:
        x = np.arange(-128, 128, dtype=np.int8)
        m, inputs = single("DequantizeLinear", [x, np.array(0.07, np.float16), np.array(3, np.int8)], [T.FLOAT16])
        expected = on_ort(ir.to_proto(m), inputs)
        proto = rewritten(dequantize_by_arithmetic, m)
        same(on_ort(proto, inputs), expected)
        same(device.run(proto, inputs), expected, 1e-3)

    def test_blocks_that_do_not_divide(self, device: Device) -> None:
        x = zero_points("uint8", (5, 4), 1)
        arrays = [x, scales((3, 4)), zero_points("uint8", (3, 4))]
        for constant in ([], [1, 2]):
            m, inputs = single("DequantizeLinear", arrays, [T.FLOAT], constant=constant, axis=0, block_size=2)
            expected = on_ort(ir.to_proto(m), inputs)
            same(device.run(rewritten(dequantize_by_arithmetic, m), inputs), expected, 1e-6)


class TestContrib:
    def test_becomes_the_standard_operator(self, device: Device) -> None:
        x = np.linspace(-3, 3, 30, dtype=np.float32)
        arrays = [x, np.array(1e-4, np.float32), np.array(7, np.uint16)]
        m, inputs = single("QuantizeLinear", arrays, [T.UINT16], domain="com.microsoft")
        expected = on_ort(ir.to_proto(m), inputs)
        proto = rewritten(standard_quantization, m)
        assert proto.graph.node[0].domain == ""
        same(on_ort(proto, inputs), expected)
        same(device.run(proto, inputs), expected)

    def test_before_the_standard_had_it(self) -> None:
        arrays = [np.zeros(3, np.uint16), np.array(1e-4, np.float32), np.array(7, np.uint16)]
        m, _ = single("DequantizeLinear", arrays, [T.FLOAT], domain="com.microsoft", opset=17)
        reason = "the standard operator with this dtype needs opset 21, and the model has 17: convert-opset comes first"
        assert why_not(standard_quantization, m) == [reason]
        rewritten(dequantize_by_arithmetic, m)


@settings(max_examples=60, deadline=None)
@given(
    operator=st.sampled_from(["QuantizeLinear", "DequantizeLinear"]),
    name=st.sampled_from(list(TARGETS)),
    dims=st.sampled_from([(6,), (2, 6), (4, 6, 3), (2, 3, 4, 6), (0, 6)]),
    kind=st.sampled_from(["one", "axis", "blocked"]),
    negative=st.booleans(),
    zero=st.booleans(),
    constant=st.booleans(),
    data=st.data(),
)
def test_anything(
    operator: str,
    name: str,
    dims: tuple[int, ...],
    kind: str,
    negative: bool,
    zero: bool,
    constant: bool,
    data: st.DataObject,
) -> None:
    axis = data.draw(st.integers(0, len(dims) - 1))
    attributes: dict[str, int] = {"axis": axis - len(dims) * negative}
    shape: tuple[int, ...] = ()
    if kind == "axis":
        shape = (dims[axis],)
    elif kind == "blocked" and 0 not in dims:
        block = data.draw(st.sampled_from([each for each in (1, 2, 4) if each <= dims[axis]]))
        attributes["block_size"] = block
        shape = (*dims[:axis], -(-dims[axis] // block), *dims[axis + 1 :])
    x = zero_points(name, dims, 1)
    if operator == "QuantizeLinear":
        x = np.random.default_rng(1).standard_normal(dims).astype(np.float32) * 30
    arrays = [x, scales(shape), zero_points(name, shape)]
    if not zero:
        arrays.pop()
        if operator == "QuantizeLinear":
            attributes["output_dtype"] = TARGETS[name]
    output = TARGETS[name] if operator == "QuantizeLinear" else T.FLOAT
    m, inputs = single(operator, arrays, [output], constant=range(1, len(arrays)) if constant else [], **attributes)
    expected = on_ort(ir.to_proto(m), inputs)
    rule = quantize_by_arithmetic if operator == "QuantizeLinear" else dequantize_by_arithmetic
    same(on_ort(rewritten(rule, m), inputs), expected)
