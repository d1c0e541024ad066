"""Units: what a legalization rule made of one node is judged together."""

from __future__ import annotations

from passes import graphs
from passes.graphs import Scope
from passes.units import units
from tests.passes.rewriting import model


def test_what_a_rule_made_of_one_node() -> None:
    source = model("(float[2] x) => (float[2] y) { a = Neg(x) b = Abs(a) c = Exp(b) d = Neg(c) y = Abs(d) }")
    graphs.name_nodes(Scope(source, source.graph))
    first, second, other, third, fourth = nodes = list(source.graph)
    graphs.stamp([first, second], "legalize/one-rule", [first])
    graphs.stamp([third], "legalize/one-rule", [third])
    graphs.stamp([fourth], "fold-constants", [fourth])
    found = units(nodes)
    assert found == {first: (first, second), second: (first, second)}
    assert other not in found
    assert third not in found


def test_other_nodes_of_the_same_rule_are_another_unit() -> None:
    source = model("(float[2] x) => (float[2] y) { a = Neg(x) b = Abs(a) c = Exp(b) y = Neg(c) }")
    graphs.name_nodes(Scope(source, source.graph))
    nodes = list(source.graph)
    graphs.stamp(nodes[:2], "legalize/one-rule", nodes[:1])
    graphs.stamp(nodes[2:], "legalize/one-rule", nodes[2:3])
    assert set(units(nodes).values()) == {tuple(nodes[:2]), tuple(nodes[2:])}
