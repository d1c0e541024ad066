"""Samples of probes: ordinary values, and the edge cases that the specification allows."""

from __future__ import annotations

import numpy as np
import pytest

from onnx_bridge.verdicts.probe_samples import samples
from tests.passes.helpers import tiny


def test_scatter_indices_are_distinct_and_also_negative() -> None:
    model = tiny("(float[4,3] x, int64[3,2] i, float[3] u) => (float[4,3] y) { y = ScatterND(x, i, u) }")
    ordinary, edge, *_ = samples(model)
    assert len({tuple(row) for row in ordinary["i"]}) == 3 and (ordinary["i"] >= 0).all()
    np.testing.assert_array_equal(edge["i"], ordinary["i"] - [4, 3])


def test_a_condition_that_is_no_boolean() -> None:
    """ONNX Runtime refuses the model; a probe of it has samples all the same."""
    text = """(float c, float[2] x) => (float[2] y) {
        y = If(c) <then_branch = t () => (a) { a = Relu(x) }, else_branch = e () => (b) { b = Abs(x) }> }"""
    assert all(each["c"].dtype == np.float32 for each in samples(tiny(text)))


def test_edge_values() -> None:
    _, edge = samples(tiny("(float[8,8] x) => (float[8,8] y) { y = Round(x) }"))
    assert {0.0, 0.5, -0.5, 2.5, -10.0} <= set(edge["x"].ravel().tolist())


def test_without_edge_cases() -> None:
    model = tiny("(float[8,8] x) => (float[8,8] y) { y = Round(x) }")
    (only,), (ordinary, *_) = samples(model, edge_cases=False), samples(model)
    np.testing.assert_array_equal(only["x"], ordinary["x"])


def test_attention_scores_in_16_bits_are_small() -> None:
    """No two ways of computing agree on the exponential of a large one."""
    text = "(float16[1,2,4,8] q) => (float16[1,2,4,8] y) {{ y = {}(q, q, q) }}"
    _, scored = samples(tiny(text.format("Attention"), opset=23))
    assert np.abs(scored["q"]).max() == 1
    _, other = samples(tiny(text.replace("q, q, q", "q, q").format("Add")))
    assert np.abs(other["q"]).max() == 10


def test_attention_scores_of_wide_heads_are_not_large() -> None:
    """The reference has an error of 5e-5 itself if they are."""
    text = "(float[1,2,4,128] q) => (float[1,2,4,128] y) { y = Attention(q, q, q) }"
    _, scored = samples(tiny(text, opset=23))
    assert np.abs(scored["q"]).max() == 3


def test_every_edge_value_occurs_in_small_inputs() -> None:
    ordinary, *edges = samples(tiny("(float[1] x) => (bfloat16[1] y) { y = Cast<to=16>(x) }"))
    assert ordinary["x"].shape == (1,) and len(edges) == 8
    text = "(float[6] x) => (bfloat16[6] y) { y = Cast<to=16>(x) }"
    found = np.concatenate([edge["x"] for edge in samples(tiny(text))[1:]])
    assert {1 + 2.0**-8, 1 + 3 * 2.0**-8, np.inf, -np.inf, 0.5, -10.0} <= set(found.tolist())
    assert np.isnan(found).any() and np.signbit(found[found == 0]).any()


def test_inputs_of_one_shape_differ() -> None:
    _, edge = samples(tiny("(int32[8,8] x, int32[8,8] y) => (bool[8,8] z) { z = Less(x, y) }"))
    assert (edge["x"] < edge["y"]).any() and (edge["x"] == edge["y"]).any() and (edge["x"] > edge["y"]).any()


def test_integers_are_not_divided_by_zero() -> None:
    for sample in samples(tiny("(int32[8,8] x, int32[8,8] y) => (int32[8,8] z) { z = Mod(x, y) }")):
        assert sample["y"].all()
    assert {-5, 3} <= set(sample["y"].ravel().tolist())


def test_casts_of_integers_get_the_ends_of_their_range() -> None:
    _, edge = samples(tiny("(int32[64] x) => (float[64] y) { y = Cast<to=1>(x) }"))
    assert {-(2**31), 2**31 - 1} <= set(edge["x"].tolist())


def test_quantized_products_get_large_sums_that_do_not_saturate() -> None:
    """Small sums are right in any precision, and so is what saturates."""
    text = """(uint8[2,4] a, float s, uint8 za, uint8[4,3] b, float t, uint8 zb, float u, uint8 zy) => (uint8[2,3] y)
              { y = QLinearMatMul(a, s, za, b, t, zb, u, zy) }"""
    products = []
    for each in samples(tiny(text, opset=21)):
        a, b = (each[name].astype(int) - each[zero].astype(int) for name, zero in (("a", "za"), ("b", "zb")))
        products.append((a @ b) * each["s"] * each["t"] / each["u"])
    steps = np.abs(np.stack(products))
    assert ((steps > 40) & (steps < 128)).sum() >= steps.size / 6, "of 256 steps"


def test_conditions_are_true_and_false() -> None:
    text = """(bool c, float[2] x) => (float[2] y) { y = If(c) <
        then_branch = a () => (float[2] u) { u = Neg(x) }, else_branch = b () => (float[2] v) { v = Abs(x) }> }"""
    conditions = [bool(each["c"]) for each in samples(tiny(text))]
    assert set(conditions) == {False, True}


@pytest.mark.parametrize(
    "text",
    [
        """(bool c, float[2] x) => (float[2] y) {
            y = If(c) <then_branch = t () => (a) { a = Relu(x) }, else_branch = e () => (b) { b = Abs(x) }> }""",
        "(float[4,3] x, int64 c) => (float[3] y) { y = Gather(x, c) }",
        "(int64 c, int64 depth, float[2] v) => (float[n] y) { y = OneHot(c, depth, v) }",
    ],
    ids=["If", "Gather", "OneHot"],
)
def test_edge_cases_of_rank_0_are_arrays(text: str) -> None:
    """What is no array is not among the moved inputs by which a network in a subgraph is judged."""
    assert all(isinstance(case["c"], np.ndarray) and case["c"].shape == () for case in samples(tiny(text)))


def test_numbers_of_a_known_range_only() -> None:
    (only,) = samples(tiny("(float16[8,8] x) => (float[8,8] y) { y = Cast<to=1>(x) }"), [(0.0, 1.0)])
    assert 0 <= only["x"].min() < 0.2 and 0.8 < only["x"].max() <= 1
