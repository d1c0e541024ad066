"""Metadata that passes write into models, and that anyone else may write there."""

from __future__ import annotations

import onnx_ir as ir
import pytest

from passes.graphs.graphs import MAX_ORIGINS, ORIGIN, common_origin, origin
from passes.graphs.zero_point_shifts import SHIFT, record_shift, shift_of
from passes.rewriting.base import Context
from passes.rewriting.pipeline import Pipeline
from passes.specialize.freeze_shapes import FROZEN
from tests.passes.harness import model

TEXT = "(float[N, 2] x) => (float[N, 2] y) { [a] a = Relu(x) [b] b = Identity(a) [c] y = Neg(b) }"


@pytest.mark.parametrize("text", ["", "{", "7", "[1, 2", "[7]", "null", '{"N": "many"}', "[" * 100_000])
def test_what_no_pass_wrote_is_not_read(text: str) -> None:
    source = model(TEXT)
    source.metadata_props[FROZEN] = text
    for node in source.graph:
        node.metadata_props[ORIGIN] = text
        node.outputs[0].metadata_props[SHIFT] = text
    assert all(shift_of(node.outputs[0]) is None for node in source.graph)
    cleaned = Pipeline.parse("freeze-shapes,remove-identity").run(source, Context())[-1].result.model
    assert [node.op_type for node in cleaned.graph] == ["Relu", "Neg"]


def test_shifts_add_up() -> None:
    source = model(TEXT)
    value = source.graph[0].outputs[0]
    record_shift(value, "q", 3)
    record_shift(value, "r", 4)
    assert shift_of(value) == ("q", 7)


def test_origins_do_not_grow_without_end() -> None:
    """Each of many nodes may replace all nodes before it, as in a chain of Reshapes, each of them used."""
    nodes = [ir.Node("", "Relu", [], name=f"n{index}") for index in range(MAX_ORIGINS + 10)]
    nodes[0].metadata_props[ORIGIN] = common_origin(nodes)
    assert origin(nodes[0]) == [f"n{index}" for index in range(MAX_ORIGINS)]
    assert common_origin(nodes[:1]) == common_origin(nodes)
