"""Passes of onnx_ir as steps of a pipeline."""

from __future__ import annotations

from collections.abc import Iterator

import onnx_ir as ir
import pytest
from onnx_ir.passes.common import CommonSubexpressionEliminationPass, RemoveUnusedNodesPass

import passes
from passes.core.errors import InputError, PassError
from passes.graphs import lineage
from passes.rewriting.base import Budget, Context, Exactness
from passes.rewriting.pipeline import Pipeline
from tests.passes.harness import model, operators

DEAD = "(float[2] x) => (float[2] y) { h = Neg(x) y = Abs(x) }"


class NegToIdentity(ir.passes.InPlacePass):
    """Replace every Neg, and say what ``says``."""

    exactness = Exactness.ROUNDING
    says: bool | None = None

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        found = [node for node in model.graph if node.op_type == "Neg"]
        for node in found:
            new = ir.node("Identity", list(node.inputs))
            ir.convenience.replace_nodes_and_values(model.graph, node, [node], [new], node.outputs, new.outputs)
        return ir.passes.PassResult(model, bool(found) if self.says is None else self.says)


class Copy(ir.passes.FunctionalPass):
    """Copy the model."""

    changes: bool

    def __init__(self, changes: bool = True) -> None:
        self.changes = changes

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        return ir.passes.PassResult(model.clone(), self.changes)


class Failing(NegToIdentity):
    def requires(self, model: ir.Model) -> None:
        raise ir.passes.PreconditionError("never")


def test_in_a_pipeline_of_python() -> None:
    pipeline = Pipeline([RemoveUnusedNodesPass(), CommonSubexpressionEliminationPass()])
    assert str(pipeline) == "remove-unused-nodes,common-subexpression-elimination"
    source = model(DEAD)
    removed, merged = pipeline.run(source)
    assert operators(source) == ["Abs"]
    assert removed.result.modified and not merged.result.modified
    assert removed.result.rewrites[0].before == ("Neg",)
    assert removed.exactness is Exactness.QUANTIZATION_STEP


def test_new_nodes_say_who_made_them_and_from_what() -> None:
    source = model("(float[2] x) => (float[2] y) { [n] h = Neg(x) y = Abs(h) }")
    (step,) = Pipeline([NegToIdentity()]).run(source)
    assert step.exactness is Exactness.ROUNDING
    (rewrite,) = step.result.rewrites
    assert rewrite.before == ("n",)
    identity = source.graph[0]
    assert rewrite.after == (identity.name,)
    assert identity.metadata_props[lineage.PASS] == "neg-to-identity"
    assert lineage.origin(identity) == ["n"]


@pytest.mark.parametrize(
    "text", ["(float[2] x) => (float[2] y) { y = Neg(x) }", "(float[2] x) => (float[2] y) { y = Abs(x) }"]
)
def test_a_pass_that_says_it_did_nothing(text: str) -> None:
    step = NegToIdentity()
    step.says = False
    (done,) = Pipeline([step]).run(model(text))
    assert done.result.modified == ("Neg" in text)


@pytest.mark.parametrize("changes", [True, False])
def test_a_pass_that_makes_another_model(changes: bool) -> None:
    source = model(DEAD)
    (step,) = Pipeline([Copy(changes)]).run(source)
    assert step.result.modified is changes
    assert (step.result.model is source) is not changes


def test_the_budget() -> None:
    source = model(DEAD)
    Pipeline([RemoveUnusedNodesPass()]).run(source, Context(budget=Budget(0)))
    assert operators(source) == ["Neg", "Abs"]


def test_errors_name_the_pass() -> None:
    with pytest.raises(PassError, match="pass failing: PreconditionError"):
        Pipeline([Failing()]).run(model(DEAD))


class TestRegistered:
    @pytest.fixture(autouse=True)
    def registered(self) -> Iterator[None]:
        assert passes.register(NegToIdentity) is NegToIdentity
        yield
        passes._registered.pop("neg-to-identity", None)

    def test_by_its_name(self) -> None:
        assert "neg-to-identity" in passes.names()
        assert passes.describe("neg-to-identity") == "Replace every Neg, and say what ``says``."
        source = model(DEAD)
        pipeline = Pipeline.parse("neg-to-identity,remove-dead")
        assert pipeline == Pipeline.parse(str(pipeline))
        pipeline.run(source)
        assert operators(source) == ["Abs"]

    def test_again(self) -> None:
        passes.register(NegToIdentity)
        with pytest.raises(InputError, match="already a pass or a pipeline neg-to-identity"):
            passes.register(type("NegToIdentity", (NegToIdentity,), {}))

    def test_what_is_no_pass(self) -> None:
        with pytest.raises(InputError, match="it is not a pass"):
            passes.register(dict)  # type: ignore[type-var]
