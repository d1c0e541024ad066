"""inline-functions: attributes, optional operands, nesting, subgraphs, names, and what cannot be inlined."""

from __future__ import annotations

import json

import onnx
import onnx_ir as ir
import pytest

from passes.cleanup.infer_shapes import InferShapes
from passes.cleanup.inline_functions import InlineFunctions
from passes.core.errors import InputError
from passes.graphs import lineage
from passes.graphs.scopes import Scope
from passes.rewriting.base import Budget, Context
from tests.passes.harness import all_nodes, apply, operators, reasons, run
from tests.passes.helpers import tiny

HEAD = '<domain: "local", opset_import: ["": 17, "local": 1]>'


def inline(source: ir.Model) -> None:
    """Inline what ONNX Runtime cannot run before, and require that it can after."""
    InlineFunctions().run(source, Context())
    proto = ir.to_proto(source)
    onnx.checker.check_model(proto, full_check=True)
    assert set(run(proto)) == {value.name for value in proto.graph.output}


def names(source: ir.Model) -> list[str]:
    return [str(node.name) for node in all_nodes(source)]


def test_names_and_origins() -> None:
    source = tiny(
        "(float[2] x) => (float[2] y) { [one] a = local.f(x) [two] y = local.f(a) }",
        functions=f"{HEAD} f (p) => (q) {{ [n] t = Neg(p) [m] q = Exp(t) }}",
    )
    result = apply(InlineFunctions(), source)
    assert names(source) == ["one/n", "one/m", "two/n", "two/m"]
    assert [value.name for node in source.graph for value in node.outputs] == ["one/t", "a", "two/t", "y"]
    assert [rewrite.before for rewrite in result.rewrites] == [("one",), ("two",), ()]
    assert result.rewrites[0].after == ("one/n", "one/m")
    assert result.rewrites[2].note == "function local::f is not called"
    assert not source.functions


def test_names_that_are_taken() -> None:
    source = tiny(
        "(float[2] x) => (float[2] y) { [c] a = local.f(x) ca = Abs(a) y = Neg(ca) }",
        functions=f"{HEAD} f (p) => (q) {{ [n] t = Neg(p) [m] q = Exp(t) }}",
    )
    source.graph[1].outputs[0].name = "c/t"
    source.graph[1].name = "c/n"
    apply(InlineFunctions(), source)
    assert names(source)[:3] == ["c/n_2", "c/m", "c/n"]
    assert [value.name for node in source.graph for value in node.outputs][:3] == ["c/t_2", "a", "c/t"]


def test_nested_calls_and_provenance() -> None:
    source = tiny(
        "(float[2] x) => (float[2] y) { [c] y = local.f(x) }",
        functions=f"""
        {HEAD} f (p) => (q) {{ [g1] t = local.g(p) [g2] q = local.g(t) }}
        {HEAD} g (p) => (q) {{ [n] q = Neg(p) }}
        {HEAD} unused (p) => (q) {{ q = local.g(p) }}""",
    )
    source.graph[0].metadata_props["scope"] = "layer.0"
    apply(InlineFunctions(), source)
    assert names(source) == ["c/g1/n", "c/g2/n"]
    for node in source.graph:
        assert json.loads(node.metadata_props[lineage.ORIGIN]) == ["c"]
        assert node.metadata_props["scope"] == "layer.0"


def test_attributes_given_defaulted_and_left_out() -> None:
    source = tiny(
        """(float[2,3] x) => (float[2,3] y, float[2,3] z) {
            y = local.f <alpha = 0.5> (x) z = local.f <alpha = 0.25, axis = 0> (x) }""",
        functions=f"""{HEAD} f <alpha, gamma, axis: int = 1> (p) => (q) {{
            t = Elu <alpha: float = @alpha> (p) s = Selu <gamma: float = @gamma> (t)
            q = Softmax <axis: int = @axis> (s) }}""",
    )
    apply(InlineFunctions(), source)
    found = [{name: each.value for name, each in node.attributes.items()} for node in source.graph]
    assert found == [{"alpha": 0.5}, {}, {"axis": 1}, {"alpha": 0.25}, {}, {"axis": 0}]


@pytest.mark.parametrize("wrong", ["[1]", "1.5", '"one"'])
def test_attributes_of_a_type_that_the_function_cannot_use(wrong: str) -> None:
    """What the operator reads is known in the function alone: the model is to blame, not what rewrites the operator."""
    source = tiny(
        f"(float[2] x) => (float[2] y) {{ [call] y = local.f <axis = {wrong}> (x) }}",
        functions=f"{HEAD} f <axis> (p) => (q) {{ q = Softmax <axis: int = @axis> (p) }}",
    )
    with pytest.raises(InputError, match="axis") as raised:
        InlineFunctions().run(source, Context())
    assert raised.value.where == "node call"


def test_attributes_of_attributes_and_within_subgraphs() -> None:
    source = tiny(
        "(float[2] x, bool c) => (float[2] y) { y = local.f <a = 0.5> (x, c) }",
        functions=f"""
        {HEAD} f <a> (p, c) => (q) {{ q = local.g <b: float = @a> (p, c) }}
        {HEAD} g <b> (p, c) => (q) {{
            k = Constant <value_float: float = @b> ()
            q = If (c) <then_branch = t () => (r) {{ h = Elu <alpha: float = @b> (p) r = Add(h, k) }},
                        else_branch = e () => (s) {{ s = Neg(p) }}> }}""",
    )
    apply(InlineFunctions(), source)
    assert operators(source) == ["If", "Elu", "Add", "Neg"]


def test_calls_within_subgraphs() -> None:
    source = tiny(
        """(float[2] x, bool c) => (float[2] y) {
            h = Abs(x)
            y = If (c) <then_branch = t () => (float[2] u) { [a] u = local.f(h) },
                        else_branch = e () => (float[2] v) { [b] w = local.f(x) [d] v = local.f(w) }> }""",
        functions=f"{HEAD} f (p) => (q) {{ [n] t = Neg(p) [m] q = Exp(t) }}",
    )
    apply(InlineFunctions(), source)
    assert operators(source) == ["Abs", "If", "Neg", "Exp", "Neg", "Exp", "Neg", "Exp"]


def test_subgraphs_of_bodies_stay_apart() -> None:
    """Called twice, the names in a body's subgraphs must differ from one another and from those around them."""
    source = tiny(
        "(float[2] x, bool c) => (float[2] y) { u = Abs(x) [a] h = local.f(u, c) [b] y = local.f(h, c) }",
        functions=f"""{HEAD} f (p, c) => (q) {{
            n = Constant <value_int = 2> ()
            q = Loop (n, c, p) <body = l (int64 i, bool k, float[2] u) => (bool k2, float[2] w) {{
                k2 = Identity(k) w = Exp(u) }}> }}""",
    )
    apply(InlineFunctions(), source)
    values = [value.name for graph in Scope(source, source.graph).graphs() for value in graph.inputs]
    values += [value.name for node in all_nodes(source) for value in node.outputs]
    assert len(values) == len(set(values))


class TestOperands:
    def test_optional_ones_left_out(self) -> None:
        source = tiny(
            "(float[2] x, float h) => (float[2] y, float[2] z) { y = local.f(x) z = local.f(x, , h) }",
            functions=f"{HEAD} f (p, low, high) => (q) {{ q = Clip(p, low, high) }}",
        )
        apply(InlineFunctions(), source)
        assert [[value and value.name for value in node.inputs] for node in source.graph] == [
            ["x", None, None],
            ["x", None, "h"],
        ]

    def test_results_left_out_go_with_what_makes_them(self) -> None:
        source = tiny(
            "(float[2] x) => (float[2] y) { , y = local.f(x) }",
            functions=f"{HEAD} f (p) => (q, r) {{ q = Neg(p) r = Exp(p) }}",
        )
        inline(source)
        assert operators(source) == ["Exp"]

    def test_a_body_that_hands_on_its_operand(self) -> None:
        source = tiny(
            "(float[2] x) => (float[2] y, float[2] z) { a = local.f(x) z = Exp(a) y = local.f(x) }",
            functions=f"{HEAD} f (p) => (p) {{ t = Neg(p) }}",
        )
        inline(source)
        assert operators(source) == ["Exp", "Identity"]
        assert [value.name for value in source.graph.inputs] == ["x"]

    def test_a_result_that_is_returned_twice(self) -> None:
        source = tiny(
            "(float[2] x) => (float[2] y, float[2] z) { y, z = local.f(x) }",
            functions=f"{HEAD} f (p) => (q, q) {{ q = Neg(p) }}",
        )
        inline(source)
        assert operators(source) == ["Neg", "Identity"]

    def test_too_many(self) -> None:
        source = tiny(
            "(float[2] x) => (float[2] y) { [c] y = local.f(x, x) }",
            functions=f"{HEAD} f (p) => (q) {{ q = Neg(p) }}",
        )
        result = InlineFunctions().run(source, Context())
        assert reasons(result) == ["it is given 2 inputs, and its function takes 1"]
        assert source.functions


class TestOpsets:
    def test_an_operator_that_is_the_same_in_both(self) -> None:
        source = tiny(
            "(float[2] x) => (float[2] y) { y = local.f(x) }",
            functions='<domain: "local", opset_import: ["": 15]> f (p) => (q) { q = Exp(p) }',
        )
        apply(InlineFunctions(), source)
        assert operators(source) == ["Exp"]

    def test_an_operator_that_changed(self) -> None:
        source = tiny(
            "(float[2] x) => (float[2] y) { [c] y = local.f(x) }",
            functions='<domain: "local", opset_import: ["": 12]> f (p) => (q) { q = Softmax(p) }',
        )
        result = InlineFunctions().run(source, Context())
        assert reasons(result) == ["its function uses Softmax of ai.onnx 12, which is another in ai.onnx 17"]
        assert operators(source) == ["f", "Softmax"]

    def test_imports_that_only_the_function_has(self) -> None:
        source = tiny(
            "(float[2] x) => (float[2] y) { y = local.f(x) }",
            functions='<domain: "local", opset_import: ["other": 3]> f (p) => (q) { q = other.Thing(p) }',
        )
        InlineFunctions().run(source, Context())
        assert source.opset_imports["other"] == 3


def test_overloads() -> None:
    source = tiny(
        "(float[2] x) => (float[2] y) { a = local.f:one (x) y = local.f:two (a) }",
        functions="""
        <domain: "local", opset_import: ["": 17], overload: "one"> f (p) => (q) { q = Neg(p) }
        <domain: "local", opset_import: ["": 17], overload: "two"> f (p) => (q) { q = Exp(p) }""",
    )
    apply(InlineFunctions(), source)
    assert operators(source) == ["Neg", "Exp"]


@pytest.mark.parametrize("body", ["q = local.f(p)", "q = local.g(p)"])
def test_recursion(body: str) -> None:
    source = tiny(
        "(float[2] x) => (float[2] y) { y = local.f(x) }",
        functions=f"""{HEAD} f (p) => (q) {{ {body} }}
        {HEAD} g (p) => (q) {{ q = local.f(p) }}""",
    )
    with pytest.raises(InputError, match="calls itself, which ONNX does not allow"):
        InlineFunctions().run(source, Context())


def test_functions_that_share_another_are_no_recursion() -> None:
    bodies = [f"{HEAD} f{i} (p) => (q) {{ t = local.f{i + 1}(p) q = local.f{i + 1}(t) }}" for i in range(6)]
    source = tiny(
        "(float[2] x) => (float[2] y) { y = local.f0(x) }",
        functions="\n".join([*bodies, f"{HEAD} f6 (p) => (q) {{ q = Neg(p) }}"]),
    )
    apply(InlineFunctions(), source)
    assert operators(source) == ["Neg"] * 64


@pytest.mark.parametrize(
    ("limit", "expected"), [(0, ["f", "f", "Neg"]), (1, ["Neg", "f", "Neg"]), (2, ["Neg"] * 3), (3, ["Neg"] * 2)]
)
def test_the_budget(limit: int, expected: list[str]) -> None:
    source = tiny(
        "(float[2] x) => (float[2] y) { a = local.f(x) y = local.f(a) }",
        functions=f"{HEAD} f (p) => (q) {{ q = Neg(p) }}",
    )
    result = InlineFunctions().run(source, Context(budget=Budget(limit)))
    assert len(result.rewrites) == limit
    assert operators(source) == expected


def test_results_of_a_scan_keep_their_rank() -> None:
    """ONNX Runtime needs to know it, also where it knows nothing of what the Scan is given."""
    branches = """If(c) <then_branch = t () => (float[n,m] a) { a = Neg(x) },
        else_branch = e () => (float[k] b) { z = Constant<value_ints = [0]>() b = ReduceSum<keepdims = 0>(x, z) }>"""
    body = "body = s (float[] p) => (float[?] r) { r = Abs(p) }"
    source = tiny(
        "(float[2,3] x) => (float[?,?] y) { y = local.f(x) }",
        functions=f"""{HEAD} f (x) => (y) {{
            c = Constant<value = bool {{1}}>() v = {branches} y = Scan<num_scan_inputs = 1, {body}>(v) }}""",
    )
    before = run(ir.to_proto(source))
    InlineFunctions().run(source, Context())
    assert run(ir.to_proto(source))["y"].tolist() == before["y"].tolist()
    scan = next(node for node in source.graph if node.op_type == "Scan")
    (result,) = scan.attributes["body"].as_graph().outputs
    assert result.shape is not None
    assert [dim.value for dim in result.shape] == [None]


def test_what_a_scan_is_given_has_a_type_where_it_has_a_shape() -> None:
    """A shape without a type cannot be written, and functions have no types."""
    source = tiny(
        "(float[2] s, float[3,2] x) => (float[2] t, float[3,2] y) { t, y = local.f(s, x) }",
        functions=f"""{HEAD} f (s, x) => (t, y) {{
            t, y = Scan<num_scan_inputs = 1, body = b (p, q) => (u, v) {{ u = Add(p, q) v = Mul(p, q) }}>(s, x) }}""",
    )
    before = run(ir.to_proto(source))
    InlineFunctions().run(source, Context())
    InferShapes().run(source, Context())
    scan = next(node for node in source.graph if node.op_type == "Scan")
    body = scan.attributes["body"].as_graph()
    assert [(value.type, value.shape) for value in body.inputs] == [(ir.TensorType(ir.DataType.FLOAT), (2,))] * 2
    after = run(ir.to_proto(source))
    assert all(after[name].tolist() == before[name].tolist() for name in before)
