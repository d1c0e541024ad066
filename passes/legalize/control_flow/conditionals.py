"""Compute both branches of an If and select the results.

    y = If(c){ then: f(x)   else: g(x) }  →  Where(c, f(x), g(x))

The pass inline-constant-if handles constant conditions.

Skips: branches that are expensive or unsafe to compute when they are not taken, or that may not fit sizes that are
open; results that differ in shape or dtype, or whose shapes are unknown.
"""

from __future__ import annotations

from dataclasses import dataclass

import onnx_ir as ir

from passes.builders.subgraph_copies import (
    Body,
    require_copyable,
    require_fitting,
    select,
    speculation_hazard,
    to_scalar,
)
from passes.core.text import counted
from passes.graphs.scopes import Scope
from passes.graphs.traversal import with_nested
from passes.legalize.control_flow.loops import shape_mismatch
from passes.rewriting.base import NotApplicable, Skip
from passes.rewriting.edit import Edit
from passes.rewriting.rewrite import NodeRewrite, Replacement

_EXPENSIVE = {"Conv", "ConvInteger", "ConvTranspose", "DeformConv", "Einsum", "GRU", "Gemm", "LSTM", "MatMul", "RNN"}


@dataclass(frozen=True)
class JoinBranches(NodeRewrite):
    """Compute both branches of an If and select the results.

    Attributes:
        max_nodes: the most nodes that a branch may have.
    """

    name = "join-branches"
    operators = frozenset({("", "If")})
    since_opset = 9  # Where
    tensors_only = False
    max_nodes: int = 64

    def replacement(self, node: ir.Node, edit: Edit) -> Replacement:
        """Copy both branches, and select each output by a Where."""
        if edit.scope.constant(node.inputs[0]) is not None:
            return None
        branches = [node.attributes[name].as_graph() for name in ("then_branch", "else_branch")]
        for branch in branches:
            require_copyable(branch, 0, len(node.outputs))
            self._require_cheap(branch, edit.scope)
        condition = to_scalar(edit.input(node), edit)
        yes, no = (Body(branch, edit).copy([], label) for branch, label in zip(branches, ("then", "else"), strict=True))
        require_fitting(with_nested(edit.nodes), edit.scope)
        outputs = []
        for one, other in zip(yes, no, strict=True):
            problem = shape_mismatch(one, other, edit.scope)
            if problem is not None:
                return Skip(f"the results of the branches differ: {problem}")
            outputs.append(one if one is other else select(condition, one, other, edit))
        return outputs

    def _require_cheap(self, branch: ir.Graph, scope: Scope) -> None:
        """Check that a branch can be computed when it is not taken."""
        hazard = speculation_hazard(branch, scope)
        if hazard is not None:
            raise NotApplicable(f"both branches cannot be computed: {hazard}")
        operators = [node.op_type for node in with_nested(branch)]
        expensive = next((operator for operator in operators if operator in _EXPENSIVE), None)
        if expensive is not None or len(operators) > self.max_nodes:
            raise NotApplicable(f"a branch is expensive: it has {expensive or counted(len(operators), 'node')}")


join_branches = JoinBranches()
