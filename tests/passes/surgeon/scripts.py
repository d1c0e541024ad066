"""Models, and scripts that change them."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx
import onnx_graphsurgeon as gs
import onnx_ir as ir

from passes.graphs.scopes import name_nodes, scopes
from passes.rewriting.base import Budget, Context, Result
from passes.surgeon.operation import operate
from tests.passes import harness

A = np.array
Script = Callable[[gs.Graph], gs.Graph | None]


def run(script: Script, model: ir.Model, budget: int | None = None) -> Result:
    return operate(script, model, Context(budget=Budget(budget)), maker="surgeon", where="script")


def text(model: ir.Model) -> bytes:
    return ir.to_proto(model).SerializeToString(deterministic=True)


def outputs(model: ir.Model, seed: int = 0) -> list[harness.Array]:
    proto = ir.to_proto(model)
    onnx.checker.check_model(proto, full_check=True)
    return list(harness.run(proto, harness.feeds(proto, seed)).values())


def build(graph: str, opset: int = 20, **constants: harness.Array) -> ir.Model:
    model = harness.model(graph, opset=opset, **constants)
    for scope in scopes(model):
        name_nodes(scope)
    return model


def nothing(graph: gs.Graph) -> None:
    """Change nothing."""


def touch(graph: gs.Graph) -> None:
    """Read all constants, also those of subgraphs and attributes."""
    for part in (graph, *graph.subgraphs(recursive=True)):
        for tensor in part.tensors().values():
            if isinstance(tensor, gs.Constant):
                assert isinstance(tensor.values, np.ndarray)
        for node in part.nodes:
            for value in node.attrs.values():
                if isinstance(value, gs.Constant):
                    assert isinstance(value.values, np.ndarray)


def rename(graph: gs.Graph) -> None:
    """Change something, so that the model is exported."""
    graph.name = "renamed"


def negate(graph: gs.Graph) -> None:
    """Add a Neg after every output."""
    for index, output in enumerate(list(graph.outputs)):
        made = gs.Variable(f"negated_{index}", output.dtype, output.shape)
        graph.nodes.append(gs.Node("Neg", f"negate_{index}", inputs=[output], outputs=[made]))
        graph.outputs[index] = made


def replace_relu(graph: gs.Graph) -> None:
    """Remove nodes and insert others, as most scripts do."""
    for node in [node for node in graph.nodes if node.op == "Relu"]:
        inputs, results = list(node.inputs), list(node.outputs)
        node.outputs.clear()
        zero = gs.Constant(f"{node.name}_zero", A(0, np.float32))
        graph.layer(op="Max", name=f"{node.name}_max", inputs=[*inputs, zero], outputs=results)
    graph.cleanup().toposort()


SMALL = "(float[2, 3] x) => (float[2, 3] y) { a = Mul(x, w) b = Relu(a) y = Add(b, w) }"
W = A([[1, 2, 3], [4, 5, 6]], np.float32)
