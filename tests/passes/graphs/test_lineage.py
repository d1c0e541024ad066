"""What passes record of nodes and values: that it is kept in files and leads back, and what others may write there."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest

from passes.graphs import lineage
from passes.quantization.to_int8.uint8_to_int8 import Uint8ToInt8
from passes.rewriting.base import Context
from passes.rewriting.pipeline import Pipeline
from passes.specialize.freeze_shapes import FROZEN
from tests.passes.harness import apply, model
from tests.passes.helpers import tiny

TEXT = "(float[N, 2] x) => (float[N, 2] y) { [a] a = Relu(x) [b] b = Identity(a) [c] y = Neg(b) }"


@pytest.mark.parametrize("text", ["", "{", "7", "[1, 2", "[7]", "null", '{"N": "many"}', "[" * 100_000])
def test_what_no_pass_wrote_is_not_read(text: str) -> None:
    source = model(TEXT)
    source.metadata_props[FROZEN] = text
    for node in source.graph:
        node.metadata_props[lineage.ORIGIN] = text
        node.outputs[0].metadata_props[lineage.SHIFT] = text
    assert all(lineage.shift_of(node.outputs[0]) is None for node in source.graph)
    cleaned = Pipeline.parse("freeze-shapes,remove-identity").run(source, Context())[-1].result.model
    assert [node.op_type for node in cleaned.graph] == ["Relu", "Neg"]


def test_shifts_add_up() -> None:
    source = model(TEXT)
    value = source.graph[0].outputs[0]
    lineage.record_shift(value, "q", 3)
    lineage.record_shift(value, "r", 4)
    assert lineage.shift_of(value) == ("q", 7)


def test_origins_do_not_grow_without_end() -> None:
    """Each of many nodes may replace all nodes before it, as in a chain of Reshapes, each of them used."""
    nodes = [ir.Node("", "Relu", [], name=f"n{index}") for index in range(lineage.MAX_ORIGINS + 10)]
    nodes[0].metadata_props[lineage.ORIGIN] = lineage.common_origin(nodes)
    assert lineage.origin(nodes[0]) == [f"n{index}" for index in range(lineage.MAX_ORIGINS)]
    assert lineage.common_origin(nodes[:1]) == lineage.common_origin(nodes)


def test_shifts_of_a_shifted_value_add_up() -> None:
    value = ir.Value(name="q")
    assert lineage.shift_of(value) is None
    lineage.record_shift(value, "q", -128)
    assert lineage.shift_of(value) == ("q", -128)
    lineage.record_shift(value, "q_int8", 28)
    assert lineage.shift_of(value) == ("q", -100)


def test_no_integer_overflows() -> None:
    found = lineage.shifted(np.array([0, 127, 255], np.uint8), -128, np.dtype(np.int8))
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
        made = {str(value.name): lineage.shift_of(value) for node in each.graph for value in node.outputs}
        assert made == {"q_int8": ("q", -128), "t_int8": ("t", -128), "y": None}
