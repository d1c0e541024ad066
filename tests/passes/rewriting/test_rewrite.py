"""The driver of node rewrites: what it walks, what it commits, and what it leaves of a proposal that it does not."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest

from passes.core.errors import PassError
from passes.graphs import lineage
from passes.graphs.scopes import Scope
from passes.rewriting.base import Budget, Context, Exactness, Skip
from passes.rewriting.edit import Edit, Proposal
from passes.rewriting.rewrite import EVERY_INPUT, UNKNOWN_DTYPE, UNKNOWN_SHAPE, NodeRewrite, Replacement, rewrite
from tests.passes.harness import all_nodes, apply, model, operators, reasons, stops


@rewrite("Sinh", exactness=Exactness.ROUNDING)
def decompose_sinh(node: ir.Node, edit: Edit) -> Replacement:
    """Decompose Sinh, leaving those called ``keep``."""
    if node.name == "keep":
        return Skip("its name says so")
    x = edit.input(node)
    grown = edit.op("Exp", [x])
    difference = edit.op("Sub", [grown, edit.op("Reciprocal", [grown])])
    edit.op("Neg", [difference])  # which turns out not to be needed
    if node.name == "refuse":
        return Skip("thought better of it")
    if node.name == "ignore":
        return None
    if node.name == "ask":
        edit.integers(node, 0, "the angle")
    return edit.op("Mul", [difference, edit.scalar(0.5, x.dtype or ir.DataType.FLOAT)])


def test_main_graph_subgraphs_and_functions() -> None:
    source = model(
        """(float[2] x, bool c) => (float[2] y) {
            [a] h = Sinh(x)
            i = If (c) <then_branch = t () => (float[2] u) { [b] u = Sinh(h) }, else_branch = e () => (float[2] v) {
                v = Abs(h) }>
            y = local.f(i) }""",
        functions='<domain: "local", opset_import: ["": 17]> f (p) => (q) { [n] q = Sinh(p) }',
    )
    result = apply(decompose_sinh, source)
    assert "Sinh" not in operators(source)
    assert "Neg" not in operators(source)
    assert [rewrite.before for rewrite in result.rewrites] == [("a",), ("b",), ("n",)]
    assert result.rewrites[0].after == ("a/Exp", "a/Reciprocal", "a/Sub", "a/Mul")
    # initializers in graphs, and a Constant node in the function, each where it is used
    assert len(source.graph.initializers) == 1
    function = next(iter(source.functions.values()))
    assert "Constant" in [node.op_type for node in function]


def test_outputs_keep_their_names_and_know_their_types() -> None:
    source = model("(float16[2,n] x) => (float16[2,n] y) { h = Sinh(x) k = Abs(h) y = Sinh(k) }")
    before = next(node for node in source.graph if node.op_type == "Abs").inputs[0]
    assert before is not None
    before.metadata_props["recorded"] = "of the value of this name"
    apply(decompose_sinh, source, rtol=1e-2, atol=1e-2)
    absolute = next(node for node in source.graph if node.op_type == "Abs")
    assert absolute.inputs[0] is not before
    assert absolute.inputs[0] is not None
    assert absolute.inputs[0].name == before.name
    assert absolute.inputs[0].metadata_props == {"recorded": "of the value of this name"}
    for node in source.graph:
        assert node.outputs[0].dtype == ir.DataType.FLOAT16
        assert node.outputs[0].shape == ir.Shape([2, "n"])


def test_origins_of_origins() -> None:
    @rewrite("Sub", exactness=Exactness.ROUNDING)
    def turn_around(node: ir.Node, edit: Edit) -> Replacement:
        first, second = node.inputs
        return edit.op("Add", [first, edit.op("Neg", [second])])

    source = model("(float[2] x) => (float[2] y) { [a] y = Sinh(x) }")
    decompose_sinh.run(source, Context())
    turn_around.run(source, Context())
    negation = next(node for node in source.graph if node.op_type == "Neg")
    assert negation.metadata_props[lineage.PASS] == "turn-around"
    assert json.loads(negation.metadata_props[lineage.ORIGIN]) == ["a"]


def test_skips_and_discarded_proposals_leave_nothing() -> None:
    source = model(
        """(float[2] x) => (float[2] y, float[2] z, float[2] v, float[2] w) {
            [keep] y = Sinh(x) [refuse] z = Sinh(x) [ignore] v = Sinh(x) [ask] w = Sinh(x) }"""
    )
    result = apply(decompose_sinh, source)
    asked = "the angle is not constant: freeze it with --freeze x=VALUE"
    assert reasons(result) == ["its name says so", "thought better of it", asked]
    assert [skip.node for skip in result.skips] == ["keep", "refuse", "ask"]
    assert len(source.graph.inputs[0].uses()) == 4
    assert not source.graph.initializers


def test_the_budget() -> None:
    text = "(float[2] x) => (float[2] y) { a = Sinh(x) b = Sinh(a) y = Sinh(b) }"
    assert [stops(decompose_sinh, model(text), limit) for limit in range(5)] == [0, 1, 2, 3, 3]
    source = model(text)
    decompose_sinh.run(source, Context(budget=Budget(1)))
    assert operators(source) == ["Exp", "Reciprocal", "Sub", "Mul", "Sinh", "Sinh"]
    assert all(use.node.graph is source.graph for node in all_nodes(source) for use in node.outputs[0].uses())


def test_unnamed_nodes_get_names_that_are_free() -> None:
    source = model("(float[2] x) => (float[2] y) { [Sinh] a = Sinh(x) b = Sinh(a) [keep] y = Sinh(b) }")
    result = decompose_sinh.run(source, Context())
    assert [rewrite.before for rewrite in result.rewrites] == [("Sinh",), ("Sinh_2",)]


def test_a_rewrite_that_makes_what_it_matches() -> None:
    @rewrite("Abs")
    def loop(node: ir.Node, edit: Edit) -> Replacement:
        return edit.op("Abs", node.inputs)

    with pytest.raises(PassError, match="loop: it does not terminate"):
        loop.run(model("(float[2] x) => (float[2] y) { y = Abs(x) }"), Context())


@dataclass(frozen=True)
class Doubled(NodeRewrite):
    """Replace Split by one value twice, or by one value and nothing."""

    name = "double"
    operators = frozenset({("", "Split")})
    both: bool = True

    def replacement(self, node: ir.Node, edit: Edit) -> Replacement:
        value = edit.op("Abs", node.inputs)
        return [value, value if self.both else None]


def test_one_value_for_two_outputs_of_the_graph() -> None:
    """A value cannot be two outputs, so the second is handed on."""
    source = model("(float[2] x) => (float[1] y, float[1] z) { [s] y, z = Split <axis=0> (x) }")
    Doubled().run(source, Context())
    assert [value.name for value in source.graph.outputs] == ["y", "z"]
    assert operators(source) == ["Abs", "Identity"]
    assert all(node.metadata_props[lineage.PASS] == "double" for node in source.graph)


def test_an_output_without_a_replacement() -> None:
    text = "(float[2] x) => (float[1] y%s) { [s] y, z = Split <axis=0> (x) }"
    source = model(text % "")
    Doubled(both=False).run(source, Context())
    assert operators(source) == ["Abs"]
    source = model(text % ", float[1] z")
    assert reasons(Doubled(both=False).run(source, Context())) == ["the output z is used, and nothing replaces it"]
    assert len(source.graph.inputs[0].uses()) == 1
    node = source.graph[0]
    with pytest.raises(PassError, match="s: double has no replacement for the output z, which is used"):
        Proposal(Scope(source, source.graph), node, [node.inputs[0], None]).commit("double")


@rewrite("Neg")
def merge_neg(node: ir.Node, edit: Edit) -> Replacement:
    """Remove a negation of a negation, by an author who did not think of domains and graphs."""
    before = edit.input(node).producer()
    if before is None or before.op_type != "Neg":
        return None
    edit.absorb(before)
    return before.inputs[0]


@rewrite("Neg")
def merge_neg_safely(node: ir.Node, edit: Edit) -> Replacement:
    """Remove a negation of a negation, with the help of `Edit.producer`."""
    before = edit.producer(node, 0, "Neg")
    if before is None:
        return None
    edit.absorb(before)
    return before.inputs[0]


both_authors = pytest.mark.parametrize("step", [merge_neg, merge_neg_safely], ids=["careless", "careful"])


class TestAbsorbedNodes:
    @both_authors
    def test_they_are_removed_where_nothing_else_uses_them(self, step: NodeRewrite) -> None:
        text = "(float[2] x) => (float[2] y%s) { o = Abs(x) [a] h = Neg(o) [b] i = Neg(h) y = Exp(i) }"
        source = model(text % "")
        result = apply(step, source)
        assert [rewrite.before for rewrite in result.rewrites] == [("b", "a")]
        assert operators(source) == ["Abs", "Exp"]
        source = model(text % ", float[2] h")
        result = apply(step, source)
        assert [rewrite.before for rewrite in result.rewrites] == [("b",)]

    @both_authors
    def test_a_node_of_an_outer_graph_is_left_alone(self, step: NodeRewrite) -> None:
        source = model("""(float[2] x, bool c) => (float[2] y) { o = Abs(x) [a] h = Neg(o)
            y = If (c) <then_branch = t () => (float[2] p) { [b] i = Neg(h) p = Exp(i) },
                        else_branch = e () => (float[2] q) { q = Identity(x) }> }""")
        result = apply(step, source, inputs={"x": np.ones(2, np.float32), "c": np.array(True)})
        assert not result.rewrites
        assert reasons(result) == (["a is in an outer graph"] if step is merge_neg else [])

    def test_an_operator_of_the_same_name_in_another_domain(self) -> None:
        """The function computes Exp, so removing both nodes would change the numbers."""
        text = "(float[2] x) => (float[2] y) { [a] h = local.Neg(x) [b] i = Neg(h) y = Abs(i) }"
        functions = '<domain: "local", opset_import: ["": 17]> Neg (p) => (q) { q = Exp(p) }'
        assert not apply(merge_neg_safely, model(text, functions=functions)).rewrites
        with pytest.raises(PassError, match=r"merge-neg: it absorbs a, a node of local\.Neg"):
            merge_neg.run(model(text, functions=functions), Context())

    @both_authors
    def test_a_function_of_the_model_that_redefines_the_operator(self, step: NodeRewrite) -> None:
        source = model("(float[2] x) => (float[2] y) { h = Neg(x) i = Neg(h) y = Abs(i) }")
        function = model("(float[2] p) => (float[2] q) { q = Exp(p) }").graph
        source.functions["", "Neg", ""] = ir.Function("", "Neg", graph=function, attributes=[])
        assert not step.run(source, Context()).rewrites


class TestNeeds:
    """What the decorator says that a rule needs, the rule need not check."""

    @staticmethod
    def step(**needs: Any) -> NodeRewrite:
        @rewrite("Split", "Identity", "Add", **needs)
        def halve(node: ir.Node, edit: Edit) -> Replacement:
            return edit.op("Abs", node.inputs[:1])

        return halve

    def reasons(self, source: ir.Model, **needs: object) -> list[str]:
        result = self.step(**needs).run(source, Context())
        assert bool(result.rewrites) != bool(result.skips)
        return reasons(result)

    def test_an_opset(self) -> None:
        text = "(float[2] x) => (float[2] y) { y = Identity(x) }"
        (reason,) = self.reasons(model(text, opset=12), since_opset=13)
        assert reason == "the rewrite needs opset 13, and the model has 12: convert-opset comes first"
        assert not self.reasons(model(text, opset=13), since_opset=13)

    def test_an_operator_of_a_later_opset(self) -> None:
        @rewrite("Identity")
        def mended(node: ir.Node, edit: Edit) -> Replacement:
            return edit.op("Mish", node.inputs)

        for opset, applies in ((17, False), (18, True)):
            source = model("(float[2] x) => (float[2] y) { y = Identity(x) }", opset=opset)
            before = [node.op_type for node in source.graph]
            result = mended.run(source, Context())
            assert result.modified is applies
            assert bool(reasons(result)) is not applies
            assert [node.op_type for node in source.graph] == (["Mish"] if applies else before)

    def test_shapes(self) -> None:
        text = "(float[n] x, float[2] z) => (float[n] y) { y = Add(x, z) }"
        assert self.reasons(model(text), needs_shape=(0,)) == [UNKNOWN_SHAPE]
        assert self.reasons(model(text), needs_shape=EVERY_INPUT) == [UNKNOWN_SHAPE]
        assert not self.reasons(model(text), needs_shape=(1, 2))  # of which the third is not given

    def test_dtypes(self) -> None:
        text = "(float[2] x) => (float[2] y) { h = local.unknown(x) i = Identity(h) y = Abs(i) }"
        assert self.reasons(model(text), needs_dtype=(0,)) == [UNKNOWN_DTYPE]
        assert not self.reasons(model(text))

    def test_a_fact_that_the_rule_does_not_need(self) -> None:
        source = model("(float[n] x) => (float[n] y) { y = Identity(x) }")
        node = source.graph[0]
        edit = Edit(Scope(source, source.graph), node)
        assert edit.dtype(node) == ir.DataType.FLOAT
        with pytest.raises(PassError, match="needs_shape must list it"):
            edit.shape(node)

    @pytest.mark.parametrize("tensors_only", [True, False])
    def test_sequences_are_not_tensors(self, tensors_only: bool) -> None:
        source = model("(seq(float[2]) x) => (seq(float[2]) y) { y = Identity(x) }")
        step = self.step(tensors_only=tensors_only)
        assert bool(step.run(source, Context()).rewrites) is not tensors_only

    def test_attributes_that_the_caller_supplies(self) -> None:
        text = "(float[4] x) => (float[2] y, float[2] z) { y, z = local.f <a=0> (x) }"
        functions = """<domain: "local", opset_import: ["": 17]> f <a> (p) => (q, r) {
            q, r = Split <axis: int = @a> (p) }"""
        result = self.step().run(model(text, functions=functions), Context())
        assert not result.rewrites and not result.skips

    def test_outputs_that_are_not_used_need_no_value(self) -> None:
        source = model("(float[4] x) => (float[2] y) { y, z = Split <axis=0> (x) }")
        assert self.step().run(source, Context()).rewrites

    def test_values_of_outputs_that_the_node_omits(self) -> None:
        @rewrite("Dropout")
        def with_mask(node: ir.Node, edit: Edit) -> Replacement:
            return [node.inputs[0], edit.constant(np.ones(4, bool))]

        source = model("(float[4] x) => (float[4] y) { d = Dropout(x)  y = Abs(d) }")
        assert with_mask.run(source, Context()).rewrites
        assert [node.op_type for node in source.graph] == ["Abs"] and not source.graph.initializers


class TestEdit:
    def edit(self, opset: int) -> tuple[Edit, ir.Value]:
        source = model("(float[2,3] x) => (float[2,3] y) { [n] y = Abs(x) }", opset=opset)
        return Edit(Scope(source, source.graph), source.graph[0]), source.graph.inputs[0]

    @pytest.mark.parametrize(
        ("operator", "since", "operands", "attributes", "shape"),
        [
            ("ReduceMean", 18, [[1]], {"axes": (1,)}, [2, 1]),
            ("ReduceSum", 13, [[0]], {"axes": (0,)}, [1, 3]),
            ("Unsqueeze", 13, [[0]], {"axes": (0,)}, [1, 2, 3]),
            ("Slice", 10, [[0], [1], [1]], {"starts": (0,), "ends": (1,), "axes": (1,)}, [2, 1]),
            ("Pad", 11, [[0, 1, 0, 1]], {"pads": (0, 1, 0, 1)}, [2, 5]),
        ],
    )
    def test_the_form_of_the_opset(
        self, operator: str, since: int, operands: list[list[int]], attributes: dict[str, object], shape: list[int]
    ) -> None:
        for opset in (since - 1, since):
            edit, x = self.edit(opset)
            node = edit.node(operator, [x, *(edit.constant(np.array(each, np.int64)) for each in operands)])
            old = opset < since
            assert len(node.inputs) == (1 if old else 1 + len(operands))
            assert {name: each.value for name, each in node.attributes.items()} == (attributes if old else {})
            assert node.outputs[0].shape == ir.Shape(shape)
            assert node.outputs[0].dtype == ir.DataType.FLOAT

    def test_scalars_that_were_attributes(self) -> None:
        edit, x = self.edit(9)
        node = edit.node("Clip", [x, None, edit.constant(np.array(6, np.float32))])
        assert {name: each.value for name, each in node.attributes.items()} == {"max": 6.0}

    def test_an_operand_that_must_be_constant(self) -> None:
        edit, x = self.edit(9)
        with pytest.raises(PassError, match="Clip takes min as an attribute before opset 11"):
            edit.op("Clip", [x, x])

    def test_several_outputs_and_unknown_operators(self) -> None:
        edit, x = self.edit(17)
        split = edit.node("Split", [x], {"axis": 1}, outputs=3)
        assert [value.shape for value in split.outputs] == [ir.Shape([2, 1])] * 3
        unknown = edit.op("Whatever", [x], domain="mine")
        assert unknown.dtype is None
        assert edit.op("Abs", [unknown]).shape is None
