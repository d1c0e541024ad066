"""Infer the types and shapes of all values, by ONNX's inference with propagation of shape values.

ONNX Runtime infers those after operators that ONNX does not define. Nothing is computed, no weight is read, and known
types and shapes are kept, unless they contradict what inference finds.
"""

from __future__ import annotations

import onnx_ir as ir

from passes.core.text import counted
from passes.graphs.scopes import Scope
from passes.rewriting.base import Context, Pass, Result, Rewrite, Skip
from passes.shapes.declarations import settle_foreign
from passes.shapes.inference import infer, infer_foreign
from passes.shapes.validity import check_nodes


class InferShapes(Pass):
    """Infer the types and shapes of all values."""

    name = "infer-shapes"
    idempotent = True
    declares = False

    def run(self, model: ir.Model, context: Context) -> Result:
        """Merge the inferred types and shapes into the values of the main graph and its subgraphs.

        Raises InputError if a node of the main graph is invalid whatever the sizes of its inputs.
        """
        result = Result(model)
        settle_foreign(model, context)
        inferred = infer(model, commit=context.budget.take)
        if foreign := infer_foreign(model) if context.budget.left != 0 else []:
            inferred.learned += [*foreign, *infer(model).learned]
        check_nodes(model.graph, Scope(model, model.graph))
        if inferred.error:
            result.skips.append(Skip(f"ONNX's inference failed: {inferred.error}"))
        if inferred.learned:
            nodes = {node.name: None for value in inferred.learned if (node := value.producer()) and node.name}
            result.rewrites.append(
                Rewrite(tuple(nodes), note=f"{counted(len(inferred.learned), 'value')} known better")
            )
        return result
