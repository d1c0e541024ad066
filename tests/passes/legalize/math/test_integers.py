"""unsigned-abs: Abs of unsigned integers is the identity."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

from passes.core.rewrite import UNKNOWN_DTYPE
from passes.legalize.math.integers import UnsignedAbs
from tests.passes.device import Device
from tests.passes.dtypes import on_ort, rewritten, same, single, why_not


@pytest.mark.parametrize("name", ["uint8", "uint16", "uint32", "uint64"])
def test_unsigned(name: str, device: Device) -> None:
    x = np.array([0, 1, 100, np.iinfo(name).max], name)
    m, inputs = single("Abs", [x], [ir.DataType.from_numpy(x.dtype).value], opset=13)
    expected = on_ort(ir.to_proto(m), inputs)
    same(device.run(rewritten(UnsignedAbs(), m), inputs), expected)


@pytest.mark.parametrize("name", ["int8", "float32"])
def test_signed_integers_are_unchanged(name: str) -> None:
    x = np.zeros(2, name)
    m, _ = single("Abs", [x], [ir.DataType.from_numpy(x.dtype).value])
    assert why_not(UnsignedAbs(), m) == []
    m.graph.inputs[0].type = None
    assert why_not(UnsignedAbs(), m) == [UNKNOWN_DTYPE]
