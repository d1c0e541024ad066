"""Passes made of several rewrites, of operators that ONNX's inference does not know."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import onnx_ir as ir

from passes.core import graphs
from passes.core.base import Context, Result
from passes.core.inference import infer
from passes.core.rewrite import NodeRewrite


def run_in_rounds(steps: Sequence[NodeRewrite[Any]], model: ir.Model, context: Context) -> Result:
    """Run rewrites in turn until none of them finds anything; each round lets shapes be known for the next."""
    result = Result(model)
    known = frozenset().union(*(step.operators for step in steps))
    while any((node.domain, node.op_type) in known for scope in graphs.scopes(model) for node in scope.nodes()):
        infer(model, declared=not result.rewrites)
        rounds = [step.run(model, context) for step in steps]
        result.skips = [skip for each in rounds for skip in each.skips]
        found = [rewrite for each in rounds for rewrite in each.rewrites]
        if not found:
            break
        result.rewrites += found
    return result
