"""What is judged together, and what of it is kept for the next who asks."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np
import onnx_ir as ir

from passes.graphs import lineage
from passes.graphs.replacement import remove_nodes
from passes.graphs.scopes import Scope, name_nodes
from passes.probing.node_verdicts import NodeVerdicts, rule_groups
from passes.probing.probe import Probe
from passes.rewriting.base import Status, Verdict
from passes.shapes import inference
from tests.passes.harness import model

CHAIN = "(float[2] x) => (float[2] y) { a = Neg(x) b = Abs(a) c = Exp(b) d = Neg(c) y = Abs(d) }"


class Picky:
    """A runtime that rejects certain sequences of operators, and counts what it is asked."""

    name = "picky"
    rehearses = False

    def __init__(self, *rejected: Collection[str]) -> None:
        self.rejected = rejected
        self.asked: list[Probe] = []

    def verdicts(self, probes: Sequence[Probe], *, run: bool = True) -> list[Verdict]:
        self.asked += probes
        found = [tuple(node.op_type for node in probe.nodes) in self.rejected for probe in probes]
        return [Verdict(Status.REJECTED, "no") if each else Verdict(Status.OK) for each in found]


def scope_of(text: str, **constants: np.ndarray) -> Scope:
    source = model(text, **constants)
    inference.infer(source)
    scope = Scope(source, source.graph)
    name_nodes(scope)
    return scope


def stamp(nodes: Sequence[ir.Node]) -> None:
    lineage.stamp(nodes, "legalize/one-rule", nodes[:1])


class TestRuleGroups:
    def test_what_a_rule_made_of_one_node(self) -> None:
        first, second, other, third, fourth = nodes = list(scope_of(CHAIN).graph)
        stamp([first, second])
        stamp([third])
        lineage.stamp([fourth], "fold-constants", [fourth])
        found = rule_groups(nodes)
        assert found == {first: (first, second), second: (first, second)}
        assert other not in found and third not in found

    def test_other_nodes_of_the_same_rule_are_another_group(self) -> None:
        nodes = list(scope_of(CHAIN).graph)
        stamp(nodes[:2])
        stamp(nodes[2:])
        assert set(rule_groups(nodes).values()) == {tuple(nodes[:2]), tuple(nodes[2:])}


class TestFailingNodes:
    def test_a_node_that_is_rejected(self) -> None:
        scope = scope_of(CHAIN)
        found = NodeVerdicts(Picky(("Exp",)), scope).failing_nodes(scope.graph)
        (exp,) = (node for node in scope.graph if node.op_type == "Exp")
        assert list(found) == [exp] and found[exp].verdict == Verdict(Status.REJECTED, "no")

    def test_a_node_that_passes_within_its_group(self) -> None:
        scope = scope_of(CHAIN)
        stamp(list(scope.graph)[1:3])
        assert not NodeVerdicts(Picky(("Exp",)), scope).failing_nodes(scope.graph)
        assert NodeVerdicts(Picky(("Exp",), ("Abs", "Exp")), scope).failing_nodes(scope.graph)

    def test_what_cannot_be_asked(self) -> None:
        scope = scope_of("(string[2] x) => (string[2] y) { y = Identity(x) }")
        runtime = Picky()
        (finding,) = NodeVerdicts(runtime, scope).failing_nodes(scope.graph).values()
        assert finding.verdict == Verdict(Status.REJECTED, "x holds strings") and not runtime.asked


class TestFailingClusters:
    TEXT = "(float[1,1,4,4] x) => (y) { r = Relu(x) p = Pad(r, pads) y = Conv(p, w) }"
    WHERE = {"pads": np.array([0, 0, 1, 1, 0, 0, 1, 1]), "w": np.ones((1, 1, 3, 3), np.float32)}

    def test_neighbours_that_are_wrong_together(self) -> None:
        scope = scope_of(self.TEXT, **self.WHERE)
        _, pad, conv = nodes = list(scope.graph)
        judge = NodeVerdicts(Picky(("Pad", "Conv")), scope)
        assert not judge.failing_nodes(nodes)
        assert [finding.nodes for finding in judge.failing_clusters(set(nodes))] == [(pad, conv)]
        assert not judge.failing_clusters({pad})

    def test_quantized_products_are_clusters_where_the_gpu_target_is_rehearsed(self) -> None:
        text = "(int8[1,4] x) => (y) { d = DequantizeLinear(x, s) e = DequantizeLinear(w, s) y = MatMul(d, e) }"
        scope = scope_of(text, s=np.float32(0.1), w=np.ones((4, 2), np.int8))
        nodes = list(scope.graph)
        runtime = Picky(("DequantizeLinear", "DequantizeLinear", "MatMul"))
        assert not NodeVerdicts(runtime, scope).failing_clusters(set(nodes))
        runtime.rehearses = True
        (found,) = NodeVerdicts(runtime, scope).failing_clusters(set(nodes))
        assert (set(found.nodes), found.nodes[-1]) == (set(nodes), nodes[-1])

    def test_a_cluster_that_passes_within_its_group(self) -> None:
        scope = scope_of(self.TEXT, **self.WHERE)
        nodes = list(scope.graph)
        stamp(nodes)
        assert not NodeVerdicts(Picky(("Pad", "Conv")), scope).failing_clusters(set(nodes))

    def test_a_unit_does_not_shield_what_reaches_beyond_it(self) -> None:
        scope = scope_of(self.TEXT, **self.WHERE)
        nodes = list(scope.graph)
        stamp(nodes[:2])
        assert NodeVerdicts(Picky(("Pad", "Conv")), scope).failing_clusters(set(nodes))


class TestKept:
    def asked(self, scope: Scope) -> list[Probe]:
        runtime = Picky(("Exp",))
        NodeVerdicts(runtime, Scope(scope.model, scope.graph)).failing_nodes(scope.graph)
        return runtime.asked

    def test_probes_of_nodes_that_stay_as_they_are(self) -> None:
        scope = scope_of(CHAIN)
        pairs = zip(self.asked(scope), self.asked(scope), strict=True)
        assert [one is two for one, two in pairs] == [True, True, False, True, True]  # Exp was rejected

    def test_an_operand_that_changes(self) -> None:
        scope = scope_of("(float[2,3] x, float[3,2] w, float[3,2] v) => (y) { a = Relu(x) y = MatMul(a, w) }")
        before = self.asked(scope)
        product = scope.graph[1]
        assert self.asked(scope) == before
        product.replace_input_with(1, scope.graph.inputs[2])
        changed = self.asked(scope)
        assert changed[0] is before[0] and changed[1] is not before[1]
        product.outputs[0].shape = ir.Shape([2, None])
        assert self.asked(scope)[1] is not changed[1]

    def test_a_constant_that_changes(self) -> None:
        scope = scope_of("(float[2] x) => (y) { y = Add(x, w) }", w=np.ones(2, np.float32))
        (before,) = self.asked(scope)
        scope.graph.initializers["w"].const_value = ir.tensor(np.zeros(2, np.float32))
        (after,) = self.asked(scope)
        assert after is not before and after.signature != before.signature

    def test_an_attribute_that_changes(self) -> None:
        scope = scope_of("(float[2,2] x) => (y) { y = Softmax<axis=0>(x) }")
        (before,) = self.asked(scope)
        scope.graph[0].attributes["axis"] = ir.AttrInt64("axis", 1)
        (after,) = self.asked(scope)
        assert after is not before

    def test_an_output_that_is_used_no_more(self) -> None:
        scope = scope_of("(float[1,1,4,4] x) => (y, z) { y, i = MaxPool<kernel_shape=[2,2]>(x) z = Neg(i) }")
        before = self.asked(scope)[0]
        remove_nodes(scope.graph, [scope.graph[1]])
        assert len(before.outputs) == 2 and len(self.asked(scope)[0].outputs) == 1

    def test_a_cone_is_cut_out_anew(self) -> None:
        scope = scope_of("(float[2,6] x) => (y, i) { s = Shape<start=1>(x) y, i = TopK(x, s) }")
        assert self.asked(scope)[1] is not self.asked(scope)[1]

    def test_a_clone_has_probes_of_its_own(self) -> None:
        scope = scope_of(CHAIN)
        before = self.asked(scope)
        copy = scope.model.clone()
        assert not {*map(id, before)} & {*map(id, self.asked(Scope(copy, copy.graph)))}
