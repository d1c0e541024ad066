"""Shifts of integers: what is recorded, that it survives being written, and that it leads back."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx_ir as ir

from passes.graphs.zero_point_shifts import record_shift, shift_of, shifted
from passes.quantization.to_int8.uint8_to_int8 import Uint8ToInt8
from tests.passes.harness import apply
from tests.passes.helpers import tiny


def test_relations_add_up() -> None:
    value = ir.Value(name="q")
    assert shift_of(value) is None
    record_shift(value, "q", -128)
    assert shift_of(value) == ("q", -128)
    record_shift(value, "q_int8", 28)
    assert shift_of(value) == ("q", -100)


def test_no_integer_overflows() -> None:
    found = shifted(np.array([0, 127, 255], np.uint8), -128, np.dtype(np.int8))
    assert found.dtype == np.int8
    assert found.tolist() == [-128, -1, 127]


def test_the_pass_records_it_and_files_keep_it(tmp_path: Path) -> None:
    source = tiny(
        """(float[2,4] x) => (float[4,2] y) {
            q = QuantizeLinear(x, s, z) t = Transpose(q) y = DequantizeLinear(t, s, z) }""",
        s=np.float32(0.05),
        z=np.uint8(3),
    )
    apply(Uint8ToInt8(), source, inputs={"x": np.linspace(-1, 9, 8, dtype=np.float32).reshape(2, 4)})
    ir.save(source, tmp_path / "m.onnx")
    for each in (source, ir.load(tmp_path / "m.onnx")):
        made = {str(value.name): shift_of(value) for node in each.graph for value in node.outputs}
        assert made == {"q_int8": ("q", -128), "t_int8": ("t", -128), "y": None}
