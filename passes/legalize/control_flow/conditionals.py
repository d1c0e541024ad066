"""Compute both branches of an If and select the results.

    y = If(c){ then: f(x)   else: g(x) }  →  Where(c, f(x), g(x))

The pass inline-constant-if handles constant conditions.

Skips: branches that are expensive or unsafe to compute when they are not taken; results that differ in shape or dtype,
or whose shapes are unknown.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import onnx_ir as ir

from passes.builders.subgraph_copies import Body, select, speculation_hazard, to_scalar, unsupported_reason
from passes.graphs.traversal import with_nested
from passes.legalize.control_flow.loops import shape_mismatch
from passes.rewriting.base import Skip
from passes.rewriting.edit import Edit
from passes.rewriting.rewrite import Match, NodeContext, NodeRewrite

_EXPENSIVE = {"Conv", "ConvInteger", "ConvTranspose", "DeformConv", "Einsum", "GRU", "Gemm", "LSTM", "MatMul", "RNN"}


@dataclass(frozen=True)
class _Branches(Match):
    branches: tuple[ir.Graph, ir.Graph]
    """The then_branch and the else_branch."""


@dataclass(frozen=True)
class JoinBranches(NodeRewrite[_Branches]):
    """Compute both branches of an If and select the results.

    Attributes:
        max_nodes: the most nodes that a branch may have.
    """

    name = "join-branches"
    operators = frozenset({("", "If")})
    since_opset = 9  # Where
    tensors_only = False
    max_nodes: int = 64

    def match(self, node: ir.Node, context: NodeContext) -> _Branches | Skip | None:
        """Match if both branches can be computed cheaply and safely."""
        scope = context.scope
        if scope.constant(node.inputs[0]) is not None:
            return None
        branches = tuple(node.attributes[name].as_graph() for name in ("then_branch", "else_branch"))
        for graph in branches:
            problem = unsupported_reason(graph, 0, len(node.outputs)) or speculation_hazard(graph, scope)
            if problem is not None:
                return Skip(f"both branches cannot be computed: {problem}")
            operators = [each.op_type for each in with_nested(graph)]
            expensive = next((each for each in operators if each in _EXPENSIVE), None)
            if expensive is not None or len(operators) > self.max_nodes:
                return Skip(f"a branch is expensive: it has {expensive or f'{len(operators)} nodes'}")
        return _Branches(node, (branches[0], branches[1]))

    def rewrite(self, match: _Branches, edit: Edit) -> Sequence[ir.Value | None] | Skip:
        """Both branches, and a Where for each output."""
        condition = match.node.inputs[0]
        assert condition is not None
        condition = to_scalar(condition, edit)
        if condition is None:
            return Skip("the shape of its condition is unknown")
        yes, no = (
            Body(graph, edit).copy([], label) for graph, label in zip(match.branches, ("then", "else"), strict=True)
        )
        outputs = []
        for one, other in zip(yes, no, strict=True):
            problem = shape_mismatch(one, other, edit.scope)
            if problem is not None:
                return Skip(f"the results of its branches differ: {problem}")
            outputs.append(one if one is other else select(condition, one, other, edit))
        return outputs


RULES: tuple[NodeRewrite[Any], ...] = (JoinBranches(),)
