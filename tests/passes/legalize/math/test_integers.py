"""Integers: Abs of unsigned ones is the identity, powers are computed in float64."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

from passes.legalize.math.elementwise import integer_power, unsigned_abs
from passes.rewriting.rewrite import UNKNOWN_DTYPE
from tests.passes.device import Device
from tests.passes.dtypes import on_ort, rewritten, same, single, why_not


@pytest.mark.parametrize("name", ["uint8", "uint16", "uint32", "uint64"])
def test_unsigned(name: str, device: Device) -> None:
    x = np.array([0, 1, 100, np.iinfo(name).max], name)
    m, inputs = single("Abs", [x], [ir.DataType.from_numpy(x.dtype).value], opset=13)
    expected = on_ort(ir.to_proto(m), inputs)
    same(device.run(rewritten(unsigned_abs, m), inputs), expected)


@pytest.mark.parametrize("name", ["int8", "float32"])
def test_signed_integers_are_unchanged(name: str) -> None:
    x = np.zeros(2, name)
    m, _ = single("Abs", [x], [ir.DataType.from_numpy(x.dtype).value])
    assert why_not(unsigned_abs, m) == []
    m.graph.inputs[0].type = None
    assert why_not(unsigned_abs, m) == [UNKNOWN_DTYPE]


@pytest.mark.parametrize("name", ["int32", "int64"])
@pytest.mark.parametrize("exponents", ["float32", "int32"])
def test_powers_beyond_float32(name: str, exponents: str, device: Device) -> None:
    x, y = np.array([7, -7, 3, 0, 2], name), np.array([10, 9, 18, 0, 30], exponents)
    m, inputs = single("Pow", [x, y], [ir.DataType.from_numpy(x.dtype).value], opset=15)
    expected = on_ort(ir.to_proto(m), inputs)
    new = rewritten(integer_power, m)
    assert [node.op_type for node in new.graph.node] == ["Cast", "Cast", "Pow", "Cast"]
    same(device.run(new, inputs), expected)


def test_powers_of_floats_are_unchanged() -> None:
    m, _ = single("Pow", [np.zeros(2, np.float32), np.zeros(2, np.int32)], [ir.DataType.FLOAT.value], opset=15)
    assert why_not(integer_power, m) == []
