"""join-branches: an If whose branches may both be computed."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from passes.legalize.control_flow.conditionals import JoinBranches
from passes.rewriting.base import Context
from tests.passes.device import Device
from tests.passes.harness import apply, model, operators, run
from tests.passes.ml import why_not

X = np.array([1.5, -2.0, 3.0], np.float32)


def branches(
    then: str = "a = Mul(x, k)",
    otherwise: str = "b = Add(x, x)",
    *,
    condition: str = "bool q",
    kind: str = "float[3]",
    opset: int = 17,
    more: str = "",
    **constants: Any,
) -> ir.Model:
    """An If whose branches make a and b."""
    text = f"""(float[3] x, {condition}{more}) => ({kind} y) {{ y = If (q) <
        then_branch = t () => ({kind} a) {{ {then} }}, else_branch = e () => ({kind} b) {{ {otherwise} }}> }}"""
    given = {"k": X, "i": np.array([1, 0, 2])} | constants
    return model(text, opset=opset, **{name: each for name, each in given.items() if f"{name})" in text})


def both(m: ir.Model, shape: tuple[int, ...] = (), **more: Any) -> None:
    """The same numbers, whichever branch is taken."""
    for taken in (True, False):
        copy = m.clone()
        assert apply(JoinBranches(), copy, inputs={"x": X, "q": np.full(shape, taken), **more}).rewrites
        assert "If" not in operators(copy)


@pytest.mark.parametrize("opset", [11, 13, 17, 21])
def test_branches(opset: int) -> None:
    m = branches(opset=opset)
    both(m)
    JoinBranches().run(m, Context())
    assert operators(m) == ["Mul", "Add", "Where"]


@pytest.mark.parametrize(("condition", "shape"), [("bool[1] q", (1,)), ("bool[1,1] q", (1, 1))])
def test_ranks_of_the_condition(condition: str, shape: tuple[int, ...]) -> None:
    both(
        branches(
            condition=condition,
            kind="float",
            then="a = ReduceMax<keepdims = 0>(x)",
            otherwise="b = ReduceMin<keepdims = 0>(x)",
        ),
        shape,
    )


def test_booleans() -> None:
    m = branches("a = Less(x, k)", "b = Greater(x, k)", kind="bool[3]")
    both(m)
    JoinBranches().run(m, Context())
    assert "Where" not in operators(m)


def test_constants() -> None:
    both(branches("a = Constant<value_floats = [1.0, 2.0, 3.0]>()", "b = Identity(x)"))


def test_one_within_the_other() -> None:
    inner = """a = If (q) <then_branch = t2 () => (float[3] c) { c = Neg(x) },
        else_branch = e2 () => (float[3] d) { d = Abs(x) }>"""
    both(branches(inner))


@pytest.mark.parametrize(
    ("m", "reason"),
    [
        (
            branches("a = Concat<axis = 0>(x, x)", kind="float[N]"),
            "results of the branches differ: FLOAT[6] and FLOAT[3]",
        ),
        (branches("a = NonZero(x)", "b = NonZero(x)", kind="int64[1,N]"), "is unknown"),
        (branches("n = Cast<to = 7>(x) m = Div(n, n) a = Cast<to = 1>(m)"), "Div of integers may divide by zero"),
        (branches("a = Gather(x, j)", more=", int64[3] j"), "the indices of Gather may be out of range"),
        (branches("a = Reshape(z, s)", more=", float[N] z", s=np.array([3])), "Reshape may not take the sizes of z"),
        (branches("m = Add(z, x) a = Identity(m)", more=", float[N] z"), "Add may not take the sizes of z"),
        (branches("a = RandomNormalLike(x)"), "RandomNormalLike is random"),
        (branches("m = MatMul(x, x) a = Mul(x, m)"), "a branch is expensive: it has MatMul"),
        (
            branches(" ".join(["a0 = Neg(x)", *(f"a{i + 1} = Neg(a{i})" for i in range(70)), "a = Neg(a70)"])),
            "72 nodes",
        ),
        (branches(opset=8), "needs opset 9"),
    ],
)
def test_skips(m: ir.Model, reason: str) -> None:
    assert reason in why_not(JoinBranches(), m)


def test_harmless_indices() -> None:
    both(branches("a = Gather(x, i)"))


def test_a_constant_condition_is_none_of_its_business() -> None:
    text = """(float[3] x) => (float[3] y) { y = If (q) <then_branch = t () => (float[3] a) { a = Neg(x) },
        else_branch = e () => (float[3] b) { b = Abs(x) }> }"""
    result = JoinBranches().run(model(text, q=np.array(True)), Context())
    assert not result.rewrites
    assert not result.skips


@settings(max_examples=30, deadline=None)
@given(data=st.data())
def test_any_branches(data: st.DataObject) -> None:
    """Random elementwise branches of captured values."""
    draw = data.draw

    def branch(name: str) -> str:
        have, lines = ["x", "k"], []
        for index in range(draw(st.integers(1, 4))):
            operator = draw(st.sampled_from(["Add", "Mul", "Max", "Neg", "Relu", "Sqrt", "Div"]))
            count = 1 if operator in ("Neg", "Relu", "Sqrt") else 2
            lines.append(f"{name}{index} = {operator}({', '.join(draw(st.sampled_from(have)) for _ in range(count))})")
            have.append(f"{name}{index}")
        return " ".join([*lines, f"{name} = Identity({have[-1]})"])

    text = (
        f"(float[3] x, bool q) => (float[3] y) {{ y = If (q) <then_branch = t () => (float[3] a) {{ {branch('a')} }}, "
    )
    text += f"else_branch = e () => (float[3] b) {{ {branch('b')} }}> }}"
    both(model(text, k=X))


def test_migraphx_computes_the_same(device: Device) -> None:
    for m in (branches(), branches("a = Less(x, k)", "b = Greater(x, k)", kind="bool[3]")):
        JoinBranches().run(m, Context())
        proto = ir.to_proto(m)
        for taken in (True, False):
            given = {"x": X, "q": np.array(taken)}
            (found,) = device.run(proto, given)
            np.testing.assert_array_equal(found, run(proto, given)["y"])
