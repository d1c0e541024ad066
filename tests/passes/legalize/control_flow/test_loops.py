"""unroll-loop and mask-loop, compared with ONNX Runtime; and unknown numbers of iterations."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from passes.legalize.control_flow.loops import MaskLoop, UnrollLoop
from passes.rewriting.base import Context
from tests.passes.device import Device
from tests.passes.harness import Array, apply, feeds, model, operators, run, stops
from tests.passes.ml import why_not

COUNT = np.array(3)
YES, NO = np.array(True), np.array(False)
BODY = """body = b (int64 i, bool c, float[2] v) => (bool d, float[2] w, float[2] s)
    { d = Identity(c) f = Cast<to = 1>(i) p = Mul(v, k) w = Add(p, f) s = Sub(w, x) }"""


def loop(inputs: str = "n, yes, x", body: str = BODY, outputs: str = "y, s", **constants: Any) -> ir.Model:
    """A Loop over x, with ``constants`` in addition to the default ones."""
    declared = {"y": "float[2] y", "s": "float[T,2] s"}
    returned = ", ".join(declared[name.strip()] for name in outputs.split(",") if name.strip())
    given = {"n": COUNT, "yes": YES, "k": np.array([2.0, -1.0], np.float32)} | constants
    text = f"(float[2] x) => ({returned}) {{ {outputs} = Loop <{body}> ({inputs}) }}"
    return model(text, **{name: each for name, each in given.items() if name in text})


class TestUnroll:
    def test_iterations(self) -> None:
        apply(UnrollLoop(), m := loop(), rtol=0, atol=0)
        assert operators(m) == ["Mul", "Add", "Sub"] * 3 + ["Unsqueeze"] * 3 + ["Concat"]

    def test_constants_whose_shape_changes(self) -> None:
        """ONNX Runtime puts them one after the other; they have no stack."""
        m = model(
            """() => (float y) { w, s = Loop <body = b (int64 i, bool c, float v) => (bool d, float u, float t) {
                d = Identity(c) u = Unsqueeze(v, zero) t = Identity(v) }> (two, yes, start)
                y = ReduceSum <keepdims = 0> (s) }""",
            zero=np.array([0]),
            two=np.array(2),
            yes=YES,
            start=np.float32(3),
        )
        assert len(UnrollLoop().run(m, Context()).rewrites) == 1
        assert operators(m) == ["Unsqueeze", "Unsqueeze", "Concat", "ReduceSum"]

    def test_names_are_its_own(self) -> None:
        apply(UnrollLoop(), m := loop())
        names = [value.name for node in m.graph for value in node.outputs]
        assert len(set(names)) == len(names)
        assert names[-1] == "s"
        assert "y" in names

    @pytest.mark.parametrize("inputs", ["n, , x", "n, yes, x"])
    @pytest.mark.parametrize("opset", [11, 13, 17, 21])
    def test_opsets(self, inputs: str, opset: int) -> None:
        text = f"(float[2] x) => (float[2] y, float[T,2] s) {{ y, s = Loop <{BODY}> ({inputs}) }}"
        given = {"n": COUNT, "k": np.ones(2, np.float32)} | ({"yes": YES} if "yes" in inputs else {})
        apply(UnrollLoop(), m := model(text, opset=opset, **given))
        assert "Loop" not in operators(m)

    @pytest.mark.parametrize("zero", [{"n": np.array(0)}, {"yes": NO}, {"n": np.array(-4)}])
    def test_no_iterations(self, zero: dict[str, Array]) -> None:
        apply(UnrollLoop(), m := loop(**zero))
        assert set(operators(m)) == {"Identity"}

    def test_one_iteration(self) -> None:
        apply(UnrollLoop(), m := loop(n=np.array(1)))
        assert operators(m) == ["Mul", "Add", "Sub", "Unsqueeze"]

    def test_unused_outputs(self) -> None:
        m = loop()
        m.graph.outputs.pop()
        apply(UnrollLoop(), m)
        assert operators(m) == ["Mul", "Add"] * 3

    def test_an_iteration_that_constants_end(self) -> None:
        body = """body = b (int64 i, bool c, float[2] v) => (bool d, float[2] w, float[2] s)
            { d = Less(i, two) w = Mul(v, k) s = Identity(w) }"""
        m = loop(", yes, x", body, two=np.array(2))
        apply(UnrollLoop(), m)
        assert operators(m).count("Mul") == 3

    def test_carried_numbers_decide(self) -> None:
        text = """(float[2] x) => (float[2] y, int64[T] s) { y, last, s = Loop <
            body = b (int64 i, bool c, float[2] v, int64 m) => (bool d, float[2] w, int64 p, int64 q)
            { p = Mul(m, three) d = Less(p, end) w = Add(v, v) q = Identity(p) }> (, yes, x, one) }"""
        m = model(text, yes=YES, one=np.array(1), three=np.array(3), end=np.array(60))
        apply(UnrollLoop(), m)
        assert set(operators(m)) == {"Add", "Identity"}

    def test_ranks_that_the_body_declares(self) -> None:
        body = """body = b (int64[1] i, bool[1] c, float[2] v) => (bool[1] d, float[2] w, int64[1] s)
            { d = Identity(c) f = Cast<to = 1>(i) w = Add(v, f) s = Identity(i) }"""
        text = f"(float[2] x) => (float[2] y, int64[T,1] s) {{ y, s = Loop <{body}> (n, yes, x) }}"
        apply(UnrollLoop(), m := model(text, n=np.array([3]), yes=np.array([True])))
        assert operators(m) == ["Add"] * 3 + ["Identity"]

    def test_shapes_that_grow(self) -> None:
        text = """(float[2] x) => (float[N] y, int64 z) { y = Loop <
            body = b (int64 i, bool c, float[M] v) => (bool d, float[K] w)
            { d = Identity(c) w = Concat<axis = 0>(v, x) }> (n, yes, x) z = Size(y) }"""
        apply(UnrollLoop(), m := model(text, n=COUNT, yes=YES))
        assert operators(m) == ["Concat"] * 3 + ["Size"]
        assert m.graph[2].outputs[0].shape == ir.Shape([8])

    def test_shapes_that_iterations_imply(self) -> None:
        """The size and slices of an iteration are known, so that nothing is computed at run time."""
        text = """(float[6] x) => (float[2] y) { z = Constant<value_floats = [0.0, 0.0]>() y = Loop <
            body = b (int64 i, bool c, float[2] v) => (bool d, float[2] w) { d = Identity(c)
                h = Shape(v) a = Mul(h, i) e = Add(a, h) t = Slice(x, a, e) w = Add(v, t) }> (n, yes, z) }"""
        apply(UnrollLoop(), m := model(text, n=COUNT, yes=YES))
        assert operators(m) == ["Slice", "Add"] * 3

    def test_initializers_of_the_body_are_shared(self) -> None:
        m = loop(
            body=BODY.replace(")\n    {", ")\n    <float[2] own = {1.0, 2.0}> {").replace("Sub(w, x)", "Sub(w, own)")
        )
        apply(UnrollLoop(), m)
        assert [name for name in m.graph.initializers if "own" in name] == ["node_0/own"] or len(
            m.graph.initializers
        ) < 9

    def test_subgraphs_within(self) -> None:
        body = """body = b (int64 i, bool c, float[2] v) => (bool d, float[2] w, float[2] s) {
            d = Identity(c) m = ReduceMax<keepdims = 0>(v) q = Greater(m, limit)
            w = If (q) <then_branch = t () => (float[2] a) { a = Mul(v, x) },
                        else_branch = e () => (float[2] b) { b = Add(v, k) }>
            s = Neg(w) }"""
        m = loop(body=body, limit=np.array(1.5, np.float32))
        apply(UnrollLoop(), m)
        assert operators(m).count("If") == 3
        names = [value.name for node in m.graph.all_nodes() for value in node.outputs]
        assert len(set(names)) == len(names)

    def test_loops_within_loops(self) -> None:
        inner = "body = g (int64 j, bool c2, float[2] u) => (bool d2, float[2] r) { d2 = Identity(c2) r = Mul(u, v) }"
        body = f"""body = b (int64 i, bool c, float[2] v) => (bool d, float[2] w, float[2] s)
            {{ d = Identity(c) w = Loop <{inner}> (n, yes, x) s = Identity(w) }}"""
        apply(UnrollLoop(), m := loop(body=body), rtol=1e-4)
        assert operators(m).count("Mul") == 9
        assert "Loop" not in operators(m)

    def test_in_a_branch(self) -> None:
        text = f"""(float[2] x, bool q) => (float[2] z) {{ z = If (q) <
            then_branch = t () => (float[2] y) {{ y, s = Loop <{BODY}> (n, yes, x) }},
            else_branch = e () => (float[2] e) {{ e = Neg(x) }}> }}"""
        m = model(text, n=COUNT, yes=YES, k=np.ones(2, np.float32))
        apply(UnrollLoop(), m, inputs={"x": np.ones(2, np.float32), "q": YES})
        assert "Loop" not in operators(m)

    def test_budget(self) -> None:
        assert stops(UnrollLoop(), loop(), 0) == 0

    def test_limit(self) -> None:
        body = BODY.replace("d = Identity(c)", "d = Less(i, end)")
        m = loop(", yes, x", body, end=np.array(50))
        assert "more than 100 nodes" in why_not(UnrollLoop(max_nodes=100), m)
        apply(UnrollLoop(), m)

    @pytest.mark.parametrize(
        ("m", "reason"),
        [
            (loop(n=np.array(5000)), "more than 4096 nodes"),
            (loop(", yes, x"), "does not terminate"),
            (
                model(
                    f"(float[2] x, int64 n) => (float[2] y, float[T,2] s) {{ y, s = Loop <{BODY}> (n, yes, x) }}",
                    yes=YES,
                    k=np.ones(2, np.float32),
                ),
                "the trip count is not constant: freeze it with --freeze NAME=VALUE",
            ),
            (
                model(
                    f"(float[2] x, bool q) => (float[2] y, float[T,2] s) {{ y, s = Loop <{BODY}> (n, q, x) }}",
                    n=COUNT,
                    k=np.ones(2, np.float32),
                ),
                "first iteration",
            ),
            (
                loop(body=BODY.replace("d = Identity(c)", "m = ReduceMax<keepdims = 0>(v) d = Less(m, m)")),
                "when the loop ends",
            ),
        ],
    )
    def test_skips(self, m: ir.Model, reason: str) -> None:
        assert reason in why_not(UnrollLoop(), m)


MASKED = """body = b (int64 i, bool c, float[2] v, bool o, int64 t) => (bool d, float[2] w, bool p, int64 u)
    { w = Mul(v, k) m = ReduceMax<keepdims = 0>(w) d = Less(m, end) p = Not(o) u = Add(i, t) }"""


def masked(count: int = 6, condition: str = "q", body: str = MASKED) -> ir.Model:
    """A Loop that ends when a carried value becomes too large."""
    text = f"""(float[2] x, bool q) => (float[2] y, bool z, int64 u)
        {{ y, z, u = Loop <{body}> (n, {condition}, x, yes, one) }}"""
    k, end = np.array([1.5, 2.0], np.float32), np.array(10, np.float32)
    given = {"n": np.array(count), "yes": YES, "one": np.array(1), "k": k, "end": end, "six": np.array([6])}
    return model(text, **{name: each for name, each in given.items() if f"{name})" in text or f"{name}," in text})


class TestMask:
    @pytest.mark.parametrize("condition", ["q", "yes", ""])
    @pytest.mark.parametrize("begins", [False, True])
    @pytest.mark.parametrize("start", [0.1, 1.0, 4.0, 20.0])
    def test_iterations(self, condition: str, begins: bool, start: float) -> None:
        m = masked(condition=condition)
        given = {"x": np.array([start, start], np.float32), "q": np.array(begins)}
        apply(MaskLoop(), m, inputs=given)
        assert "Loop" not in operators(m)
        assert operators(m).count("Mul") == 6

    @pytest.mark.parametrize(
        ("m", "reason"),
        [
            (masked(count=33), "more than 32 iterations"),
            (
                masked(body=MASKED.replace("p = Not(o)", "p = Not(o) h = Div(t, i)")),
                "Div of integers may divide by zero",
            ),
            (masked(body=MASKED.replace("p = Not(o)", "p = Not(o) h = RandomNormal<shape = [1]>()")), "is random"),
            (masked(body=MASKED.replace("p = Not(o)", "p = Not(o) h = Gather(v, i)")), "out of range"),
        ],
    )
    def test_skips(self, m: ir.Model, reason: str) -> None:
        assert reason in why_not(MaskLoop(), m)

    def test_carried_shapes_that_change(self) -> None:
        text = """(float[2] x, bool q) => (float[N] y) { y = Loop <body = b (int64 i, bool c, float[M] v)
            => (bool d, float[K] w) { d = Identity(q) w = Concat<axis = 0>(v, x) }> (n, q, x) }"""
        assert "a loop-carried value changes" in why_not(MaskLoop(), model(text, n=COUNT))

    def test_scan_outputs(self) -> None:
        text = f"(float[2] x, bool q) => (float[2] y, float[T,2] s) {{ y, s = Loop <{BODY}> (n, q, x) }}"
        assert "scan outputs" in why_not(MaskLoop(), model(text, n=COUNT, k=np.ones(2, np.float32)))


@settings(max_examples=30, deadline=None)
@given(data=st.data())
def test_any_body(data: st.DataObject) -> None:
    """Random bodies of carried and captured values and the iteration number."""
    draw = data.draw
    have = ["v", "x", "f", "k"]
    lines = []
    for index in range(draw(st.integers(1, 5))):
        operator = draw(st.sampled_from(["Add", "Mul", "Sub", "Neg", "Tanh"]))
        operands = [draw(st.sampled_from(have)) for _ in range(1 if operator in ("Neg", "Tanh") else 2)]
        lines.append(f"t{index} = {operator}({', '.join(operands)})")
        have.append(f"t{index}")
    last, scanned = draw(st.sampled_from(have[4:])), draw(st.sampled_from(have))
    body = f"""body = b (int64 i, bool c, float[2] v) => (bool d, float[2] w, float[2] s)
        {{ d = Less(i, end) f0 = Cast<to = 1>(i) f = Mul(f0, k) {" ".join(lines)}
        w = Tanh({last}) s = Identity({scanned}) }}"""
    m = loop("n, yes, x", body, n=np.array(draw(st.integers(0, 5))), end=np.array(draw(st.integers(-1, 5))))
    assert apply(UnrollLoop(), m).rewrites
    assert "Loop" not in operators(m)


def test_migraphx_computes_the_same(device: Device) -> None:
    for rule, m in ((UnrollLoop(), loop()), (MaskLoop(), masked())):
        rule.run(m, Context())
        proto = ir.to_proto(m)
        given = feeds(proto)
        found = device.run(proto, given)
        for each, expected in zip(found, run(proto, given).values(), strict=True):
            np.testing.assert_allclose(each.reshape(expected.shape), expected, 1e-5)
