"""merge-transposes: what two permutations come to, and when both have to stay."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from passes.fusion.merge_transposes import merge_transposes
from passes.graphs import lineage
from passes.rewriting.base import Context
from tests.passes.harness import apply, model, operators, reasons, stops


class TestMatches:
    @pytest.mark.parametrize(
        ("first", "second", "merged"),
        [
            ("<perm=[1,2,0]>", "<perm=[0,2,1]>", [1, 0, 2]),
            ("<perm=[2,0,1]>", "<perm=[2,0,1]>", [1, 2, 0]),
            ("", "<perm=[1,2,0]>", [1, 0, 2]),
            ("<perm=[1,2,0]>", "", [0, 2, 1]),
        ],
    )
    def test_two_become_one(self, first: str, second: str, merged: list[int]) -> None:
        m = model(f"(float[2,3,4] x) => (float[] y) {{ a = Transpose{first}(x) y = Transpose{second}(a) }}")
        apply(merge_transposes, m)
        assert operators(m) == ["Transpose"]
        assert list(m.graph[0].attributes["perm"].as_ints()) == merged
        assert m.graph[0].inputs[0] is m.graph.inputs[0]

    @pytest.mark.parametrize(
        ("first", "second"),
        [("", ""), ("<perm=[1,2,0]>", "<perm=[2,0,1]>"), ("<perm=[2,1,0]>", ""), ("", "<perm=[2,1,0]>")],
    )
    def test_inverses_vanish(self, first: str, second: str) -> None:
        m = model(
            f"(float[2,3,4] x) => (float[2,3,4] y) {{ a = Transpose{first}(x) b = Transpose{second}(a) y = Neg(b) }}"
        )
        result = apply(merge_transposes, m)
        assert operators(m) == ["Neg"]
        assert [rewrite.after for rewrite in result.rewrites] == [()]

    def test_neither_says_how_many_axes_there_are(self) -> None:
        m = model("(float x) => (float y) { a = Transpose(x) b = Transpose(a) y = Neg(b) }")
        apply(merge_transposes, m, inputs={"x": np.array(1.5, np.float32)})
        assert operators(m) == ["Neg"]

    def test_an_output_keeps_its_name(self) -> None:
        m = model("(float[2,3] x) => (float[2,3] y) { a = Transpose(x) y = Transpose(a) }")
        apply(merge_transposes, m)
        assert operators(m) == ["Identity"]
        m = model("(float[2,3] x) => (float[2,3] y) { n = Neg(x) a = Transpose(n) y = Transpose(a) }")
        apply(merge_transposes, m)
        assert operators(m) == ["Neg"]

    def test_a_chain(self) -> None:
        m = model("""(float[2,3,4] x) => (float[] y)
            { a = Transpose<perm=[1,2,0]>(x) b = Transpose<perm=[0,2,1]>(a) c = Transpose<perm=[1,2,0]>(b)
              d = Transpose<perm=[2,1,0]>(c) y = Neg(d) }""")
        apply(merge_transposes, m)
        assert len(operators(m)) == 2

    def test_one_before_two(self) -> None:
        m = model("""(float[2,3,4] x) => (float[] y, float[] z)
            { a = Transpose<perm=[1,2,0]>(x) y = Transpose<perm=[0,2,1]>(a) z = Transpose<perm=[1,0,2]>(a) }""")
        apply(merge_transposes, m)
        assert operators(m) == ["Transpose", "Transpose"]

    def test_a_result_that_is_there_already(self) -> None:
        m = model(
            "(float[2,3] x) => (float[] y, float[] z) { a = Transpose(x) b = Transpose(a) y = Neg(a) z = Neg(b) }"
        )
        apply(merge_transposes, m)
        assert operators(m) == ["Transpose", "Neg", "Neg"]

    def test_names_and_origins(self) -> None:
        m = model(
            """(float[2,3,4] x) => (float[] z)
            { a = Transpose<perm=[1,2,0]>(x) y = Transpose<perm=[0,2,1]>(a) z = Neg(y) }"""
        )
        for node, name in zip(m.graph, ("first", "second", "neg"), strict=True):
            node.name = name
        apply(merge_transposes, m)
        assert m.graph[0].outputs[0].name == "y"
        assert set(json.loads(m.graph[0].metadata_props[lineage.ORIGIN])) == {"first", "second"}


class TestScopes:
    def test_a_subgraph(self) -> None:
        m = model("""(float[2,3] x, bool c) => (float[2,3] y) { y = If (c) <
            then_branch = t () => (float[2,3] r) { a = Transpose(x) b = Transpose(a) r = Neg(b) },
            else_branch = e () => (float[2,3] q) { q = Identity(x) }> }""")
        apply(merge_transposes, m, inputs={"x": np.ones((2, 3), np.float32), "c": np.array(True)})
        assert "Transpose" not in operators(m)

    def test_the_first_is_outside(self) -> None:
        m = model("""(float[2,3] x, bool c) => (float[2,3] y) { a = Transpose(x) y = If (c) <
            then_branch = t () => (float[2,3] r) { r = Transpose(a) },
            else_branch = e () => (float[2,3] q) { q = Identity(x) }> }""")
        result = apply(merge_transposes, m, inputs={"x": np.ones((2, 3), np.float32), "c": np.array(True)})
        assert not result.rewrites
        assert "outer graph" in reasons(result)[0]

    @pytest.mark.parametrize("hidden", [True, False])
    def test_a_name_that_a_subgraph_hides(self, hidden: bool) -> None:
        inner = "x" if hidden else "v"
        m = model(f"""(float[2,3] x, int64 n, bool c) => (float[2,3] y)
            {{ a = Transpose(x) b = Transpose(a) z = Neg(x) y = Loop (n, c, z) <
               body = l (int64 i, bool k, float[2,3] {inner}) => (bool o, float[2,3] w)
                   {{ o = Identity(k) w = Add({inner}, b) }}> }}""")
        inputs = {"x": np.arange(6, dtype=np.float32).reshape(2, 3), "n": np.array(2), "c": np.array(True)}
        result = apply(merge_transposes, m, inputs=inputs)
        assert ("Transpose" in operators(m)) == hidden
        if hidden:
            assert "a subgraph calls another value by the same name" in reasons(result)[0]

    def test_a_function(self) -> None:
        body = "local.f (x) => (y) { a = Transpose<perm=[1,2,0]>(x) y = Transpose<perm=[0,2,1]>(a) }"
        functions = f'<domain: "local", opset_import: ["": 17]> {body.replace("local.", "")}'
        m = model("(float[2,3,4] x) => (float[] y) { y = local.f(x) }", functions=functions)
        apply(merge_transposes, m)
        assert operators(m) == ["f", "Transpose"]

    def test_a_permutation_that_the_caller_gives(self) -> None:
        functions = """<domain: "local", opset_import: ["": 17]>
            f <p> (x) => (y) { a = Transpose<perm: ints = @p>(x) y = Transpose<perm=[0,2,1]>(a) }"""
        m = model("(float[2,3,4] x) => (float[] y) { y = local.f <p=[2,1,0]> (x) }", functions=functions)
        result = apply(merge_transposes, m)
        assert reasons(result) == ["the caller of the function supplies the permutation"]


class TestSkips:
    def test_used_elsewhere(self) -> None:
        m = model("""(float[2,3,4] x) => (float[] y, float[] z)
            { a = Transpose<perm=[1,2,0]>(x) y = Transpose<perm=[0,2,1]>(a) z = Neg(a) }""")
        assert reasons(apply(merge_transposes, m)) == ["a is used elsewhere"]

    def test_an_output(self) -> None:
        m = model("""(float[2,3,4] x) => (float[] y, float[] a)
            { a = Transpose<perm=[1,2,0]>(x) y = Transpose<perm=[0,2,1]>(a) }""")
        assert reasons(apply(merge_transposes, m)) == ["a is used elsewhere"]

    def test_the_budget(self) -> None:
        body = " ".join(f"a{i} = Transpose(x) b{i} = Transpose(a{i}) y{i} = Neg(b{i})" for i in range(3))
        m = model(f"(float[2,3] x) => (float[2,3] y0, float[2,3] y1, float[2,3] y2) {{ {body} }}")
        assert stops(merge_transposes, m, 2) == 2
        assert operators(m).count("Transpose") == 2


@settings(max_examples=40, deadline=None, derandomize=True)
@given(st.integers(1, 4).flatmap(lambda n: st.lists(st.permutations(range(n)), min_size=2, max_size=5)))
def test_any_chain(permutations: list[list[int]]) -> None:
    rank = len(permutations[0])
    body = " ".join(f"a{i + 1} = Transpose<perm={p}>(a{i})" for i, p in enumerate(permutations))
    shape = ",".join(map(str, (2, 3, 4, 5)[:rank]))
    m = model(f"(float[{shape}] a0) => (float[] y) {{ {body} y = Neg(a{len(permutations)}) }}")
    apply(merge_transposes, m)
    assert operators(m).count("Transpose") < 2


def test_a_constant_that_is_an_output_too() -> None:
    m = model(
        "(float[2] x) => (float[1,2] c, float[2,1] y) { c = Constant<value = float[1,2] {1, 2}>() y = Transpose(c) }"
    )
    assert not merge_transposes.run(m, Context()).rewrites
