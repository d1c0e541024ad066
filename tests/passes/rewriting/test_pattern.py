"""Patterns of several nodes: operands, alternatives, names, and where matching ends."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

from passes.graphs.matching import operand
from passes.graphs.scopes import Scope
from passes.rewriting.pattern import Either, Found, Number, Op, Pattern, Var, match
from tests.passes.harness import all_nodes, model

X = Var("x")


def found(pattern: Op | Either, text: str, functions: str = "", **constants: object) -> Found | None:
    """What a pattern matches at the node that is called ``last``."""
    source = model(text, functions=functions, **constants)
    node = next(node for node in all_nodes(source) if node.name == "last")
    return match(pattern, node, Scope(source, source.graph))


def line(body: str) -> str:
    return f"(float[2] x, float[2] z) => (float[2] y) {{ {body} }}"


HALF = np.array(0.5, np.float32)


@pytest.mark.parametrize(
    ("pattern", "body", "matches"),
    [
        (Op("Neg", Op("Abs", X)), "a = Abs(x) [last] y = Neg(a)", True),
        (Op("Neg", Op("Abs", X)), "a = Neg(x) [last] y = Neg(a)", False),
        (Op("Neg", Op(("Abs", "Neg"), X)), "a = Neg(x) [last] y = Neg(a)", True),
        (Op("Neg", Op("Abs", X) | Op("Exp", X)), "a = Exp(x) [last] y = Neg(a)", True),
        (Op("Sub", X, Op("Abs", X)), "a = Abs(x) [last] y = Sub(x, a)", True),
        (Op("Sub", X, Op("Abs", X)), "a = Abs(z) [last] y = Sub(x, a)", False),
        (Op("Sub", X, Op("Abs", X)), "a = Abs(x) [last] y = Sub(a, x)", False),
        (Op("Add", X, Op("Abs", X)), "a = Abs(x) [last] y = Add(a, x)", True),
        (Op("Add", X), "[last] y = Add(x, z)", False),
        (Op("Add", X, ...), "[last] y = Add(x, z)", True),
        (Op("Mul", X, Number(0.5)), "[last] y = Mul(half, x)", True),
        (Op("Mul", X, Number(0.25)), "[last] y = Mul(half, x)", False),
        (Op("Mul", X, Number()), "[last] y = Mul(z, x)", False),
        (Op("Mul", X, Number()), "[last] y = Mul(x, matrix)", False),  # it would have two dimensions then
        (Op("Neg", X), "[last] y = local.Neg(x)", False),
        (Op("Neg", Op("Neg", X)), "a = local.Neg(x) [last] y = Neg(a)", False),
    ],
)
def test_matches(pattern: Op, body: str, matches: bool) -> None:
    constants = {"half": HALF, "matrix": HALF.reshape(1, 1)}
    used = {name: array for name, array in constants.items() if name in body}
    functions = '<domain: "local", opset_import: ["": 17]> Neg (p) => (q) { q = Exp(p) }' if "local" in body else ""
    assert (found(pattern, line(body), functions, **used) is not None) == matches


def test_what_it_found() -> None:
    pattern = Op("Mul", Op("Add", X, Number(name="bias")), Var("factor") | Number(1.0))
    result = found(pattern, line("a = Add(half, x) [last] y = Mul(a, z)"), half=HALF)
    assert result is not None
    assert (result["x"].name, result["bias"], result["factor"].name) == ("x", 0.5, "z")
    assert result.get("nothing") is None
    assert [node.op_type for node in result.nodes] == ["Mul", "Add"]


def test_an_earlier_choice_is_taken_back() -> None:
    """Both operands of the sum fit the first variable, but only one of them the rest."""
    pattern = Op("Sub", Op("Add", Var("a"), Var("b")), Var("b"))
    result = found(pattern, line("s = Add(x, z) [last] y = Sub(s, x)"))
    assert result is not None
    assert (result["a"].name, result["b"].name) == ("z", "x")


def test_facts_must_agree() -> None:
    def axes(node: ir.Node, scope: Scope) -> tuple[int, ...] | None:
        known = operand(node, 1, "axes", scope)
        return tuple(known) if known is not None else None

    pattern = Op("Add", Op("ReduceMean", X, axes=axes), Op("ReduceMax", X, axes=axes))
    text = """(float[2,2] x) => (float[m,n] y) {
        a = ReduceMean <axes = [0]> (x) b = ReduceMax <axes = [%d]> (x) [last] y = Add(a, b) }"""
    result = found(pattern, text % 0)
    assert result is not None
    assert result["axes"] == (0,)
    assert found(pattern, text % 1) is None
    assert found(pattern, text.replace("<axes = [%d]>", "")) is None


def test_it_stays_in_the_graph() -> None:
    text = """(float[2] x, bool c) => (float[2] y) { a = Abs(x)
        y = If (c) <then_branch = t () => (float[2] p) { [last] p = Neg(a) },
                    else_branch = e () => (float[2] q) { q = Identity(x) }> }"""
    assert found(Op("Neg", Op("Abs", X)), text) is None
    result = found(Op("Neg", X), text)
    assert result is not None
    assert result["x"].name == "a"


def test_only_first_outputs() -> None:
    text = "(float[4] x) => (float[2] y) { a, b = Split <axis=0> (x) [last] y = Neg(%s) }"
    pattern: Pattern = Op("Split", X)
    assert found(Op("Neg", pattern), text % "a") is not None
    assert found(Op("Neg", pattern), text % "b") is None
