"""The instructions of nodes, beside those that MIGraphX 2.16 prints."""

from __future__ import annotations

import numpy as np
import pytest

from passes.probing.instructions import instructions, steps
from tests.passes.harness import model

RECURRENT = {"w": np.ones((2, 16, 3), np.float32), "r": np.ones((2, 16, 4), np.float32)}
BRANCH = "then_branch = t () => (float[2] p) { p = Neg(x) }, else_branch = e () => (float[2] q) { q = Abs(x) }"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("(float[2] x) => (y) { a = Neg(x) y = Abs(a) }", 2),
        ("(float[2,3] x, float[3] s) => (float[2,3] y) { y = Add(x, s) }", 2),
        ("(float[2,3] x) => (float[2,3] y) { c = Constant<value_float = 2.0>() a = Mul(x, c) y = Add(a, c) }", 4),
        (f"(float[2] x, bool b) => (y) {{ y = If<{BRANCH}>(b) }}", 3),
        ('(float[50,1,3] x) => (y) { y = LSTM<hidden_size = 4, direction = "bidirectional">(x, w, r) }', 2603),
        ("(float[1,50,3] x) => (y) { y = RNN<hidden_size = 4, layout = 1>(x, w, r) }", 503),
        ("(float[n,1,3] x) => (y) { y = GRU<hidden_size = 4>(x, w, r) }", 3),
        ('(float[1,4,8,8] x, float[1,8,8,2] g) => (float[1,4,8,8] y) { y = GridSample<mode = "nearest">(x, g) }', 882),
        ("(float[1,4,8,8] x, float[1,8,8,2] g) => (float[1,4,8,8] y) { y = GridSample(x, g) }", 1),
        ('(float[1,4,8,8] x, float[1,8,8,2] g) => (float[9] y) { y = GridSample<mode = "nearest">(x, g) }', 1),
    ],
)
def test_instructions(text: str, expected: int) -> None:
    graph = model(text, **(RECURRENT if "w, r" in text else {})).graph
    assert abs(instructions(graph) - expected) <= 1  # the scalar c has no recorded shape
    assert sum(map(steps, graph)) == (100 if expected == 2603 else 50 if expected == 503 else 0)
