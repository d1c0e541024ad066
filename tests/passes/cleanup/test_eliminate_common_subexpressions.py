"""eliminate-common-subexpressions: what computes the same, what only looks like it, and who keeps which name."""

from __future__ import annotations

import json

import numpy as np
import onnx_ir as ir
import pytest

from passes.cleanup.eliminate_common_subexpressions import EliminateCommonSubexpressions
from passes.graphs import lineage
from passes.rewriting.base import Context
from tests.passes.harness import all_nodes, apply, model, operators, reasons, stops

CSE = EliminateCommonSubexpressions()


class TestMatches:
    def test_equal_nodes_after_equal_nodes(self) -> None:
        m = model("""(float[2,3] x) => (float[2,3] y) {
            a = Neg(x) b = Neg(x) c = Softmax<axis=1>(a) d = Softmax<axis=1>(b) y = Add(c, d) }""")
        result = apply(CSE, m)
        assert operators(m) == ["Neg", "Softmax", "Add"]
        assert [rewrite.note for rewrite in result.rewrites] == ["the same as Neg", "the same as Softmax"]

    def test_constants_by_content(self) -> None:
        m = model("""(float[2] x) => (float[2] y) { a = Constant<value=float[2] {1, 2}>()
            b = Constant<value=float[2] {1, 2}>() c = Constant<value=float[2] {1, 3}>()
            d = Add(x, a) e = Add(x, b) f = Add(x, c) y = Sum(d, e, f) }""")
        apply(CSE, m)
        assert [node.op_type for node in m.graph] == ["Constant", "Constant", "Add", "Add", "Sum"]

    def test_optional_inputs_and_outputs(self) -> None:
        m = model(
            """(float[2] x) => (float[2] y) { a = Clip(x, low) b = Clip(x, low, ) d, e = Dropout(a) y = Add(a, b) }""",
            low=np.array(0, np.float32),
        )
        m.graph[1].resize_inputs(3)
        apply(CSE, m)
        assert operators(m).count("Clip") == 1

    def test_several_outputs(self) -> None:
        m = model(
            """(float[2,6] x) => (float[2,3] y) { a, b = Split<axis=1>(x, s) c, d = Split<axis=1>(x, s)
            p = Sub(a, d) q = Sub(b, c) y = Add(p, q) }""",
            s=np.array([3, 3]),
        )
        apply(CSE, m)
        assert operators(m).count("Split") == 1

    def test_a_subgraph(self) -> None:
        m = model("""(float[2] x, bool c) => (float[2] y) { y = If (c) <
            then_branch = t () => (float[2] r) { a = Neg(x) b = Neg(x) r = Add(a, b) },
            else_branch = e () => (float[2] q) { q = Neg(x) }> }""")
        apply(CSE, m, inputs={"x": np.ones(2, np.float32), "c": np.array(True)})
        assert operators(m).count("Neg") == 2

    def test_a_function(self) -> None:
        functions = """<domain: "local", opset_import: ["": 17]> f <alpha> (x) => (y) {
            a = LeakyRelu<alpha: float = @alpha>(x) b = LeakyRelu<alpha: float = @alpha>(x)
            c = LeakyRelu<alpha=0.5>(x) y = Sum(a, b, c) }"""
        m = model("(float[2] x) => (float[2] y) { y = local.f<alpha=0.5>(x) }", functions=functions)
        apply(CSE, m)
        assert operators(m).count("LeakyRelu") == 2

    def test_the_twin_stands_for_both(self) -> None:
        m = model("(float[2] x) => (float[2] y) { a = Neg(x) b = Neg(x) y = Add(a, b) }")
        for node, name in zip(m.graph, ("one", "two", "sum"), strict=True):
            node.name = name
        CSE.run(m, Context())
        assert lineage.origin(m.graph[0]) == ["one", "two"]
        assert lineage.PASS not in m.graph[0].metadata_props

    def test_the_budget(self) -> None:
        m = model("(float[2] x) => (float[2] y) { a = Neg(x) b = Neg(x) c = Neg(x) y = Sum(a, b, c) }")
        assert stops(CSE, m, 1) == 1
        assert operators(m).count("Neg") == 2


class TestOutputs:
    def test_the_second_is_an_output(self) -> None:
        m = model("(float[2] x) => (float[2] y, float[2] z) { a = Neg(x) y = Neg(x) z = Exp(a) }")
        apply(CSE, m)
        assert operators(m) == ["Neg", "Exp"]

    def test_both_are(self) -> None:
        m = model("(float[2] x) => (float[2] y, float[2] z) { y = Neg(x) z = Neg(x) }")
        apply(CSE, m)
        assert operators(m) == ["Neg", "Identity"]
        assert json.loads(m.graph[1].metadata_props[lineage.ORIGIN]) == ["Neg_2"]

    @pytest.mark.parametrize("node", ["Identity(x)", "Constant<value=float[2] {1, 2}>()"])
    def test_an_identity_is_not_worth_an_identity(self, node: str) -> None:
        m = model(f"(float[2] x) => (float[2] y, float[2] z) {{ y = {node} z = {node} }}")
        assert not apply(CSE, m).rewrites


class TestDifferent:
    @pytest.mark.parametrize(
        ("one", "other"),
        [
            ("Neg(x)", "Exp(x)"),
            ("LeakyRelu<alpha=0.5>(x)", "LeakyRelu<alpha=0.25>(x)"),
            ("LeakyRelu<alpha=0.0>(x)", "LeakyRelu<alpha=-0.0>(x)"),
            ("Sub(x, v)", "Sub(v, x)"),
            ("Clip(x, v0, )", "Clip(x, , v0)"),
            ("Cast<to=7>(x)", "Cast<to=6>(x)"),
        ],
    )
    def test_it_stays(self, one: str, other: str) -> None:
        used = {"v": np.ones(2, np.float32), "v0": np.array(0.5, np.float32)}
        m = model(
            f"""(float[2] x) => (float[2] y) {{ a = {one} b = {other}
            c = Cast<to=1>(a) d = Cast<to=1>(b) y = Add(c, d) }}""",
            **{name: value for name, value in used.items() if f"{name})" in one + other or f"{name}," in one + other},
        )
        apply(CSE, m)
        kinds = operators(m)
        assert len(kinds) == 5

    def test_other_outputs(self) -> None:
        """How many outputs Split has decides what they are."""
        m = model(
            """(float[6] x) => (float[3] y, float[2] z) { a, b = Split(x) c, d, e = Split(x)
            y = Add(a, b) f = Add(c, d) z = Add(f, e) }""",
            opset=13,
        )
        apply(CSE, m)
        assert operators(m).count("Split") == 2

    @pytest.mark.parametrize(
        "node", ["RandomNormal<shape=[2]>()", "RandomUniformLike(x)", "Bernoulli(h)", "Dropout(x, half, yes)"]
    )
    def test_random_numbers(self, node: str) -> None:
        text = f"(float[2] x) => (float[2] y) {{ h = Sigmoid(x) a = {node} b = {node} y = Add(a, b) }}"
        m = model(text, half=np.float32(0.5), yes=np.bool_(True))
        result = CSE.run(m, Context())
        assert reasons(result) == ["it may be random"]
        assert not result.rewrites

    def test_operators_outside_of_onnx_and_calls(self) -> None:
        functions = '<domain: "local", opset_import: ["": 17]> f (x) => (y) { y = Neg(x) }'
        m = model("(float[2] x) => (float[2] y) { a = local.f(x) b = local.f(x) y = Add(a, b) }", functions=functions)
        assert not apply(CSE, m).rewrites

    def test_nodes_with_subgraphs(self) -> None:
        text = """{0} = If (c) <then_branch = t () => (float[2] p{0}) {{ p{0} = Neg(x) }},
            else_branch = e () => (float[2] q{0}) {{ q{0} = Exp(x) }}>"""
        m = model(f"(float[2] x, bool c) => (float[2] y) {{ {text.format('a')} {text.format('b')} y = Add(a, b) }}")
        assert not apply(CSE, m, inputs={"x": np.ones(2, np.float32), "c": np.array(True)}).rewrites

    def test_a_name_that_a_subgraph_hides(self) -> None:
        m = model("""(float[2] x, int64 n, bool c) => (float[2] y) {
            a = Neg(x) b = Neg(x) s = Exp(a) y = Loop (n, c, s) <
            body = l (int64 i, bool k, float[2] a) => (bool o, float[2] w) { o = Identity(k) w = Add(a, b) }> }""")
        inputs = {"x": np.ones(2, np.float32), "n": np.array(2), "c": np.array(True)}
        result = apply(CSE, m, inputs=inputs)
        assert reasons(result) == ["a is the name of another value in a subgraph that would use it"]


def test_a_long_chain_of_pairs() -> None:
    """Two thousand pairs, each after the one before."""
    m = model("(float[2] x) => (float[2] z) { z = Exp(x) }")
    values = [m.graph.inputs[0]] * 2
    for index in range(2000):
        nodes = [ir.Node("", "Neg", [value], name=f"n{index}_{side}") for side, value in enumerate(values)]
        m.graph.extend(nodes)
        values = [node.outputs[0] for node in nodes]
        for side, value in enumerate(values):
            value.name = f"v{index}_{side}"
    total = ir.Node("", "Add", values)
    total.outputs[0].name = "y"
    m.graph.append(total)
    m.graph.outputs.append(total.outputs[0])
    assert len(CSE.run(m, Context()).rewrites) == 2000
    assert len(list(all_nodes(m))) == 2002
