"""Turn Constant nodes into initializers.

    c = Constant<value=…>        (or value_float, value_floats, value_int, value_ints, value_string, value_strings)
                                 →  c, an initializer

The value keeps its name. Constant nodes of functions stay, since functions have no initializers.

Skips: outputs of a graph, which must come from nodes; sparse tensors; subgraphs before IR version 4, where initializers
are inputs.
"""

from __future__ import annotations

import onnx_ir as ir

from passes.graphs.replacement import inherit, remove_nodes, replace_value
from passes.graphs.scopes import Scope, name_nodes
from passes.graphs.tensors import constant_of
from passes.rewriting.base import Context, Pass, Result, Rewrite, Skip


class LiftConstantNodes(Pass):
    """Turn Constant nodes into initializers."""

    name = "lift-constant-nodes"
    declares = False

    def run(self, model: ir.Model, context: Context) -> Result:
        """Lift the constants of the main graph and its subgraphs, each within its graph."""
        result = Result(model)
        scope = name_nodes(Scope(model, model.graph))
        for node in list(scope.nodes()):
            graph = node.graph
            if graph is None or node.op_identifier() != ("", "Constant", "") or node.op_identifier() in model.functions:
                continue
            tensor = constant_of(node)
            obstacle = _obstacle(node, scope)
            if tensor is None or obstacle is not None:
                result.skips.append(Skip(obstacle or "its tensor is sparse", node.name or ""))
                continue
            if not context.budget.take():
                return result
            old = node.outputs[0]
            new = scope.new_constant(graph, tensor, str(old.name))
            inherit(new, old)
            replace_value(old, new)
            remove_nodes(graph, [node])
            result.rewrites.append(Rewrite((node.name or "",), note=f"{new.name} is an initializer"))
        return result


def _obstacle(node: ir.Node, scope: Scope) -> str | None:
    """Return why a constant must stay a node."""
    value = node.outputs[0]
    if value.is_graph_output():
        return f"{value.name} is an output of the graph, which must come from a node"
    if scope.model.ir_version < 4 and node.graph is not scope.graph:
        return "before IR version 4, the initializers of a subgraph are its inputs"
    return None
