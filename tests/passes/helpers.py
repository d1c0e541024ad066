"""Small models for passes that care what a model imports, and what is known of its shapes."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir

from passes.graphs.scopes import Scope
from passes.graphs.tensors import tensor_proto

DECODER = """(float[batch, new, 8] x, float[batch, total] mask, float[batch, heads, past, head] keys)
    => (float[a, b, c, d] y)
{
    q = MatMul(x, w)
    s = Reshape(q, shape)
    k = Transpose<perm = [0, 2, 1, 3]>(s)
    all = Concat<axis = 2>(keys, k)
    t = Transpose<perm = [0, 1, 3, 2]>(all)
    scores = MatMul(k, t)
    wide = Unsqueeze(mask, axes)
    y = Add(scores, wide)
}"""
"""A decoder whose heads follow from its weights, and the length of its mask from those of old and new keys."""
DECODER_WEIGHTS = {"w": np.ones((8, 8), np.float32), "shape": np.array([0, 0, 2, 4]), "axes": np.array([1, 2])}


def tiny(text: str, *, opset: int = 17, ir_version: int = 10, functions: str = "", **constants: Any) -> ir.Model:
    """A model of ONNX text in which nothing is inferred, whose free names are ``constants``.

    Args:
        text: the main graph, as in ``(float[2] x) => (float[2] y) { y = Add(x, w) }``.
        opset: of the standard operators.
        ir_version: of the model.
        functions: more text, in the domain ``local``, which is imported where there is any.
        constants: arrays or tensors, by name.
    """
    imports = f'"": {opset}' + (', "local": 1' if functions else "")
    proto = onnx.parser.parse_model(f"<ir_version: {ir_version}, opset_import: [{imports}]> g {text} {functions}")
    proto.graph.initializer.extend(tensor_proto(ir.tensor(array), name) for name, array in constants.items())
    return ir.from_proto(proto)


def sealed(*shape: int, dtype: ir.DataType = ir.DataType.FLOAT) -> ir.LazyTensor:
    """A weight that nobody may read."""

    def read() -> ir.TensorProtocol:
        raise AssertionError("a weight was read")

    return ir.LazyTensor(read, dtype=dtype, shape=ir.Shape(shape), name="sealed")


def weigh(source: ir.Model, name: str, tensor: ir.TensorProtocol) -> ir.Value:
    """Let the free name of a model be an initializer without any of it being read."""
    free = {value.name: value for node in source.graph.all_nodes() for value in node.inputs if value is not None}
    value = free[name]
    value.const_value, value.type, value.shape = tensor, ir.TensorType(tensor.dtype), ir.Shape(tensor.shape.numpy())
    source.graph.register_initializer(value)
    return value


def initializers(source: ir.Model) -> dict[str, Any]:
    """The arrays of the main graph and its subgraphs, by name."""
    return {
        str(value.name): value.const_value.numpy()
        for graph in Scope(source, source.graph).graphs()
        for value in graph.initializers.values()
        if value.const_value is not None
    }


def mentioned(text: str, constants: dict[str, Any]) -> dict[str, Any]:
    """Return the constants that a text names."""
    return {name: array for name, array in constants.items() if re.search(rf"\b{name}\b", text)}


def nested_branches(depth: int) -> ir.Model:
    """A model of branches within branches; text and files hold only so many."""
    x = ir.Value(name="x", type=ir.TensorType(ir.DataType.FLOAT), shape=ir.Shape([2]))
    c = ir.Value(name="c", type=ir.TensorType(ir.DataType.BOOL), shape=ir.Shape([]))
    made = ir.Node("", "Relu", [x], name="r")
    for level in range(depth):
        made.outputs[0].name = f"y{level}"
        other = ir.Node("", "Neg", [x], name=f"n{level}")
        other.outputs[0].name = f"z{level}"
        branches = [
            ir.AttrGraph(name, ir.Graph([], each.outputs, nodes=[each], name=name))
            for name, each in (("then_branch", made), ("else_branch", other))
        ]
        made = ir.Node("", "If", [c], branches, name=f"i{level}")
    (y,) = made.outputs
    y.name, y.type, y.shape = "y", x.type, x.shape
    return ir.Model(ir.Graph([x, c], [y], nodes=[made], opset_imports={"": 17}, name="g"), ir_version=10)
