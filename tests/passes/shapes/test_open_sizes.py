"""Sizes that follow from a model, where it leaves them open."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from passes.shapes.open_sizes import OpenDims, OpenSizes
from tests.passes.helpers import DECODER, DECODER_WEIGHTS, tiny

FLOATS = np.ones


def sizes(text: str, **constants: object) -> OpenSizes:
    return OpenDims(tiny(text, **constants), {}, {}).sizes(1)


def test_heads_follow_from_weights_and_the_mask_from_the_lengths() -> None:
    found = sizes(DECODER, **DECODER_WEIGHTS)
    assert found.default == {"batch": 1, "new": 1, "past": 1}
    assert found.derived == {"heads": 2, "head": 4, "total": 2}


def test_the_mask_follows_from_lengths_that_are_given() -> None:
    model = tiny(DECODER, **DECODER_WEIGHTS)
    assert OpenDims(model, {"past": 5, "new": 3}, {}).sizes(1).derived["total"] == 8
    found = OpenDims(model, {}, {"keys": (2, 2, 7, 4)}).sizes(1)
    assert (found.default, found.derived) == ({"new": 1}, {"total": 8})


def test_a_size_that_is_given_stays() -> None:
    assert "total" not in OpenDims(tiny(DECODER, **DECODER_WEIGHTS), {"total": 1}, {}).sizes(1).all


def test_sums_by_the_convention_of_names() -> None:
    text = """(float[n, sequence_length] a, float[n, total_sequence_length] b, float[n, past_sequence_length] c)
    => (float[n, sequence_length] x, float[n, total_sequence_length] y, float[n, past_sequence_length] z)
    { x = Neg(a)  y = Neg(b)  z = Neg(c) }"""
    assert sizes(text).derived == {"total_sequence_length": 2}
    given = OpenDims(tiny(text), {"past_sequence_length": 7, "sequence_length": 2}, {}).sizes(1)
    assert given.derived == {"total_sequence_length": 9}


@pytest.mark.parametrize(
    ("text", "constants", "derived"),
    [
        ("(float[n, c, 8, 8] x) => (float[a, b, e, d] y) { y = Conv<group = 2>(x, w) }",
         {"w": FLOATS((4, 3, 3, 3), np.float32)}, {"c": 6}),
        ("(float[n, k] x) => (float[a, b] y) { y = Gemm<transB = 1>(x, w) }",
         {"w": FLOATS((4, 9), np.float32)}, {"k": 9}),
        ("(float[n, k] x) => (float[a, b] y) { y = MatMul(x, w) }", {"w": FLOATS((9, 4), np.float32)}, {"k": 9}),
        ("(float[n, k] x) => (float[a, b] y) { y = Add(x, w) }", {"w": FLOATS((9,), np.float32)}, {"k": 9}),
        ("(float[n, k] x) => (float[a, b] y) { y = Add(x, w) }", {"w": FLOATS((1,), np.float32)}, {}),
        ("(float[n, k] x) => (float[a, b] y) { y = Reshape(x, s) }", {"s": np.array([0, 6])}, {"k": 6}),
        ("(float[n, k] x) => (float[a, b] y) { y = Reshape(x, s) }", {"s": np.array([-1, 6])}, {}),
        ("(float[t, n, 3] x, float[d, n, h] s) => (float[a, b, c, e] y)"
         "{ y, z = LSTM<hidden_size = 5>(x, w, r, , , s) }",
         {"w": FLOATS((1, 20, 3), np.float32), "r": FLOATS((1, 20, 5), np.float32)}, {"d": 1, "h": 5}),
        ("(float[i, j] x) => (float[a, b] y) { y = Einsum<equation = \"ij,jk->ik\">(x, w) }",
         {"w": FLOATS((7, 4), np.float32)}, {"j": 7}),
        ("(float[n, k] x) => (float[a, b] y) { y = LayerNormalization(x, w) }",
         {"w": FLOATS((9,), np.float32)}, {"k": 9}),
    ],
)  # fmt: skip
def test_operators(text: str, constants: dict[str, object], derived: dict[str, int]) -> None:
    assert sizes(text, **constants).derived == derived


def test_contradicting_sizes_derive_nothing() -> None:
    text = "(float[n, k] x) => (float[a, b] y, float[c, d] z) { y = Add(x, v)  z = Add(x, w) }"
    found = sizes(text, v=np.ones(8, np.float32), w=np.ones(4, np.float32))
    assert (found.default, found.derived) == ({"n": 1, "k": 1}, {})


def test_sizes_without_names_have_the_input_and_the_axis() -> None:
    model = tiny("(float[n, k] x) => (float[a, b] y) { y = MatMul(x, w) }", w=np.ones((9, 4), np.float32))
    model.graph.inputs[0].shape = ir.Shape([None, None])
    dims = OpenDims(model, {}, {})
    assert dims.names == ["x[0]", "x[1]"]
    assert dims.sizes(1).all == {"x[0]": 1, "x[1]": 9}
    assert dims.shapes_of_unnamed(dims.sizes(1).all) == {"x": (1, 9)}
    assert dims.batch_names() == {"x[0]"}


def test_nodes_and_edges_of_a_graph_are_no_batches() -> None:
    text = """(float[num_nodes, 8] x, float[num_edges, 4] e, int64[num_graphs, 1] g, float[unk__3, 2] u)
    => (float[n, k] y) { y = Identity(x) }"""
    assert OpenDims(tiny(text), {}, {}).batch_names() == {"num_graphs", "unk__3"}


def test_grouped_query_attention() -> None:
    text = """<ir_version: 10, opset_import: ["" : 18, "com.microsoft" : 1]>
    m (float[n, s, 512] q, float[n, s, 128] k, float[n, s, 128] v, float[n, kv, past, head] pk,
       float[n, kv, past, head] pv, int32[n] lengths, int32 total) => (float[a, b, c] y)
    { y = com.microsoft.GroupQueryAttention<num_heads = 8, kv_num_heads = 2>(q, k, v, pk, pv, lengths, total) }"""
    model = ir.from_proto(onnx.parser.parse_model(text))
    assert OpenDims(model, {}, {}).sizes(1).derived == {"kv": 2, "head": 64}


def test_the_model_is_not_changed() -> None:
    model = tiny(DECODER, **DECODER_WEIGHTS)
    before = [str(value.shape) for value in model.graph.inputs]
    OpenDims(model, {}, {}).sizes(1)
    assert [str(value.shape) for value in model.graph.inputs] == before


def test_the_first_result_without_elements() -> None:
    text = "(float[n, 1, h, w] x) => (float[a, b, c, d] y) { p = MaxPool<kernel_shape = [5, 3]>(x)  y = Neg(p) }"
    dims = OpenDims(tiny(text), {}, {})
    found = dims.too_small({"n": 1, "h": 1, "w": 1})
    assert found is not None
    assert found.node.op_type == "MaxPool"
    assert dims.too_small({"n": 1, "h": 5, "w": 3}) is None
