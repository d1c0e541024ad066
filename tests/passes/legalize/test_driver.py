"""Legalization: rules are applied to nodes that the runtime rejects, verified, and committed or discarded."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from passes import legalize
from passes.graphs import lineage
from passes.graphs.scopes import Scope, name_nodes
from passes.graphs.traversal import with_nested
from passes.legalize.legalize import Legalize
from passes.probing.node_verdicts import PROVEN, NodeVerdicts
from passes.probing.probe import Probe
from passes.rewriting.base import Budget, Context, Exactness, Proof, Result, Skip, Status, Target, Verdict
from passes.rewriting.edit import Edit
from passes.rewriting.pipeline import Pipeline
from passes.rewriting.rewrite import Replacement, rewrite
from tests.passes.device import Device
from tests.passes.harness import all_nodes, model, operators, reasons, run


@pytest.fixture(scope="module")
def target(runtime: Any) -> Target:
    from onnx_bridge.verdicts.probed_runtime import ProbedRuntime

    return ProbedRuntime(runtime)


def apply(source: ir.Model, target: Target, device: Device) -> Result:
    """Legalize; checks the results on ONNX Runtime and MIGraphX, and that a second run changes nothing."""
    before = ir.to_proto(source)
    result = Legalize().run(source, Context(target))
    after = ir.to_proto(source)
    onnx.checker.check_model(after, full_check=True)
    expected = run(before)
    for name, array in run(after).items():
        np.testing.assert_allclose(array, expected[name], 1e-5, 1e-6)
    for array, wanted in zip(device.run(after), expected.values(), strict=True):
        np.testing.assert_allclose(array.reshape(wanted.shape), wanted, 1e-5, 1e-6)
    assert not Legalize().run(source, Context(target)).rewrites
    return result


def test_without_a_runtime() -> None:
    source = model("(float[2] x) => (float[2] y) { y = Mish(x) }", opset=18)
    result = Legalize().run(source, Context())
    assert not result.rewrites
    assert reasons(result) == ["there is no runtime to ask"]


def test_accepted_nodes_are_unchanged(target: Target, device: Device) -> None:
    source = model("(float[2] x) => (float[2] y) { h = HardSwish(x) y = Softmax(h) }")
    assert not apply(source, target, device).rewrites


def test_a_function_body(target: Target, device: Device) -> None:
    source = model("(float[2] x) => (float[2] y) { a = Relu(x) y = Mish(a) }", opset=18)
    name_nodes(Scope(source, source.graph))
    mish = str(source.graph[1].name)
    result = apply(source, target, device)
    assert "Mish" not in operators(source)
    (rewrite,) = result.rewrites[:1]
    assert "expand-functions" in rewrite.note
    assert "Unknown operator: Mish" in rewrite.note
    made = [node for node in source.graph if lineage.PASS in node.metadata_props]
    assert {node.metadata_props[lineage.PASS] for node in made} == {"legalize/expand-functions"}
    assert {tuple(json.loads(node.metadata_props[lineage.ORIGIN])) for node in made} == {(mish,)}


def test_in_a_subgraph(target: Target, device: Device) -> None:
    source = model(
        "(bool[1] c, float[2] x) => (float[2] y) {"
        " y = If(c) <then_branch = t () => (float[2] a) { a = Mish(x) },"
        " else_branch = e () => (float[2] b) { b = Neg(x) }> }",
        opset=18,
    )
    Legalize().run(source, Context(target))
    assert "Mish" not in operators(source)


def test_no_rule_succeeds(target: Target) -> None:
    """The skip has the runtime's message and the rule's reason, and the graph is unchanged."""
    source = model("(float[2,4] x, int64 n) => (float[2,4] y) { y = DFT(x, n) }", opset=17)
    uses = {str(value.name): len(value.uses()) for node in source.graph for value in node.inputs if value is not None}
    result = Legalize().run(source, Context(target))
    assert not result.rewrites
    (reason,) = reasons(result)
    assert "Unknown operator: DFT" in reason
    assert "multiply-dft" in reason
    assert operators(source) == ["DFT"]
    assert uses == {
        str(value.name): len(value.uses()) for node in source.graph for value in node.inputs if value is not None
    }


def test_the_budget(target: Target) -> None:
    text = "(float[2] x) => (float[2] y) { a = Mish(x) y = Mish(a) }"
    source = model(text, opset=18)
    assert not Legalize().run(source, Context(target, budget=Budget(0))).rewrites
    assert operators(source) == ["Mish", "Mish"]
    Legalize().run(source, Context(target, budget=Budget(1)))
    assert operators(source).count("Mish") == 1


def test_nodes_of_one_rewrite_are_judged_together(target: Target, device: Device) -> None:
    """ScatterND aborts on a negative index; after the Mod that the rule inserts there are none, so it passes."""
    source = model("(float[4] x, int64[2,1] i, float[2] u) => (float[4] y) { y = ScatterND(x, i, u) }")
    Legalize().run(source, Context(target))
    assert operators(source)[-1] == "ScatterND"
    assert len(operators(source)) > 1
    assert not Legalize().run(source, Context(target)).rewrites


def test_a_pair_that_is_wrong_together(target: Target, device: Device) -> None:
    """A constant Pad before a convolution with pads of its own: MIGraphX drops one of the two."""
    source = model(
        "(float[1,2,5,5] x) => (float[1,3,7,7] y) { p = Pad(x, n, v) y = Conv<pads=[1,1,1,1]>(p, w) }",
        n=np.array([0, 0, 1, 1, 0, 0, 1, 1]),
        v=np.float32(5),
        w=np.random.default_rng(0).standard_normal((3, 2, 3, 3)).astype(np.float32),
    )
    result = apply(source, target, device)
    assert result.rewrites
    assert "computes it wrongly" in result.rewrites[0].note


def test_an_output_of_a_proposal_counts_as_used(target: Target, device: Device) -> None:
    """A rule within a proposal may not drop the indices of MaxPool, which only the proposal's own outputs refer to."""
    source = model(
        """(float[2,2,3,3] x) => (float[2,2,1,2] y, int64[2,2,1,2] at) {
            p = Pad(x, n) y, at = MaxPool <kernel_shape = [2, 2], strides = [2, 2]> (p) }""",
        n=np.array([0, 0, 0, 0, 0, 0, 0, 1]),
    )
    result = apply(source, target, device)
    assert result.rewrites
    assert "MaxPool" not in operators(source)


def test_contrib_operators_in_a_row(target: Target, device: Device) -> None:
    """ONNX infers no shapes after the first, so the next is judged only after that one is rewritten."""
    text = (
        '<ir_version: 8, opset_import: ["": 17, "com.microsoft": 1]> g (float[2,4] x) => (float[2,4] y)'
        " { a = com.microsoft.QuickGelu(x) b = com.microsoft.QuickGelu(a) y = com.microsoft.QuickGelu(b) }"
    )
    source = ir.from_proto(onnx.parser.parse_model(text))
    result = Legalize().run(source, Context(target))
    assert "QuickGelu" not in operators(source), reasons(result)


def test_a_rule_within_a_rule_sees_its_constants(target: Target, device: Device) -> None:
    """MoE takes the best experts of 40 rows by TopK, which is rewritten in turn if its k is constant."""
    weights, bias = "float[4, 8, 8] w = {" + ", ".join(["0.5"] * 256) + "}", "float[4, 8] b = {"
    text = '<ir_version: 8, opset_import: ["": 17, "com.microsoft": 1]> g (float[40, 8] x, float[40, 4] r)'
    text += f" => (float[40, 8] y) <{weights}, {bias}{', '.join(str(number / 8) for number in range(32))}}}>"
    text += "{ y = com.microsoft.MoE<k = 2>(x, r, w, b, w, b) }"
    source = ir.from_proto(onnx.parser.parse_model(text))
    result = apply(source, target, device)
    assert "MoE" not in operators(source)
    assert any("rank-by-comparison" in rewrite.rules for rewrite in result.rewrites)


def test_a_model_that_does_not_import_the_standard_operators(target: Target) -> None:
    text = (
        '<ir_version: 8, opset_import: ["ai.onnx.ml": 1]> g (float[2,3] x) => (float[2,3] y)'
        " { y = ai.onnx.ml.Scaler <offset = [1.0], scale = [2.0]> (x) }"
    )
    source = ir.from_proto(onnx.parser.parse_model(text))
    result = Legalize().run(source, Context(target))
    assert operators(source) == ["Sub", "Mul"], reasons(result)


@rewrite("Mish", exactness=Exactness.ROUNDING)
def mish_is_tanh(node: ir.Node, edit: Edit) -> Replacement:
    """Compute something else."""
    return edit.op("Tanh", node.inputs)


def test_a_wrong_rule_is_discarded(target: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    known: Any = {("", "Mish"): (mish_is_tanh,)}
    monkeypatch.setattr("passes.legalize.driver.rules", lambda: known)
    source = model("(float[4] x) => (float[4] y) { y = Mish(x) }", opset=18)
    result = Legalize().run(source, Context(target))
    assert not result.rewrites
    assert operators(source) == ["Mish"]
    assert "mish-is-tanh: the replacement of Mish fails: the runtime computes it wrongly" in reasons(result)[0]


class Refusing:
    """A runtime that rejects some operators, also in subgraphs, and computes all else right."""

    name, rehearses = "refusing", False

    def __init__(self, *operators: str) -> None:
        self._operators = set(operators)

    def verdicts(self, probes: Sequence[Probe]) -> list[Verdict]:
        names = [{node.op_type for node in with_nested(probe.nodes)} & self._operators for probe in probes]
        right = Verdict(Status.OK, proof=Proof.RUN)
        return [Verdict(Status.REJECTED, f"no {', '.join(sorted(own))}") if own else right for own in names]


def test_a_replacement_that_is_not_even_tried_has_not_timed_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """The seconds that its instructions would take to compile are estimated, and they are too many."""

    class Estimating(Refusing):
        def verdicts(self, probes: Sequence[Probe]) -> list[Verdict]:
            long = Verdict(Status.HANGS, "it would take about 70 s to compile")
            return [long if any(node.op_type == "Tanh" for node in probe.nodes) else each
                    for probe, each in zip(probes, super().verdicts(probes), strict=True)]  # fmt: skip

    monkeypatch.setattr("passes.legalize.driver.rules", lambda: {("", "Mish"): (mish_is_tanh,)})
    result = Legalize().run(
        model("(float[4] x) => (float[4] y) { y = Mish(x) }", opset=18), Context(Estimating("Mish"))
    )
    assert "fails: the runtime takes too long for it (it would take about 70 s to compile)" in reasons(result)[0]


@rewrite("Mish")
def mish_in_branches(node: ir.Node, edit: Edit) -> Replacement:
    """Compute it in both branches of an If."""

    def branch() -> ir.Graph:
        result = ir.Value(name=edit.scope.names.value("inner"), type=node.outputs[0].type, shape=node.outputs[0].shape)
        inner = ir.node("Celu", [node.inputs[0]], outputs=[result], name=edit.scope.names.node("inner"))
        return ir.Graph([], [result], nodes=[inner], name="branch")

    condition = edit.constant(np.array(True))
    return edit.op("If", [condition], {"then_branch": branch(), "else_branch": branch()})


@rewrite("Celu")
def celu_is_a_sum(node: ir.Node, edit: Edit) -> Replacement:
    """Compute it with a constant."""
    return edit.op("Add", [node.inputs[0], edit.constant(np.ones(1, np.float32))])


@pytest.mark.parametrize("ir_version", [3, 10])
@pytest.mark.parametrize(
    ("refused", "rules", "expected"),
    [
        (("Mish", "Celu", "If"), ("mish-is-tanh",), ["Tanh"]),
        (("Mish", "Celu"), ("mish-in-branches", "celu-is-a-sum"), ["Add", "Add", "If"]),
        (("Mish", "Celu", "Add", "Tanh"), (), ["Mish"]),
    ],
    ids=["discarded", "committed", "nothing"],
)
def test_a_proposal_is_one_rewrite(
    refused: Sequence[str],
    rules: Sequence[str],
    expected: list[str],
    ir_version: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What is rewritten within it is reported and paid for with it, and not at all if it is discarded."""
    known: Any = {("", "Mish"): (mish_in_branches, mish_is_tanh), ("", "Celu"): (celu_is_a_sum,)}
    monkeypatch.setattr("passes.legalize.driver.rules", lambda: known)
    source = model("(float[4] x) => (float[4] y) { y = Mish(x) }", opset=18)
    source.ir_version = ir_version
    budget = Budget(1)
    result = Legalize().run(source, Context(Refusing(*refused), budget=budget))
    assert [rewrite.rules for rewrite in result.rewrites] == ([rules] if rules else [])
    assert budget.left == (0 if rules else 1)
    assert sorted(node.op_type for node in Scope(source, source.graph).nodes()) == expected
    assert bool(result.skips) == (not rules)
    required = [value.name for value in source.graph.inputs if not value.is_initializer()]
    assert required == ["x"]
    assert all(value.uses() for value in source.graph.initializers.values())


def test_skips_of_the_last_round(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also if it still rewrites something; and none of nodes that are gone."""
    known: Any = {("", "Mish"): (mish_is_tanh,)}
    monkeypatch.setattr("passes.legalize.driver.rules", lambda: known)
    monkeypatch.setattr("passes.legalize.driver._MAX_ROUNDS", 1)
    source = model("(float[4] x) => (float[4] y, float[4] z) { y = Mish(x) z = Erf(x) }", opset=18)
    result = Legalize().run(source, Context(Refusing("Mish", "Erf")))
    assert result.rewrites
    assert [skip.node for skip in result.skips] == [source.graph[-1].name]


@rewrite("Abs", "Neg")
def negative_magnitude(node: ir.Node, edit: Edit) -> Replacement:
    """Take what an Abs takes for what follows it, which removes the Abs."""
    before = edit.producer(node, 0, "Abs") if node.op_type == "Neg" else None
    if before is None:
        return Skip("nothing is before it")
    edit.absorb(before)
    return edit.op("Sign", before.inputs)


def test_no_skips_of_nodes_that_are_gone() -> None:
    source = model("(float[4] x) => (float[4] y) { a = Abs(x) y = Neg(a) }")
    result = negative_magnitude.run(source, Context())
    assert operators(source) == ["Sign"]
    assert not result.skips


def large_transposed_convolution() -> ir.Model:
    """With output_padding, which MIGraphX before 2.16 adds on the wrong side; too large to run."""
    return model(
        "(float[8,3,25,25] x) => (float[8,16,50,50] y)"
        " { y = ConvTranspose<strides=[2,2],pads=[1,1,1,1],output_padding=[1,1]>(x, w) }",
        w=np.random.default_rng(0).standard_normal((3, 16, 3, 3)).astype(np.float32),
    )


@pytest.fixture
def without_budget(runtime: Any) -> Target:
    from onnx_bridge.verdicts.probed_runtime import ProbedRuntime

    return ProbedRuntime(runtime, budget=0.0, cache=False)  # which may hold a run at real size


def test_a_large_node_is_proven_by_witnesses(without_budget: Target, device: Device) -> None:
    """The witness of the node is computed wrongly, and the same rule on the witness is right."""
    source = large_transposed_convolution()
    result = apply(source, without_budget, device)
    assert "computes it wrongly" in result.rewrites[0].note
    found = NodeVerdicts(without_budget, Scope(source, source.graph)).of_nodes(source.graph)
    assert {each.verdict.proof for each in found.values()} <= {Proof.WITNESS, Proof.RUN}
    made = [node for node in source.graph if PROVEN in node.meta]
    assert made and all(node.meta[PROVEN].proof is Proof.WITNESS for node in made)


@rewrite("ConvTranspose", exactness=Exactness.ROUNDING)
def without_output_padding(node: ir.Node, edit: Edit) -> Replacement:
    """Compute something else, of the right shape."""
    x, weights = node.inputs
    return edit.op("ConvTranspose", [edit.op("Neg", [x]), weights], {"strides": [2, 2], "pads": [1, 1, 0, 0]})


def test_a_large_replacement_that_is_wrong_on_the_witness_is_discarded(
    without_budget: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    known: Any = {("", "ConvTranspose"): (without_output_padding,)}
    monkeypatch.setattr("passes.legalize.driver.rules", lambda: known)
    source = large_transposed_convolution()
    result = Legalize().run(source, Context(without_budget))
    assert not result.rewrites and operators(source) == ["ConvTranspose"]
    assert (
        "without-output-padding: the replacement of ConvTranspose fails: the runtime computes it wrongly"
        in (reasons(result)[0])
    )


def test_a_large_replacement_without_a_witness_is_unproven(
    without_budget: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is applied, since the original is known to be wrong, and it says so."""
    monkeypatch.setattr("passes.legalize.driver.witness", lambda _: Skip("for a test"))
    source = large_transposed_convolution()
    result = Legalize().run(source, Context(without_budget))
    assert result.rewrites
    verdicts = [node.meta[PROVEN] for node in source.graph if PROVEN in node.meta]
    assert {(each.proof, str(each.unproven)) for each in verdicts} == {(Proof.NONE, "too large to run: for a test")}


def test_every_family_has_rules_with_unique_names() -> None:
    found = legalize.rules()
    assert len(found) > 150
    families = [legalize.rules_of(family) for family in legalize.FAMILIES]
    assert all(families)
    names = [rule.name for family in families for rule in family]
    assert len(set(names)) == len(names)


def test_in_the_default_pipeline(target: Target, device: Device) -> None:
    source = model("(float[1,4] x) => (float[1,4] y) { a = Mish(x) y = Softmax(a) }", opset=18)
    before = run(ir.to_proto(source))
    steps = Pipeline.parse("default").run(source, Context(target))
    assert [step.name for step in steps][-1] == "legalize"
    assert all(node.op_type != "Mish" for node in all_nodes(source))
    (array,) = device.run(ir.to_proto(source))
    np.testing.assert_allclose(array, before["y"], 1e-5, 1e-6)


_SCALER = (
    '<ir_version: 8, opset_import: ["": 9, "ai.onnx.ml": 1]> g (float[2,3] x) => (float[2,3] y)'
    " { y = ai.onnx.ml.Scaler <offset = [1.0, 2.0, 3.0], scale = [2.0, 1.0, 0.5]> (x) }"
)
_DYNAMIC = (
    '<ir_version: 8, opset_import: ["": 10, "com.microsoft": 1]> g (float[2,3] x) => (float[2,4] y)'
    " <uint8[3,4] w = {1,2,3,4,5,6,7,8,9,10,11,12}, float s = {0.5}, uint8 z = {3}>"
    " { y = com.microsoft.DynamicQuantizeMatMul(x, w, s, z) }"
)


@pytest.mark.parametrize(
    ("source", "raised"),
    [
        (ir.from_proto(onnx.parser.parse_model(_SCALER)), 11),
        (ir.from_proto(onnx.parser.parse_model(_DYNAMIC)), 11),
    ],
    ids=["for a rule", "for an operator in a rule"],
)
def test_the_opset_that_a_rule_needs(source: ir.Model, raised: int, target: Target, device: Device) -> None:
    result = apply(source, target, device)
    assert source.graph.opset_imports[""] == raised
    assert not result.skips


def test_an_operator_without_an_equivalent_keeps_the_opset(target: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    @rewrite("local.Own", since_opset=13)
    def own_by_neg(node: ir.Node, edit: Edit) -> Replacement:
        return edit.op("Neg", node.inputs)

    monkeypatch.setattr("passes.legalize.driver.rules", lambda: {("local", "Own"): [own_by_neg]})
    source = model("(float[2,3,4] x) => (float[2,3,4] y) { a = local.Own(x) y = Hardmax<axis=1>(a) }", opset=12)
    result = Legalize().run(source, Context(target))
    assert source.graph.opset_imports[""] == 12
    assert 13 in [skip.opset for skip in result.skips]
    assert operators(source) == ["Own", "Hardmax"]
