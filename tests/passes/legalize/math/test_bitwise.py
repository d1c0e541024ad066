"""Bitwise operators by arithmetic, compared with ONNX Runtime for all dtypes, shapes and amounts."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx.helper import make_node

from passes.legalize.math.bitwise import and_by_bits, bitwise_by_arithmetic, shift_by_arithmetic
from tests.passes.device import Device
from tests.passes.dtypes import T, chain, on_onnx, on_ort, rewritten, same, single, why_not
from tests.passes.harness import Array, operators

INTEGERS = {
    "int8": T.INT8,
    "uint8": T.UINT8,
    "int16": T.INT16,
    "uint16": T.UINT16,
    "int32": T.INT32,
    "uint32": T.UINT32,
    "int64": T.INT64,
    "uint64": T.UINT64,
}
RULES = {"BitwiseAnd": and_by_bits}
UNSIGNED = [name for name in INTEGERS if name.startswith("u")]
SHAPES = [((3, 4), (3, 4)), ((2, 3, 4), (4,)), ((), (2, 3)), ((2, 1, 3), (4, 1)), ((5,), ())]


def numbers(name: str, shape: tuple[int, ...], seed: int = 0) -> Array:
    """Integers over the whole range, with its ends."""
    info = np.iinfo(name)
    found = np.random.default_rng(seed).integers(info.min, info.max, shape, name, endpoint=True)
    ends = np.array([info.min, info.max, 0, 1, info.max - 1], name)[: found.size]
    if found.size:
        found.flat[: ends.size] = np.roll(ends, seed)
    return np.asarray(found)


class TestBitwise:
    @pytest.mark.parametrize(
        ("op_type", "count"), [("BitwiseAnd", 2), ("BitwiseNot", 1), ("BitwiseOr", 2), ("BitwiseXor", 2)]
    )
    def test_all_dtypes(self, op_type: str, count: int, device: Device) -> None:
        for name in INTEGERS:
            arrays = [numbers(name, (4, 5), seed) for seed in range(count)]
            m, inputs = single(op_type, arrays, [INTEGERS[name]], opset=18)
            expected = on_ort(ir.to_proto(m), inputs)
            proto = rewritten(RULES.get(op_type, bitwise_by_arithmetic), m)
            same(device.run(proto, inputs), expected)
            same(on_ort(proto, inputs), expected)

    def test_operators(self) -> None:
        x = numbers("int32", (4,))
        for op_type, arrays, expected in (
            ("BitwiseNot", [x], ["Sub"]),
            ("BitwiseOr", [x, x], ["BitwiseAnd", "Sub", "Add"]),
            ("BitwiseXor", [x, x], ["BitwiseAnd", "Sub", "Sub", "Add"]),
        ):
            m, _ = single(op_type, arrays, [T.INT32], opset=18)
            rewritten(bitwise_by_arithmetic, m)
            assert operators(m) == expected

    @settings(max_examples=60, deadline=None)
    @given(
        op_type=st.sampled_from(["BitwiseAnd", "BitwiseOr", "BitwiseXor"]),
        name=st.sampled_from(list(INTEGERS)),
        shapes=st.sampled_from(SHAPES),
        swapped=st.booleans(),
        seed=st.integers(0, 99),
    )
    def test_broadcast(
        self, op_type: str, name: str, shapes: tuple[tuple[int, ...], ...], swapped: bool, seed: int
    ) -> None:
        arrays = [numbers(name, shape, seed + index) for index, shape in enumerate(shapes[:: -1 if swapped else 1])]
        m, inputs = single(op_type, arrays, [INTEGERS[name]], opset=18)
        expected = on_onnx(ir.to_proto(m), inputs)
        same(on_ort(rewritten(RULES.get(op_type, bitwise_by_arithmetic), m), inputs), expected)

    def test_the_dtype_is_unknown(self) -> None:
        node = make_node("BitwiseNot", ["i0"], ["y0"])
        m, _ = chain([node], {"i0": numbers("int8", (2,))}, {"y0": T.INT8})
        m.graph.inputs[0].type = m.graph.outputs[0].type = None
        assert why_not(bitwise_by_arithmetic, m) == ["the integer dtype is unknown"]


class TestShifts:
    @pytest.mark.parametrize("direction", ["LEFT", "RIGHT"])
    def test_all_amounts(self, direction: str, device: Device) -> None:
        for name in UNSIGNED:
            bits = np.iinfo(name).bits
            x = np.repeat(numbers(name, (6, 1)), bits, 1)
            amount = np.arange(bits, dtype=name)
            m, inputs = single("BitShift", [x, amount], [INTEGERS[name]], opset=11, direction=direction)
            expected = on_onnx(ir.to_proto(m), inputs)
            proto = rewritten(shift_by_arithmetic, m)
            same(device.run(proto, inputs), expected)
            same(on_ort(proto, inputs), expected)

    @pytest.mark.parametrize("direction", ["LEFT", "RIGHT"])
    def test_shift_by_all_bits(self, direction: str, device: Device) -> None:
        for name in UNSIGNED:
            info = np.iinfo(name)
            amount = np.array([info.bits, info.bits + 1, info.max // 2 + 1, info.max], name)
            m, inputs = single(
                "BitShift", [numbers(name, (4,)), amount], [INTEGERS[name]], opset=11, direction=direction
            )
            proto = rewritten(shift_by_arithmetic, m)
            same(device.run(proto, inputs), [np.zeros(4, name)])

    @settings(max_examples=40, deadline=None)
    @given(
        name=st.sampled_from(UNSIGNED),
        shapes=st.sampled_from(SHAPES),
        direction=st.sampled_from(["LEFT", "RIGHT"]),
        constant=st.booleans(),
        seed=st.integers(0, 99),
    )
    def test_broadcast(
        self, name: str, shapes: tuple[tuple[int, ...], ...], direction: str, constant: bool, seed: int
    ) -> None:
        bits = np.iinfo(name).bits
        amount = np.asarray(np.random.default_rng(seed).integers(0, bits, shapes[1])).astype(name)
        arrays = [numbers(name, shapes[0], seed), amount]
        m, inputs = single(
            "BitShift", arrays, [INTEGERS[name]], constant=[1] if constant else [], opset=18, direction=direction
        )
        expected = on_onnx(ir.to_proto(m), inputs)
        same(on_ort(rewritten(shift_by_arithmetic, m), inputs), expected)
