"""The form that the provider leaves to the CPU, for operators of all kinds, with and without graph optimization."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest
from onnx import parser, shape_inference

from onnx_bridge.provider.hidden import hide
from onnx_bridge.provider.provider import CPU, Provider, SessionOptions
from onnx_bridge.reference.reference import Reference
from passes.graphs.byte_strings import from_proto
from passes.graphs.scopes import Scope, name_nodes

HEAD = '<ir_version: 8, opset_import: ["": 17]> g '
AROUND = {"MatMul", "Unsqueeze", "Squeeze", "ReduceSum", "Greater", "Reshape"}
CASES = {
    "light": "(float[3,3] x) => (float[3,3] y) { a = MatMul(x, x) [h] b = Sigmoid(a) y = MatMul(b, a) }",
    "heavy": "(float[3,3] x) => (float[3,3] y) { a = MatMul(x, x) [h] b = MatMul(a, x) y = MatMul(b, a) }",
    "output": "(float[3,3] x) => (float[3,3] y) { a = MatMul(x, x) [h] y = Exp(a) }",
    "two outputs": "(float[1,1,4,4] x) => (float[1,1,2,2] y, int64[1,1,2,2] z) {"
    " a = MatMul(x, x) [h] y, z = MaxPool<kernel_shape = [2, 2], strides = [2, 2]>(a) }",
    "recurrent": "(float[1,3,3] x, float[1,12,3] w, float[1,12,3] r) => (float[1,3,3] y) {"
    " a = MatMul(x, x) [h] b, c = LSTM<hidden_size = 3>(a, w, r) y = MatMul(c, a) }",
    "scalar": "(float[3,3] x) => (float y) { a = MatMul(x, x) [h] y = ReduceSum<keepdims = 0>(a) }",
    "reshape": "(float[3,3] x) => (float[9,1] y) { s = Constant<value = int64[2] {9, 1}>() a = MatMul(x, x)"
    " [h] y = Reshape(a, s) }",
    "branch": "(float[3,3] x) => (float[3,3] y) { a = MatMul(x, x) s = ReduceSum<keepdims = 0>(a) k = Greater(s, s)"
    " [h] b = If(k)<then_branch = t () => (float[3,3] o) { o = Sigmoid(a) },"
    " else_branch = u () => (float[3,3] p) { p = MatMul(a, a) }> y = MatMul(b, a) }",
    "loop": "(float[3,3] x) => (float[3,3] y) <float[3,3] b> {"
    " n = Constant<value = int64 {3}>() c = Constant<value = bool {1}>()"
    " a = MatMul(x, x) [h] b = Loop(n, c, a)<body = l (int64 i, bool k, float[3,3] v) => (bool k2, float[3,3] w) {"
    " k2 = Identity(k) m = MatMul(v, x) w = Tanh(m) }> y = MatMul(b, a) }",
    "integers": "(int32[3,3] x) => (int32[3,3] y) { a = MatMul(x, x) [h] b = Mul(a, a) y = MatMul(b, a) }",
}


@pytest.mark.parametrize("optimization", [0, 99])
@pytest.mark.parametrize("case", CASES)
def test_a_hidden_node_runs_on_the_cpu_and_its_neighbours_do_not(
    provider: Provider, case: str, optimization: int
) -> None:
    proto = parser.parse_model(HEAD + CASES[case])
    expected = Reference(proto.SerializeToString())
    model = from_proto(shape_inference.infer_shapes(proto))
    scope = name_nodes(Scope(model, model.graph))
    (node,) = (node for node in model.graph if node.name == "h")
    assert hide([node], scope)
    session = provider.session(ir.to_proto(model).SerializeToString(), SessionOptions(optimization=optimization))
    claimed = {placed.op_type for placed in session.on_provider}
    assert "MatMul" in claimed and claimed <= AROUND, case
    assert {placed.provider for placed in session.nodes if placed.name == "h"} == {CPU}
    random = np.random.default_rng(0)
    sample = {
        value.name: random.integers(-3, 3, list(value.shape)).astype(value.dtype.numpy())
        for value in model.graph.inputs
    }
    outputs, right = session.run(sample), expected.run(sample)
    assert list(outputs) == list(right)
    for name, array in right.items():
        assert outputs[name].shape == array.shape
        np.testing.assert_allclose(outputs[name], array, rtol=1e-5)
