"""Running several rewrites until none of them applies, with shape inference between."""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from passes.graphs.scopes import scopes
from passes.rewriting.base import Context, Result
from passes.rewriting.rewrite import NodeRewrite
from passes.shapes.inference import infer


def run_to_fixpoint(steps: Sequence[NodeRewrite], model: ir.Model, context: Context) -> Result:
    """Run rewrites in turn until none applies.

    ONNX does not infer shapes through their operators, so each iteration infers what the one before made known.
    """
    result = Result(model)
    known = frozenset().union(*(step.operators for step in steps))
    while any((node.domain, node.op_type) in known for scope in scopes(model) for node in scope.nodes()):
        infer(model)
        results = [step.run(model, context) for step in steps]
        result.skips = [skip for step in results for skip in step.skips]
        rewrites = [rewrite for step in results for rewrite in step.rewrites]
        if not rewrites:
            break
        result.rewrites += rewrites
    return result
