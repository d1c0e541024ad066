"""The estimated work of nodes, also of those of which little is known."""

from __future__ import annotations

import itertools

import onnx_ir as ir
import pytest

from passes.graphs import cost
from passes.graphs.cost import estimate
from tests.passes.helpers import tiny

SHAPES = (None, ir.Shape([]), ir.Shape([2]), ir.Shape([2, None]), ir.Shape([2, 3, 4]), ir.Shape([0, 3, 4, 5]))


@pytest.mark.parametrize("op_type", sorted(cost._PRODUCTS))
def test_any_rank_of_any_operand(op_type: str) -> None:
    """Of an LSTM behind branches, say, inference knows no rank."""
    for shapes in itertools.product(SHAPES, repeat=3):
        inputs = [ir.Value(name=f"x{index}", shape=shape) for index, shape in enumerate(shapes)]
        equation = [ir.AttrString("equation", "ab,bc->ac")] if op_type == "Einsum" else []
        assert estimate(ir.Node("", op_type, inputs, equation)) >= 0
    assert estimate(ir.Node("", op_type, [])) >= 0


def test_recurrent() -> None:
    text = "(float[5,2,3] x, float[1,16,3] w, float[1,16,4] r) => (y) { y = LSTM<hidden_size=4>(x, w, r) }"
    assert estimate(tiny(text).graph[0]) == 5 * 2 * (16 * 3 + 16 * 4)
    assert estimate(tiny(text.replace("float[5,2,3] x", "float[n,2,3] x")).graph[0]) == 2 * (16 * 3 + 16 * 4)


def test_branches() -> None:
    text = """(float[2,3] x, float[3,4] w, bool c) => (y) { y = If(c) <
        then_branch = t () => (float[2,4] a) { a = MatMul(x, w) },
        else_branch = e () => (b) { b = If(c) <
            then_branch = f () => (float[2,4] d) { d = MatMul(x, w) },
            else_branch = g () => (f) { f = Identity(w) }> }> }"""
    assert estimate(tiny(text).graph[0]) == 2 * (2 * 4 * 3)


@pytest.mark.parametrize(
    ("text", "known"),
    [
        ("(float[2,3] x) => (float[2,3] y) { y = Relu(x) }", True),
        ("(float[2,n] x) => (float[2,n] y) { y = Relu(x) }", False),
        ("(float[2,3] x) => (y) { y = NonZero(x) }", True),
        ("(float[2,3] x) => (float[2,n] y) { y = Resize(x, , s) }", False),
        ("(float[2,n] x) => (float[2,n] y) { y = Identity(x) }", True),
        ("(bool c) => (y) { y = If(c) <then_branch = t () => (float[n] a) { a = Relu(x) },"
         " else_branch = e () => (float[n] b) { b = Identity(x) }> }", False),
    ],
)  # fmt: skip
def test_whether_work_is_known(text: str, known: bool) -> None:
    assert cost.has_known_work(tiny(text).graph[0]) is known
