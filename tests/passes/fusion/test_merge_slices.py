"""merge-slices: bounds of several axes side by side, those of one axis composed, and when both Slices stay."""

from __future__ import annotations

import json

import numpy as np
import onnx_ir as ir
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from passes.fusion.merge_slices import merge_slices
from passes.graphs import lineage
from passes.graphs.scopes import DISPUTED
from passes.rewriting.base import Context
from tests.passes.harness import apply, model, operators, reasons, run, stops

END = 2**63 - 1


def ints(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


def bounds(m: ir.Model) -> list[list[int]]:
    """Starts, ends, axes and steps of the only Slice."""
    (node,) = [node for node in m.graph if node.op_type == "Slice"]
    tensors = [value.const_value for value in node.inputs[1:] if value is not None]
    return [list(tensor.numpy()) for tensor in tensors if tensor is not None]


class TestMatches:
    def test_different_axes(self) -> None:
        m = model(
            "(float[4,n,6] x) => (float[] y) { a = Slice(x, s, e, i) y = Slice(a, u, v, j) }",
            s=ints(1),
            e=ints(END),
            i=ints(2),
            u=ints(-2, 0),
            v=ints(END, 3),
            j=ints(1, 0),
        )
        apply(merge_slices, m)
        assert operators(m) == ["Slice"]
        assert bounds(m) == [[0, -2, 1], [3, END, END], [0, 1, 2]]
        assert m.graph[0].inputs[0] is m.graph.inputs[0]

    def test_steps(self) -> None:
        m = model(
            "(float[4,5] x) => (float[] y) { a = Slice(x, s, e, i, t) y = Slice(a, u, v, j) }",
            s=ints(1),
            e=ints(END),
            i=ints(-1),
            t=ints(2),
            u=ints(0),
            v=ints(2),
            j=ints(0),
        )
        apply(merge_slices, m)
        assert bounds(m) == [[0, 1], [2, END], [0, 1], [1, 2]]

    def test_backwards_along_another_axis(self) -> None:
        m = model(
            "(float[4,5] x) => (float[] y) { a = Slice(x, s, e, i, t) y = Slice(a, u, v, j) }",
            s=ints(-1),
            e=ints(-(2**63)),
            i=ints(1),
            t=ints(-1),
            u=ints(1),
            v=ints(3),
            j=ints(0),
        )
        apply(merge_slices, m)
        assert bounds(m) == [[1, -1], [3, -(2**63)], [0, 1], [1, -1]]

    def test_the_same_axis(self) -> None:
        m = model(
            "(float[10] x) => (float[] y) { a = Slice(x, s, e, i, t) y = Slice(a, u, v) }",
            s=ints(1),
            e=ints(END),
            i=ints(0),
            t=ints(2),
            u=ints(-3),
            v=ints(-1),
        )
        apply(merge_slices, m)
        assert bounds(m) == [[5], [9], [0], [2]]

    def test_nothing_is_left(self) -> None:
        m = model(
            "(float[10] x) => (float[] y) { a = Slice(x, s, e) y = Slice(a, u, v) }",
            s=ints(5),
            e=ints(3),
            u=ints(0),
            v=ints(2),
        )
        apply(merge_slices, m)
        assert operators(m) == ["Slice"]

    def test_before_opset_10(self) -> None:
        m = model(
            """(float[4,5] x) => (float[] y)
            { a = Slice<starts=[1], ends=[3]>(x) y = Slice<axes=[1], starts=[0], ends=[2]>(a) }""",
            opset=9,
        )
        apply(merge_slices, m)
        assert operators(m) == ["Slice"]
        assert list(m.graph[0].attributes["axes"].as_ints()) == [0, 1]

    def test_operands_of_32_bits(self) -> None:
        m = model(
            "(float[4,5] x) => (float[] y) { a = Slice(x, s, e, s) y = Slice(a, z, e, z) }",
            s=np.array([1], np.int32),
            e=np.array([3], np.int32),
            z=np.array([0], np.int32),
        )
        apply(merge_slices, m)
        assert operators(m) == ["Slice"]

    def test_one_before_two(self) -> None:
        m = model(
            """(float[4,5] x) => (float[] y, float[] z)
            { a = Slice(x, s, e, i) y = Slice(a, s, e, j) z = Slice(a, e, f, j) }""",
            s=ints(0),
            e=ints(2),
            f=ints(5),
            i=ints(0),
            j=ints(1),
        )
        apply(merge_slices, m)
        assert operators(m) == ["Slice", "Slice"]

    def test_a_chain(self) -> None:
        m = model(
            """(float[4,5,6] x) => (float[] y)
            { a = Slice(x, s, e, i) b = Slice(a, s, e, j) c = Slice(b, s, e, k) y = Slice(c, s, e, k) }""",
            s=ints(1),
            e=ints(4),
            i=ints(0),
            j=ints(1),
            k=ints(2),
        )
        apply(merge_slices, m)
        assert bounds(m) == [[1, 1, 2], [4, 4, 4], [0, 1, 2]]

    def test_names_and_origins(self) -> None:
        m = model(
            "(float[4,5] x) => (float[] z) { a = Slice(x, s, e, s) y = Slice(a, o, e, o) z = Neg(y) }",
            s=ints(1),
            e=ints(3),
            o=ints(0),
        )
        for node, name in zip(m.graph, ("first", "second", "neg"), strict=True):
            node.name = name
        apply(merge_slices, m)
        assert m.graph[0].outputs[0].name == "y"
        assert set(json.loads(m.graph[0].metadata_props[lineage.ORIGIN])) == {"first", "second"}


class TestSkips:
    @pytest.mark.parametrize(
        ("body", "reason"),
        [
            ("a = Slice(x, one, three) y = Slice(a, one, k)", "are not constant"),
            ("a = Slice(x, k, three) y = Slice(a, one, three)", "are not constant"),
            ("a = Slice(x, one, three, one) y = Slice(a, one, three, one)", "whose size is not known"),
            ("a = Slice(x, back, low, zero, back) y = Slice(a, zero, one)", "one of them backwards"),
            ("a = Slice(x, zero, three) y = Slice(a, back, low, zero, back)", "one of them backwards"),
            ("a = Slice(x, one, three) y = Slice(a, one, three, one) z = Neg(a)", "a is used elsewhere"),
        ],
    )
    def test_what_stays(self, body: str, reason: str) -> None:
        values = {"one": ints(1), "three": ints(3), "zero": ints(0), "back": ints(-1), "low": ints(-(2**63))}
        used = {name: value for name, value in values.items() if f", {name}" in body}
        m = model(f"(float[4,n] x, int64[1] k) => (float[] y) {{ {body} }}", **used)
        inputs = {"x": np.arange(24, dtype=np.float32).reshape(4, 6), "k": ints(2)}
        result = apply(merge_slices, m, inputs=inputs)
        assert not result.rewrites
        assert reason in reasons(result)[0]

    def test_an_output(self) -> None:
        m = model(
            "(float[4,5] x) => (float[] a, float[] y) { a = Slice(x, s, e, s) y = Slice(a, s, e, o) }",
            s=ints(1),
            e=ints(3),
            o=ints(0),
        )
        assert reasons(apply(merge_slices, m)) == ["a is used elsewhere"]

    def test_axes_from_the_end_of_an_unknown_number(self) -> None:
        m = model(
            "(float x) => (float y) { a = Slice(x, s, e, i) y = Slice(a, s, e, j) }",
            s=ints(1),
            e=ints(3),
            i=ints(-1),
            j=ints(0),
        )
        for value in (m.graph.inputs[0], m.graph[0].outputs[0], m.graph[1].outputs[0]):
            value.shape = None
        assert "the number of axes" in reasons(merge_slices.run(m, Context()))[0]

    def test_a_disputed_size(self) -> None:
        m = model(
            "(float[4] x) => (float[] y) { n = Neg(x) a = Slice(n, s, e) y = Slice(a, s, e) }", s=ints(1), e=ints(3)
        )
        m.graph[0].outputs[0].meta[DISPUTED] = True
        assert "whose size is not known" in reasons(merge_slices.run(m, Context()))[0]

    def test_the_budget(self) -> None:
        body = " ".join(f"a{i} = Slice(x, s, e, s) y{i} = Slice(a{i}, s, e, o)" for i in range(3))
        m = model(
            f"(float[4,5] x) => (float[] y0, float[] y1, float[] y2) {{ {body} }}", s=ints(1), e=ints(3), o=ints(0)
        )
        assert stops(merge_slices, m, 2) == 2
        assert operators(m).count("Slice") == 4


class TestScopes:
    def test_a_subgraph(self) -> None:
        m = model(
            """(float[4,5] x, bool c) => (float[2,5] y) { y = If (c) <
            then_branch = t () => (float[2,5] r) { a = Slice(x, s, e) r = Slice(a, z, e) },
            else_branch = f () => (float[2,5] q) { b = Slice(x, z, d) q = Identity(b) }> }""",
            s=ints(1),
            e=ints(3),
            z=ints(0),
            d=ints(2),
        )
        apply(merge_slices, m, inputs={"x": np.arange(20, dtype=np.float32).reshape(4, 5), "c": np.array(True)})
        assert operators(m).count("Slice") == 2

    def test_the_first_is_outside(self) -> None:
        """Merged, it would run as often as the body."""
        m = model(
            """(float[4,5] x, bool c) => (float[2,5] y) { a = Slice(x, s, e) y = If (c) <
            then_branch = t () => (float[2,5] r) { r = Slice(a, z, e) },
            else_branch = f () => (float[2,5] q) { q = Identity(a) }> }""",
            s=ints(1),
            e=ints(3),
            z=ints(0),
        )
        inputs = {"x": np.arange(20, dtype=np.float32).reshape(4, 5), "c": np.array(True)}
        assert not apply(merge_slices, m, inputs=inputs).rewrites

    def test_a_function(self) -> None:
        functions = """<domain: "local", opset_import: ["": 17]> f (x) => (y) {
            s = Constant<value_ints=[1]>() e = Constant<value_ints=[3]>() o = Constant<value_ints=[0]>()
            a = Slice(x, s, e, s) y = Slice(a, s, e, o) }"""
        m = model("(float[4,5] x) => (float[] y) { y = local.f(x) }", functions=functions)
        apply(merge_slices, m)
        assert operators(m) == ["f", "Slice"]


@st.composite
def slices(draw: st.DrawFn) -> list[list[int]]:
    """Start, end, axis and step, a list each."""
    axes = draw(st.lists(st.integers(-2, 1), min_size=1, max_size=2, unique_by=lambda axis: axis % 2))
    number = st.integers(-7, 7) | st.sampled_from([END, -(2**63)])
    each = [[draw(number), draw(number), axis, draw(st.sampled_from([1, 1, 2, 3, -1, -2]))] for axis in axes]
    return [list(column) for column in zip(*each, strict=True)]


@settings(max_examples=100, deadline=None, derandomize=True)
@given(slices(), slices())
def test_any_bounds(first: list[list[int]], second: list[list[int]]) -> None:
    constants = {
        f"{name}{i}": ints(*column) for name, each in (("a", first), ("b", second)) for i, column in enumerate(each)
    }
    m = model(
        "(float[5,6] x) => (float[] y) { m = Slice(x, a0, a1, a2, a3) s = Slice(m, b0, b1, b2, b3) y = Neg(s) }",
        **constants,
    )
    before = ir.to_proto(m)
    merge_slices.run(m, Context())
    x = {"x": np.arange(30, dtype=np.float32).reshape(5, 6)}
    np.testing.assert_array_equal(run(ir.to_proto(m), x)["y"], run(before, x)["y"], strict=True)
