"""Compute both branches of an If, and choose.

    y = If(c){ then: f(x)   else: g(x) }  →  Where(c, f(x), g(x))

An If whose condition is constant is the business of inline-constant-if.

Skips: branches that are expensive or must not run in vain, and those whose results differ in shape or dtype, or have a
shape that is unknown.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import onnx_ir as ir

from passes.build.subgraph_copies import Body, scalar, select, speculation_hazard, unsupported_reason
from passes.core import graphs
from passes.core.base import Skip
from passes.core.edit import Edit
from passes.core.matching import is_plain
from passes.core.rewrite import Match, NodeContext, NodeRewrite
from passes.legalize.control_flow.loops import difference

_EXPENSIVE = {"Conv", "ConvInteger", "ConvTranspose", "DeformConv", "Einsum", "GRU", "Gemm", "LSTM", "MatMul", "RNN"}


@dataclass(frozen=True)
class _Found(Match):
    branches: tuple[ir.Graph, ir.Graph]
    """What is computed if the condition holds, and if it does not."""


@dataclass(frozen=True)
class JoinBranches(NodeRewrite[_Found]):
    """Compute both branches of an If, and choose.

    Attributes:
        max_nodes: how many nodes a branch may have.
    """

    name = "join-branches"
    operators = frozenset({("", "If")})
    tensors_only = False
    max_nodes: int = 64

    def match(self, node: ir.Node, context: NodeContext) -> _Found | Skip | None:
        """Whether both branches may be computed, at little cost."""
        scope = context.scope
        if not is_plain(node, scope) or scope.constant(node.inputs[0]) is not None:
            return None
        if scope.opset() < 9:
            return Skip(f"opset {scope.opset()} has no Where")
        branches = tuple(node.attributes[name].as_graph() for name in ("then_branch", "else_branch"))
        for graph in branches:
            problem = unsupported_reason(graph, 0, len(node.outputs)) or speculation_hazard(graph, scope)
            if problem is not None:
                return Skip(f"both branches cannot be computed: {problem}")
            operators = [each.op_type for each in graphs.with_nested(graph)]
            expensive = next((each for each in operators if each in _EXPENSIVE), None)
            if expensive is not None or len(operators) > self.max_nodes:
                return Skip(f"a branch is expensive: it has {expensive or f'{len(operators)} nodes'}")
        return _Found(node, (branches[0], branches[1]))

    def rewrite(self, match: _Found, edit: Edit) -> Sequence[ir.Value | None] | Skip:
        """Both branches, and a choice for each output."""
        condition = match.node.inputs[0]
        assert condition is not None
        condition = scalar(condition, edit)
        if condition is None:
            return Skip("the shape of its condition is unknown")
        yes, no = (
            Body(graph, edit).copy([], label) for graph, label in zip(match.branches, ("then", "else"), strict=True)
        )
        outputs = []
        for one, other in zip(yes, no, strict=True):
            problem = difference(one, other, edit.scope)
            if problem is not None:
                return Skip(f"its branches have different results: {problem}")
            outputs.append(one if one is other else select(condition, one, other, edit))
        return outputs


RULES: tuple[NodeRewrite[Any], ...] = (JoinBranches(),)
