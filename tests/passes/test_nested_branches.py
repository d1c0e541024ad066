"""Branches within branches, over what is known only once the outer one is gone: one run of the pipeline is enough."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper

from passes.rewriting.base import Context
from passes.rewriting.pipeline import Pipeline
from passes.specialize.freeze_inputs import FreezeInputs
from tests.passes.harness import run
from tests.passes.helpers import tiny

RATE = """{
    x3 = Unsqueeze(x, one)
    f = Conv<strides=[STEP]>(x3, wSTEP)
    a = Relu(f)
    s = Shape(a)
    r = Size(s)
    is3 = Equal(r, three)
    t = If(is3) <then_branch = t3 () => (t3) { t3 = Transpose<perm=[2,0,1]>(a) },
                 else_branch = t4 () => (t4) { t4 = Unsqueeze(a, zero) }>
    ts = Shape(t)
    d = Gather(ts, i1)
    isbatch = Equal(d, i1)
    u = If(isbatch) <
        then_branch = u1 () => (u1) {
            us = Shape(t)
            ur = Size(us)
            us3 = Equal(ur, three)
            u1 = If(us3) <then_branch = uu1 () => (uu1) { uu1 = Identity(t) },
                          else_branch = uu2 () => (uu2) { uu2 = Squeeze(t, zero) }>
        },
        else_branch = u2 () => (u2) { u2 = Flatten(t) }>
    h0, c0 = Split<axis=0>(state)
    y, h, c = LSTM<hidden_size=4>(u, lw, lr, lb, , h0, c0)
    q = Squeeze(y, one)
    ps = Shape(q)
    pd = Gather(ps, i1)
    isone = Equal(pd, i1)
    last = If(isone) <then_branch = l1 () => (l1) { l1 = Squeeze(q, one) },
                      else_branch = l2 () => (l2) { l2 = Identity(q) }>
    m = ReduceMean<axes=[0], keepdims=0>(last)
    g = Sigmoid(m)
    n = Concat<axis=0>(h, c)
}"""
"""One of the two networks of a voice detector, as TorchScript exports it."""


def branch(step: int, suffix: str) -> str:
    """A network as a branch whose names are its own."""
    text = RATE.replace("STEP", str(step))
    return f"{suffix} () => (g{suffix}, n{suffix}) {text}".replace("g = ", f"g{suffix} = ").replace(
        "n = ", f"n{suffix} = "
    )


def voice_detector() -> ir.Model:
    random = np.random.default_rng(0)
    weights = {
        name: random.standard_normal(shape).astype(np.float32) / 3
        for name, shape in {
            "w64": (6, 1, 64),
            "w32": (6, 1, 32),
            "lw": (1, 16, 6),
            "lr": (1, 16, 4),
            "lb": (1, 32),
        }.items()
    }
    text = f"""(float[1,256] x, float[2,1,4] state, int64 sr) => (float[b,f] p, float[2,1,4] next) {{
        is16 = Equal(sr, k16)
        p, next = If(is16) <then_branch = {branch(64, "a")}, else_branch = {branch(32, "b")}>
    }}"""
    return tiny(
        text,
        **weights,
        one=np.array([1]),
        zero=np.array([0]),
        i1=np.array(1),
        three=np.array(3),
        k16=np.array(16000),
    )


def cleaned(source: ir.Model, pipeline: str = "default", **frozen: Any) -> ir.Model:
    steps = (
        Pipeline([FreezeInputs(values={name: repr(value) for name, value in frozen.items()})]) if frozen else Pipeline()
    )
    return (steps + Pipeline.parse(pipeline)).run(source, Context())[-1].result.model


def operators(source: ir.Model) -> list[str]:
    return [node.op_type for node in source.graph.all_nodes()]


@pytest.mark.parametrize("rate", [16000, 8000])
def test_a_voice_detector(rate: int) -> None:
    source = voice_detector()
    proto = ir.to_proto(source)
    once = cleaned(source, sr=rate)
    assert "If" not in operators(once)
    recurrent = next(node for node in once.graph if node.op_type == "LSTM")
    assert all(value.shape is not None and value.shape.is_static() for value in recurrent.inputs if value is not None)
    random = np.random.default_rng(1)
    feeds = {"x": random.standard_normal((1, 256), np.float32), "state": random.standard_normal((2, 1, 4), np.float32)}
    expected = run(proto, {**feeds, "sr": np.array(rate)})
    for name, array in run(ir.to_proto(once), feeds).items():
        np.testing.assert_allclose(array, expected[name], 1e-5, 1e-5)


class Nest:
    """Random graphs of branches within branches, whose conditions are constants, ranks, sizes, or an input."""

    def __init__(self, draw: Any) -> None:
        self.draw = draw
        self.count = 0

    def name(self) -> str:
        self.count += 1
        return f"v{self.count}"

    def block(self, value: str, depth: int) -> tuple[list[onnx.NodeProto], str]:
        """Nodes that compute something from a float tensor of any rank, and the name of the result."""
        nodes: list[onnx.NodeProto] = []
        for kind in self.draw(
            st.lists(st.sampled_from(["Relu", "Unsqueeze", "Flatten", "Sum", "If", "If"]), max_size=3)
        ):
            result = self.name()
            if kind == "If":
                if depth == 0:
                    continue
                condition = self.condition(value, nodes)
                branches = {name: self.branch(value, depth - 1) for name in ("then_branch", "else_branch")}
                nodes.append(helper.make_node("If", [condition], [result], **branches))
            elif kind == "Unsqueeze":
                nodes.append(helper.make_node("Unsqueeze", [value, "zero"], [result]))
            elif kind == "Sum":
                nodes.append(helper.make_node("ReduceSum", [value], [result], keepdims=self.draw(st.integers(0, 1))))
            else:
                nodes.append(helper.make_node(kind, [value], [result], **({"axis": 0} if kind == "Flatten" else {})))
            value = result
        return nodes, value

    def branch(self, value: str, depth: int) -> onnx.GraphProto:
        nodes, result = self.block(value, depth)
        output = self.name()
        nodes.append(helper.make_node("Neg", [result], [output]))
        return helper.make_graph(
            nodes, self.name(), [], [helper.make_tensor_value_info(output, TensorProto.FLOAT, None)]
        )

    def condition(self, value: str, nodes: list[onnx.NodeProto]) -> str:
        kind = self.draw(st.sampled_from(["rate", "rank", "size", "input"]))
        if kind == "input":
            return "c"
        shape, left, condition = self.name(), self.name(), self.name()
        if kind == "rate":
            left = "sr"
        else:
            nodes.append(helper.make_node("Shape", [value], [shape]))
            reduce = {"rank": ("Size", {}), "size": ("ReduceProd", {"keepdims": 0})}[kind]
            nodes.append(helper.make_node(reduce[0], [shape], [left], **reduce[1]))
        nodes.append(helper.make_node("Equal", [left, f"k{self.draw(st.integers(0, 4))}"], [condition]))
        return condition


@st.composite
def nests(draw: Any) -> onnx.ModelProto:
    nodes, result = Nest(draw).block("x", 2)
    nodes.append(helper.make_node("Abs", [result], ["y"]))
    constants = {"zero": np.array([0]), **{f"k{value}": np.array(value) for value in range(5)}}
    inputs = [
        helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 1]),
        helper.make_tensor_value_info("c", TensorProto.BOOL, []),
        helper.make_tensor_value_info("sr", TensorProto.INT64, []),
    ]
    output = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    given_ = [onnx.numpy_helper.from_array(array, name) for name, array in constants.items()]
    graph = helper.make_graph(nodes, "g", inputs, [output], given_)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10)


@pytest.mark.slow
@given(nests(), st.booleans())
@settings(max_examples=100)
def test_nothing_is_left_for_a_second_run(proto: onnx.ModelProto, condition: bool) -> None:
    once = cleaned(ir.from_proto(proto), sr=2)
    written = ir.to_proto(once).SerializeToString()
    twice = Pipeline.parse("default").run(ir.from_proto(onnx.ModelProto.FromString(written)), Context())
    assert not any(step.result.rewrites for step in twice)
    assert ir.to_proto(twice[-1].result.model).SerializeToString() == written
    feeds = {"x": np.array([[-2.0], [3.0]], np.float32), "c": np.array(condition)}
    expected = run(proto, {**feeds, "sr": np.array(2)})
    actual = run(ir.to_proto(once), feeds)
    np.testing.assert_allclose(actual["y"], expected["y"], 1e-6)
