"""Structural inputs: those that say how a model computes."""

from __future__ import annotations

import numpy as np

from passes.graphs.structural_inputs import structural_inputs
from tests.passes.harness import model


def test_operands_of_operators() -> None:
    source = model("(float[4] x, int64[1] k, int64[2] pads) => (y) { a = Pad(x, pads) y, i = TopK(a, k) }")
    assert structural_inputs(source) == ["k", "pads"]


def test_through_the_arithmetic_of_shapes() -> None:
    source = model(
        "(float[6] x, int64 n) => (float[a,b] y) "
        "{ m = Unsqueeze(n, zero) s = Concat<axis=0>(m, rest) y = Reshape(x, s) }",
        zero=np.array([0]),
        rest=np.array([-1]),
    )
    assert structural_inputs(source) == ["n"]


def test_data_is_not() -> None:
    """What is data anywhere is data, however else it is used; so is what comes out of the model again."""
    source = model("(int64[2] s, float[6] x) => (float[a,b] y, int64[2] t) { y = Reshape(x, s) t = Add(s, s) }")
    assert structural_inputs(source) == []
    source = model("(int64[2] s, float[6] x) => (float[a,b] y, int64[2] t) { t = Add(s, s) y = Reshape(x, t) }")
    assert structural_inputs(source) == []
    source = model("(float[6] x) => (float[6] y) { y = Relu(x) }")
    assert structural_inputs(source) == []


def test_an_input_that_nothing_uses_is_none() -> None:
    source = model("(float[6] x, int64[2] s) => (float[6] y) { y = Relu(x) }")
    assert structural_inputs(source) == []
