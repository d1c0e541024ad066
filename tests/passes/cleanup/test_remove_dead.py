"""remove-dead: what contributes to nothing goes, and what a model promises stays."""

from __future__ import annotations

import numpy as np
import pytest

from passes.cleanup.remove_dead import RemoveDead
from passes.rewriting.base import Context
from tests.passes.harness import apply, operators, stops
from tests.passes.helpers import tiny

W = np.ones(2, np.float32)


def test_nodes_and_initializers() -> None:
    source = tiny(
        "(float[2] x, float[2] unused) => (float[2] y) { [a] a = Add(x, w) [b] b = Neg(a) [c] y = Mul(x, v) }", w=W, v=W
    )
    result = apply(RemoveDead(), source)
    assert [rewrite.before for rewrite in result.rewrites] == [("b",), ("a",), ()]
    assert result.rewrites[2].note == "initializer w"
    assert list(source.graph.initializers) == ["v"]
    assert [value.name for value in source.graph.inputs] == ["x", "unused"]


def test_nothing_to_do() -> None:
    assert not apply(RemoveDead(), tiny("(float[2] x) => (float[2] y) { y = Neg(x) }")).rewrites


def test_subgraphs_and_what_only_they_used() -> None:
    source = tiny(
        """(bool c, float[2] x) => (float[2] y) {
            a = Add(x, w) b = Add(x, v)
            dead = If (c) <then_branch = t () => (float[2] p) { p = Neg(a) },
                           else_branch = e () => (float[2] q) { q = Neg(b) }>
            y = If (c) <then_branch = t2 () => (float[2] p2) { lost = Neg(b) p2 = Abs(x) },
                        else_branch = e2 () => (float[2] q2) { q2 = Identity(x) }> }""",
        w=W,
        v=W,
    )
    apply(RemoveDead(), source)
    assert operators(source) == ["If", "Abs", "Identity"]
    assert not source.graph.initializers


def test_initializers_that_callers_may_override_stay() -> None:
    source = tiny("(float[2] x, float[2] w) => (float[2] y) { y = Neg(x) }", w=W)
    assert not apply(RemoveDead(), source).rewrites
    assert list(source.graph.initializers) == ["w"]


def test_before_ir_version_4_initializers_had_to_be_inputs() -> None:
    text = "(float[2] x, float[2] w, float[2] v) => (float[2] y) { y = Add(x, v) }"
    source = tiny(text, opset=9, ir_version=3, w=W, v=W)
    result = RemoveDead().run(source, Context())
    assert [rewrite.note for rewrite in result.rewrites] == ["initializer w"]
    assert [value.name for value in source.graph.inputs] == ["x", "v"]


def test_functions_and_opset_imports() -> None:
    source = tiny(
        "(float[2] x) => (float[2] y) { y = local.f(x) }",
        functions="""
        <domain: "local", opset_import: ["": 17, "local": 1]> f (a) => (b) { lost = Neg(a) b = local.g(a) }
        <domain: "local", opset_import: ["": 17, "other": 1]> g (a) => (b) { b = Abs(a) }
        <domain: "local", opset_import: ["": 17, "local": 1]> h (a) => (b) { b = local.k(a) }
        <domain: "local", opset_import: ["": 17]> k (a) => (b) { b = Abs(a) }""",
    )
    source.opset_imports["nobody"] = 3
    result = apply(RemoveDead(), source)
    assert [name for _, name, _ in source.functions] == ["f", "g"]
    assert operators(source) == ["f", "g", "Abs"]
    assert source.opset_imports == {"": 17, "local": 1}
    notes = [rewrite.note for rewrite in result.rewrites]
    assert {"function local::h", "function local::k", "opset import nobody", "opset import other"} <= set(notes)


class TestLastOutputs:
    def test_those_that_are_optional(self) -> None:
        source = tiny("(float[1,1,4,4] x) => (float[1,1,2,2] y) { y, i = MaxPool <kernel_shape = [3, 3]> (x) }")
        result = apply(RemoveDead(), source)
        assert [rewrite.note for rewrite in result.rewrites] == ["unused last outputs"]
        assert len(source.graph[0].outputs) == 1

    def test_those_between_used_ones_stay(self) -> None:
        source = tiny(
            "(float[3,1,2] x) => (float[1,1,4] c) { y, h, c = LSTM <hidden_size = 4> (x, w, r) }",
            w=np.ones((1, 16, 2), np.float32),
            r=np.ones((1, 16, 4), np.float32),
        )
        assert not apply(RemoveDead(), source).rewrites
        assert len(source.graph[0].outputs) == 3

    @pytest.mark.parametrize("used", ["", ", int64[2] i"])
    def test_those_that_are_not_optional_or_used(self, used: str) -> None:
        source = tiny(f"(float[2] x) => (float[2] v{used}) {{ v, i = TopK(x, k) }}", k=np.array([2]))
        assert not apply(RemoveDead(), source).rewrites

    def test_batch_normalization_told_by_them_that_it_was_training(self) -> None:
        text = "(float[1,2] x, float[2] s) => (float[1,2] y) { y, a, b, c, d = BatchNormalization(x, s, s, s, s) }"
        source = tiny(text, opset=9)
        assert not RemoveDead().run(source, Context()).rewrites

    def test_operators_that_are_not_known(self) -> None:
        source = tiny("(float[2] x) => (float[2] y) { y, z = local.Thing(x) }")
        assert not RemoveDead().run(source, Context()).rewrites


def test_the_budget() -> None:
    text = "(float[2] x) => (float[2] y) { a = Add(x, w) b = Neg(a) y = Neg(x) }"
    assert [stops(RemoveDead(), tiny(text, w=W), limit) for limit in range(5)] == [0, 1, 2, 3, 3]
