"""Merge a Transpose with the one before it.

    Transpose<q>(Transpose<p>(x))  →  Transpose<r>(x), r[i] = p[q[i]]        or x, if r is the identity

Skips: permutations that the caller of a function supplies; a first Transpose with other uses, unless the result is x;
one in an outer graph, which may run less often.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import onnx_ir as ir

from passes.graphs.replacement import can_stand_for
from passes.rewriting.base import Skip
from passes.rewriting.edit import Edit
from passes.rewriting.rewrite import Match, NodeContext, NodeRewrite


@dataclass(frozen=True)
class _Pair(Match):
    source: ir.Value
    permutation: tuple[int, ...]
    """The composed permutation; empty if it is the identity."""


class MergeTransposes(NodeRewrite[_Pair]):
    """Merge a Transpose with the one before it, or remove both."""

    name = "merge-transposes"
    operators = frozenset({("", "Transpose")})
    allows_references = True

    def match(self, node: ir.Node, context: NodeContext) -> _Pair | Skip | None:
        """Compose the two permutations, if that removes a node."""
        middle = node.inputs[0]
        first = middle.producer() if middle is not None else None
        if (
            middle is None
            or first is None
            or not (self._is_transpose(node, context) and self._is_transpose(first, context))
        ):
            return None
        source = first.inputs[0]
        if source is None:
            return None
        if first.graph is not node.graph:
            return Skip(f"{first.name} is in an outer graph")
        permutation = _product(first, node)
        if isinstance(permutation, Skip):
            return permutation
        if not permutation:
            if not can_stand_for(source, node.outputs[0], node.graph, context.scope):
                return Skip(f"{source.name} is the name of another value in a subgraph that would use it")
        elif middle.is_graph_output() or not all(
            self._is_transpose(use.node, context) and use.node.graph is node.graph for use in middle.uses()
        ):
            return Skip(f"{middle.name} is used elsewhere")
        return _Pair(node, source, permutation, absorbed=(first,))

    def rewrite(self, match: _Pair, edit: Edit) -> Sequence[ir.Value]:
        """One Transpose, or the input of both."""
        if not match.permutation:
            return [match.source]
        return [edit.op("Transpose", [match.source], {"perm": match.permutation})]

    def _is_transpose(self, node: ir.Node, context: NodeContext) -> bool:
        identifier = node.op_identifier()
        return (node.domain, node.op_type) in self.operators and identifier not in context.scope.model.functions


def _product(first: ir.Node, second: ir.Node) -> tuple[int, ...] | Skip:
    """The composed permutation; empty if it is the identity."""
    given = [node.attributes.get("perm") for node in (first, second)]
    if any(each is not None and each.is_ref() for each in given):
        return Skip("the caller of the function supplies the permutation")
    before, after = ([*each.as_ints()] if each is not None else None for each in given)
    rank = len(before or after or ())  # without a permutation, the axes are reversed, however many there are
    before, after = ([*reversed(range(rank))] if each is None else each for each in (before, after))
    if any(sorted(each) != [*range(rank)] for each in (before, after)):
        return Skip(f"{before} and {after} are not permutations of the same axes")
    product = tuple(before[axis] for axis in after)
    return product if product != tuple(range(rank)) else ()
