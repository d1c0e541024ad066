"""Merge a Transpose with the one before it.

    Transpose<q>(Transpose<p>(x))  →  Transpose<r>(x), r[i] = p[q[i]]        or x, if r is the identity

Skips: permutations that the caller of a function supplies; a first Transpose with other uses, unless the result is x;
one in an outer graph, which may run less often.
"""

from __future__ import annotations

import onnx_ir as ir

from passes.graphs.matching import is_op, is_redefined
from passes.graphs.scopes import Scope
from passes.rewriting.base import NotApplicable, Skip
from passes.rewriting.edit import Edit
from passes.rewriting.rewrite import Replacement, rewrite


@rewrite("Transpose", allows_references=True)
def merge_transposes(node: ir.Node, edit: Edit) -> Replacement:
    """Merge a Transpose with the one before it, or remove both."""
    middle = node.inputs[0]
    first = middle.producer() if middle is not None else None
    if middle is None or first is None or not _is_transpose(first, edit.scope):
        return None
    source = first.inputs[0]
    if source is None:
        return None
    edit.absorb(first)
    permutation = _product(first, node)
    if permutation == sorted(permutation):
        return source
    if middle.is_graph_output() or not all(
        _is_transpose(use.node, edit.scope) and use.node.graph is node.graph for use in middle.uses()
    ):
        return Skip(f"{middle.name} is used elsewhere")
    return edit.op("Transpose", [source], {"perm": permutation})


def _is_transpose(node: ir.Node, scope: Scope) -> bool:
    return is_op(node, "Transpose") and not is_redefined(node, scope)


def _product(first: ir.Node, second: ir.Node) -> list[int]:
    """Return the composed permutation; empty if both reverse the axes, however many there are."""
    attributes = [node.attributes.get("perm") for node in (first, second)]
    if any(attribute is not None and attribute.is_ref() for attribute in attributes):
        raise NotApplicable("the caller of the function supplies the permutation")
    before, after = ([*attribute.as_ints()] if attribute is not None else None for attribute in attributes)
    axes = list(range(len(before or after or ())))
    before, after = (axes[::-1] if permutation is None else permutation for permutation in (before, after))
    if any(sorted(permutation) != axes for permutation in (before, after)):
        raise NotApplicable(f"{before} and {after} are not permutations of the same axes")
    return [before[axis] for axis in after]
