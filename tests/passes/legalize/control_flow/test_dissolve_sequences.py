"""dissolve-sequences: only tensors remain, and sequences that cannot be eliminated are unchanged."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from passes.graphs.scopes import Scope
from passes.legalize.control_flow.dissolve_sequences import DissolveSequences
from passes.rewriting.base import Budget, Context
from tests.passes.device import Device
from tests.passes.harness import Array, all_nodes, apply, feeds, model, operators, run

ABC = "float[2,3] a, float[2,3] b, float[4,3] c"


def dissolved(text: str, *, opset: int = 17, **constants: Any) -> list[str]:
    """The operators that remain of a main graph of a, b and c, after all that every rewrite owes."""
    m = model(text, opset=opset, **constants)
    apply(DissolveSequences(), m)
    return operators(m)


def at(position: int) -> Array:
    return np.array(position)


def test_lengths_that_decide_on_lengths() -> None:
    """Each branch is known only once the sequence before it is: as many visits as there are branches."""
    count = 12
    steps = "".join(
        f"""n{i} = SequenceLength(s{i}) c{i} = Equal(n{i}, k{i})
            s{i + 1} = If(c{i}) <then_branch = t{i} () => (seq(float[2,3]) u{i}) {{ u{i} = SequenceInsert(s{i}, b) }},
                                else_branch = e{i} () => (seq(float[2,3]) v{i}) {{ v{i} = SequenceErase(s{i}) }}>"""
        for i in range(count)
    )
    text = f"({ABC}) => (int64 n) {{ s0 = SequenceConstruct(a) {steps} n = SequenceLength(s{count}) }}"
    constants, length = {}, 1
    for i in range(count):
        constants[f"k{i}"] = at(-1 if i % 3 == 2 else length)
        length += -1 if i % 3 == 2 else 1
    assert dissolved(text, **constants) == ["Identity"]


def test_sequences_of_constants_in_a_loop() -> None:
    """What depends on constants only is computed while a body is copied, if it is a tensor."""
    text = """(float[3] x) => (float[3] y) { y = Loop(two, yes, x) <body = b (int64 i, bool c, float[3] r)
        => (bool d, float[3] o) { s = SequenceConstruct(k) t = SequenceInsert(s, k) u = SequenceAt(t, last)
        o = Add(r, u) d = Identity(c) }> }"""
    m = model(text, two=at(2), yes=np.array(True), k=np.arange(3, dtype=np.float32), last=at(-1))
    apply(DissolveSequences(), m)
    assert "Loop" not in operators(m)


class TestElements:
    @pytest.mark.parametrize(("position", "rows"), [(0, 2), (-1, 4), (2, 4), (-3, 2)])
    def test_construct_and_at(self, position: int, rows: int) -> None:
        text = f"({ABC}) => (float[{rows},3] y) {{ s = SequenceConstruct(a, b, c) t = SequenceAt(s, p) y = Neg(t) }}"
        assert dissolved(text, p=at(position)) == ["Neg"]

    def test_an_output_of_the_model(self) -> None:
        text = f"({ABC}) => (float[4,3] y) {{ s = SequenceConstruct(a, b, c) y = SequenceAt(s, p) }}"
        assert dissolved(text, p=at(2)) == ["Identity"]

    def test_insert_and_erase(self) -> None:
        text = f"""({ABC}) => (float[2,3] y, int64 n) {{ e = SequenceEmpty()
            s = SequenceInsert(e, a) t = SequenceInsert(s, c, zero)
            u = SequenceInsert(t, b, last) v = SequenceErase(u, zero) w = SequenceErase(v) x = SequenceAt(w, zero)
            y = Add(x, b) n = SequenceLength(v) }}"""
        assert dissolved(text, zero=at(0), last=at(-1)) == ["Add", "Identity"]

    def test_aliases(self) -> None:
        text = f"""({ABC}) => (float[2,3] y) {{ s = SequenceConstruct(a, b) t = Identity(s)
            x = SequenceAt(t, one) y = Neg(x) }}"""
        assert dissolved(text, one=at(1)) == ["Neg"]

    @pytest.mark.parametrize("position", [0, 1, -1, -2])
    def test_a_position_that_is_not_constant(self, position: int) -> None:
        text = """(float[2,3] a, float[2,3] b, int64 p) => (float[2,3] y)
            { s = SequenceConstruct(a, b) y = SequenceAt(s, p) }"""
        m = model(text)
        apply(DissolveSequences(), m, inputs={**feeds(ir.to_proto(m)), "p": at(position)})
        assert operators(m) == ["Unsqueeze", "Unsqueeze", "Concat", "Gather"]

    @pytest.mark.parametrize(("attributes", "shape"), [("axis = 0", "8,3"), ("axis = -2", "8,3")])
    def test_concat(self, attributes: str, shape: str) -> None:
        text = f"""({ABC}) => (float[{shape}] y)
            {{ s = SequenceConstruct(a, b, c) y = ConcatFromSequence <{attributes}> (s) }}"""
        assert dissolved(text) == ["Concat"]

    @pytest.mark.parametrize(("axis", "shape"), [(0, "2,2,3"), (-1, "2,3,2"), (1, "2,2,3")])
    def test_concat_along_a_new_axis(self, axis: int, shape: str) -> None:
        text = f"""(float[2,3] a, float[2,3] b) => (float[{shape}] y) {{ s = SequenceConstruct(a, b)
            y = ConcatFromSequence <axis = {axis}, new_axis = 1> (s) }}"""
        assert dissolved(text) == ["Unsqueeze", "Unsqueeze", "Concat"]


class TestSplit:
    @pytest.mark.parametrize("opset", [11, 13, 17])
    @pytest.mark.parametrize(
        ("split", "attributes", "position"),
        [
            (np.array([1, 2, 3]), "", 1),
            (np.array(4), "", 1),
            (np.array(2), "", -1),
            (None, "<keepdims = 0>", 2),
            (None, "<keepdims = 1>", 2),
            (np.array([1, 1, 1, 1, 1, 1]), "<keepdims = 0>", 2),
            (np.array(6), "", 0),
        ],
    )
    def test_split(self, opset: int, split: Array | None, attributes: str, position: int) -> None:
        inputs = "x" if split is None else "x, split"
        text = f"""(float[6,2] x) => (float[D, E] y, int64 n) {{ s = SplitToSequence {attributes} ({inputs})
            t = SequenceAt(s, p) y = Neg(t) n = SequenceLength(s) }}"""
        if split is None and "0" in attributes:
            text = text.replace("float[D, E]", "float[D]")
        given = {"p": at(position)} | ({} if split is None else {"split": split})
        left = dissolved(text, opset=opset, **given)
        assert not [each for each in left if "Sequence" in each]

    def test_another_axis(self) -> None:
        text = """(float[2,6] x) => (float[2,12] y) { s = SplitToSequence <axis = -1> (x, two) t = SequenceAt(s, zero)
            u = SequenceInsert(s, t) v = SequenceInsert(u, x, zero) w = SequenceErase(v)
            y = ConcatFromSequence <axis = 1> (w) }"""
        assert dissolved(text, two=at(2), zero=at(0)) == ["Split", "Concat"]


class TestControlFlow:
    def test_a_loop_that_fills_a_sequence(self) -> None:
        text = """(float[3] x) => (float[3,3] y) { e = SequenceEmpty() s = Loop <
            body = b (int64 i, bool c, seq(float[3]) q) => (bool d, seq(float[3]) r)
            { d = Identity(c) f = Cast<to = 1>(i) v = Mul(x, f) r = SequenceInsert(q, v) }>
            (n, yes, e) y = ConcatFromSequence <axis = 0, new_axis = 1> (s) }"""
        left = dissolved(text, n=at(3), yes=np.array(True))
        assert left == ["Mul"] * 3 + ["Unsqueeze"] * 3 + ["Concat"]

    def test_a_loop_over_a_sequence(self) -> None:
        """The number of iterations is known once the sequence is."""
        text = f"""({ABC}) => (float[3] y) {{ s = SequenceConstruct(a, b, c) n = SequenceLength(s) y = Loop <
            body = l (int64 i, bool k, float[3] v) => (bool d, float[3] w) {{ d = Identity(k) e = SequenceAt(s, i)
            m = ReduceMean<axes = [0], keepdims = 0>(e) w = Add(v, m) }}> (n, yes, zero) }}"""
        assert dissolved(text, yes=np.array(True), zero=np.zeros(3, np.float32)) == ["ReduceMean", "Add"] * 3

    def test_map(self) -> None:
        text = f"""({ABC}) => (float[8,3] y, int64[2] l) {{ s = SequenceConstruct(a, b, c) t, u = SequenceMap <
            body = m (float[M,3] e, float[3] k) => (float[M,3] f, int64[2] g) {{ f = Mul(e, k) g = Shape(e) }}> (s, k)
            y = ConcatFromSequence <axis = 0> (t) l = SequenceAt(u, last) }}"""
        m = model(text, k=np.arange(3, dtype=np.float32), last=at(-1))
        apply(DissolveSequences(), m)
        assert operators(m) == ["Mul"] * 3 + ["Concat", "Identity"]

    def test_map_of_two_sequences(self) -> None:
        text = """(float[2] a, float[2] b) => (float[4] y) { s = SequenceConstruct(a, b) r = SequenceConstruct(b, b)
            t = SequenceMap <body = m (float[2] e, float[2] f) => (float[2] g) { g = Sub(e, f) }> (s, r)
            y = ConcatFromSequence <axis = 0> (t) }"""
        assert dissolved(text) == ["Sub", "Sub", "Concat"]

    def test_within_a_branch(self) -> None:
        text = f"""({ABC}, bool q) => (float[2,3] y) {{ s = SequenceConstruct(a, b) y = If (q) <
            then_branch = t () => (float[2,3] d) {{ d = SequenceAt(s, one) }},
            else_branch = e () => (float[2,3] f) {{ r = SequenceInsert(s, c) g = SequenceAt(r, one) f = Neg(g) }}> }}"""
        m = model(text, one=at(1))
        apply(DissolveSequences(), m, inputs={**feeds(ir.to_proto(m)), "q": np.array(True)})
        assert set(operators(m)) == {"If", "Identity", "Neg"}

    def test_sequences_as_outputs(self) -> None:
        """The output is unchanged; one operator constructs the sequence."""
        text = f"""({ABC}) => (seq(float[M,3]) y) {{ e = SequenceEmpty() s = SequenceInsert(e, a) d = Neg(c)
            t = SequenceInsert(s, d) y = SequenceInsert(t, b, zero) }}"""
        m = model(text, zero=at(0))
        given = feeds_of(m)
        before = run(ir.to_proto(m), given)["y"]
        DissolveSequences().run(m, Context())
        assert operators(m) == ["Neg", "SequenceConstruct"]
        for one, other in zip(run(ir.to_proto(m), given)["y"], before, strict=True):
            np.testing.assert_array_equal(one, other)

    def test_sequences_as_inputs(self) -> None:
        text = "(seq(float[2]) s, float[2] a) => (float[2] y) { t = SequenceInsert(s, a) y = SequenceAt(t, zero) }"
        m = model(text, zero=at(0))
        assert not DissolveSequences().run(m, Context()).rewrites
        assert operators(m) == ["SequenceInsert", "SequenceAt"]


def feeds_of(m: ir.Model) -> dict[str, Array]:
    return feeds(onnx.ModelProto(graph=onnx.GraphProto(input=ir.to_proto(m).graph.input)))


class TestOptionals:
    def test_a_tensor(self) -> None:
        text = """(float[2] a) => (float[2] y, bool h) { o = Optional(a) t = OptionalGetElement(o) y = Neg(t)
            h = OptionalHasElement(o) }"""
        assert dissolved(text) == ["Neg", "Identity"]

    def test_a_sequence(self) -> None:
        text = """(float[2] a, float[2] b) => (float[2] y) { s = SequenceConstruct(a, b) o = Optional(s)
            t = OptionalGetElement(o) y = SequenceAt(t, one) }"""
        assert dissolved(text, one=at(1)) == ["Identity"]

    def test_no_optional(self) -> None:
        text = "(float[2] a) => (float[2] y, bool h) { t = OptionalGetElement(a) y = Neg(t) h = OptionalHasElement(a) }"
        m = model(text, opset=18)
        assert DissolveSequences().run(m, Context()).rewrites
        assert operators(m) == ["Neg", "Identity"]

    def test_it_decides_a_branch(self) -> None:
        text = """(float[2] a) => (float[2] y) { o = Optional<type = float[2]>() h = OptionalHasElement(o)
            n = Not(h) y = If (n) <
            then_branch = t () => (float[2] d) { s = SequenceConstruct(a, a) d = SequenceAt(s, zero) },
            else_branch = e () => (float[2] f) { f = OptionalGetElement(o) }> }"""
        m = empty_optional(text, zero=at(0))
        result = DissolveSequences().run(m, Context())
        assert result.rewrites
        assert operators(m) == ["Identity"]


def empty_optional(text: str, **constants: Array) -> ir.Model:
    """A model in whose text ``<type = float[2]>`` is the attribute of an Optional."""
    proto = ir.to_proto(model(text.replace("<type = float[2]>()", "(a)"), **constants))
    (node,) = [each for each in proto.graph.node if each.op_type == "Optional"]
    del node.input[:]
    kind = onnx.helper.make_tensor_type_proto(onnx.TensorProto.FLOAT, [2])
    node.attribute.append(onnx.helper.make_attribute("type", kind))
    return ir.from_proto(proto)


class TestSkips:
    @pytest.mark.parametrize(
        ("text", "reason"),
        [
            (
                f"({ABC}, int64 p) => (float[M,3] y) {{ s = SequenceConstruct(a, c) y = SequenceAt(s, p) }}",
                "the shapes of the elements differ",
            ),
            (
                "(float[N] a) => (int64 n) { s = SplitToSequence(a) n = SequenceLength(s) }",
                "the size of the split axis is unknown: freeze its shape",
            ),
            (
                "(float[4] a, int64[2] p) => (int64 n) { s = SplitToSequence(a, p) n = SequenceLength(s) }",
                "the split sizes are not constant: freeze them with --freeze NAME=VALUE",
            ),
            (
                "(float[4] a) => (int64 n) { s = SplitToSequence<axis = 1>(a) n = SequenceLength(s) }",
                "the input has no axis 1",
            ),
            (
                f"(float[{2**40}] a) => (int64 n) {{ s = SplitToSequence(a) n = SequenceLength(s) }}",
                "1,099,511,627,776 parts",
            ),
            (
                "(float[4] a) => (int64 n) <int64 p = {0}> { s = SplitToSequence(a, p) n = SequenceLength(s) }",
                "the parts have the size 0",
            ),
            (
                """(float[4] a, int64 p) => (int64 n)
                    { s = SequenceConstruct(a, a) t = SequenceErase(s, p) n = SequenceLength(t) }""",
                "the position is not constant",
            ),
        ],
    )
    def test_skips(self, text: str, reason: str) -> None:
        result = DissolveSequences().run(model(text), Context())
        assert not result.rewrites
        assert any(reason in skip.reason for skip in result.skips)

    def test_positions_beyond_the_end(self) -> None:
        text = "(float[2] a) => (float[2] y) { s = SequenceConstruct(a) y = SequenceAt(s, p) }"
        result = DissolveSequences().run(model(text, p=at(1)), Context())
        assert [skip.reason for skip in result.skips] == ["the position is out of range for a sequence of 1"]

    def test_models_without_sequences_are_only_looked_at(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def never(*_: object) -> None:
            raise AssertionError

        monkeypatch.setattr(Scope, "names", property(never))
        m = model("(float[2] a) => (float[2] y) { y = Neg(a) }")
        assert not DissolveSequences().run(m, Context()).rewrites

    def test_budget(self) -> None:
        text = f"({ABC}) => (float[2,3] y) {{ s = SequenceConstruct(a, b, c) t = SequenceAt(s, p) y = Neg(t) }}"
        m = model(text, p=at(0))
        assert not DissolveSequences().run(m, Context(budget=Budget(0))).rewrites
        assert [node.op_type for node in all_nodes(m)] == ["SequenceConstruct", "SequenceAt", "Neg"]


@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_any_edits(data: st.DataObject) -> None:
    """Random insertions and removals, at random places."""
    draw = data.draw
    lines, constants, length = ["s0 = SequenceConstruct(a, b)"], dict[str, Array](), 2
    steps = draw(st.integers(1, 6))
    for step in range(steps):
        name = f"p{step}"
        if draw(st.booleans()) or length == 1:
            constants[name] = at(draw(st.integers(-length, length)))
            lines.append(f"s{step + 1} = SequenceInsert(s{step}, {draw(st.sampled_from('abc'))}, {name})")
            length += 1
        else:
            constants[name] = at(draw(st.integers(-length, length - 1)))
            lines.append(f"s{step + 1} = SequenceErase(s{step}, {name})")
            length -= 1
    text = f"""({ABC}) => (float[N,3] y, int64 n) {{ {" ".join(lines)} y = ConcatFromSequence <axis = 0> (s{steps})
        n = SequenceLength(s{steps}) }}"""
    assert set(dissolved(text, **constants)) == {"Concat", "Identity"}


def test_migraphx_computes_the_same(device: Device) -> None:
    text = """(float[6,2] x) => (float[9,2] y) { s = SplitToSequence(x, three) t = SequenceAt(s, zero)
        u = SequenceMap <body = m (float[3,2] e) => (float[3,2] f) { f = Tanh(e) }> (s) v = SequenceInsert(u, t)
        y = ConcatFromSequence <axis = 0> (v) }"""
    m = model(text, three=at(3), zero=at(0))
    before = run(ir.to_proto(m))["y"]
    DissolveSequences().run(m, Context())
    proto = ir.to_proto(m)
    (found,) = device.run(proto)
    np.testing.assert_allclose(found, before, 1e-6)
