"""Loops, scans and branches in the main graph, to the extent possible: what chooses in a body can be looked at."""

from __future__ import annotations

import onnx_ir as ir

from passes.cleanup.infer_shapes import InferShapes
from passes.core.errors import BridgeError
from passes.graphs.scopes import Scope, name_nodes
from passes.graphs.traversal import subgraphs
from passes.legalize.control_flow.conditionals import join_branches
from passes.legalize.control_flow.loops import mask_loop, unroll_loop
from passes.legalize.control_flow.scans import unroll_scan
from passes.rewriting.pipeline import Pipeline

_UNFOLD = Pipeline([InferShapes(), unroll_loop, mask_loop, unroll_scan, join_branches])


def unfolded(model: ir.Model) -> ir.Model:
    """Return a model without those subgraphs that the rules of legalization can put into the main graph.

    Values of the same body have the same names in whatever model it is unfolded.

    Args:
        model: the model, which is not changed; it is returned itself if there is nothing to do.
    """
    if not any(True for node in model.graph for _ in subgraphs(node)):
        return model
    other = model.clone()
    try:
        other = _UNFOLD.run(other)[-1].result.model
    except BridgeError:
        return model
    name_nodes(Scope(other, other.graph))
    return other
