"""Merge a node that only changes the shape with the one before it.

    g(f(x))  →  Reshape(x, shape of g(f(x)))        or x, if that is its shape
                f, g: Reshape, Flatten, Squeeze, Unsqueeze, Transpose that moves only axes of size 1

Such operators keep the order of elements, so only the last shape matters. The shape input of a Reshape is valid for x
as well, if no 0 in it copies a dimension of the intermediate value. Any other shape must be known, so this pass runs
after infer-shapes: an unknown dimension is copied by a 0 if x has the same one at the same index, and one more can be
computed (-1). But -1 is ambiguous if another dimension is 0, so it is not combined with copies, unless the model does
so itself.

Skips: shapes that are not known well enough, as in functions; a first node with other uses, unless the result is x; one
in an outer graph.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from passes.graphs.matching import is_op, is_redefined
from passes.graphs.scopes import Scope
from passes.graphs.tensors import ints
from passes.rewriting.base import NotApplicable, Skip
from passes.rewriting.edit import Edit
from passes.rewriting.rewrite import Replacement, rewrite


@dataclass(frozen=True)
class _Target:
    """The operands of the merged Reshape.

    Attributes:
        shape: its second input, or the elements of a new one.
        allowzero: its attribute: whether a 0 is a size rather than a dimension to copy.
    """

    shape: ir.Value | tuple[int, ...]
    allowzero: bool = False


_RESHAPING = ("Flatten", "Reshape", "Squeeze", "Transpose", "Unsqueeze")


@rewrite(*_RESHAPING, allows_references=True)
def merge_reshapes(node: ir.Node, edit: Edit) -> Replacement:
    """Merge chains of Reshape, Flatten, Squeeze and Unsqueeze into one Reshape, or remove them."""
    scope = edit.scope
    middle = node.inputs[0]
    first = middle.producer() if middle is not None else None
    if middle is None or first is None or not (_reshapes(node, scope) and _reshapes(first, scope)):
        return None
    source = first.inputs[0]
    if source is None:
        return None
    edit.absorb(first)
    before, after = scope.proven_shape(source), scope.proven_shape(node.outputs[0])
    if before is not None and before == after and not before.has_unknown_dim():
        return source
    if middle.is_graph_output() or not all(
        _reshapes(use.node, scope) and use.idx == 0 and use.node.graph is node.graph for use in middle.uses()
    ):
        return Skip(f"{middle.name} is used elsewhere")
    if source.type is None:
        return Skip(f"the type of {source.name} is not known")
    target = _target(node, before, after, scope)
    shape = target.shape
    if isinstance(shape, tuple):
        shape = edit.constant(np.array(shape, np.int64), f"{node.name}/shape")
    return edit.op("Reshape", [source, shape], {"allowzero": 1} if target.allowzero else {})


def _reshapes(node: ir.Node, scope: Scope) -> bool:
    if not is_op(node, *_RESHAPING) or is_redefined(node, scope):
        return False
    return node.op_type != "Transpose" or _keeps_order(node, scope)


def _keeps_order(transpose: ir.Node, scope: Scope) -> bool:
    """Return whether a Transpose moves no axis of more than one element past another."""
    permutation, shape = transpose.attributes.get("perm"), scope.proven_shape(transpose.inputs[0])
    if shape is None or (permutation is not None and permutation.is_ref()):
        return False
    count = range(len(shape))
    axes = [*permutation.as_ints()] if permutation is not None else [*reversed(count)]
    long = [axis for axis in axes if axis in count and shape[axis] != 1]
    return sorted(axes) == [*count] and long == sorted(long)


def _target(node: ir.Node, before: ir.Shape | None, after: ir.Shape | None, scope: Scope) -> _Target:
    """Return the operands of a Reshape that give ``after``, whatever the values of unknown dimensions."""
    given: list[int] | None = None
    if node.op_type == "Reshape" and node.inputs[1] is not None:
        given = ints(scope.constant(node.inputs[1]))
        zero = node.attributes.get("allowzero")
        literal = zero is not None and not zero.is_ref() and zero.as_int() == 1
        if literal or (given is not None and 0 not in given):
            return _Target(node.inputs[1], literal)
    if after is None:
        raise NotApplicable(f"the shape of {node.outputs[0].name} is not known")
    return _from_shapes(given, before, after, scope)


def _from_shapes(given: list[int] | None, before: ir.Shape | None, after: ir.Shape, scope: Scope) -> _Target:
    """Return the operands that reshape ``before`` to ``after``; ``given`` is the constant shape of a Reshape."""
    old = [*before, *(None for _ in after)] if before is not None else [None for _ in after]
    kept = [index for index, dim in enumerate(after) if old[index] == dim and (isinstance(dim, int) or dim.value)]
    opened = [index for index, dim in enumerate(after) if not isinstance(dim, int) and index not in kept]
    copied = [index for index in kept if not isinstance(after[index], int)]
    empty = [index for index, dim in enumerate(after) if dim == 0]
    if len(opened) > 1:
        raise NotApplicable(f"{len(opened)} dimensions of {after} are open")
    if opened and (empty or (copied and (given is None or given[opened[0]] != -1))):
        raise NotApplicable(f"if a dimension of {after} is 0, none can be computed")
    allowzero = any(index not in kept for index in empty)
    if allowzero and (copied or scope.opset() < 14):
        raise NotApplicable(f"Reshape cannot make {after}, as a 0 copies a dimension")
    return _Target(
        tuple(dim if isinstance(dim, int) else -1 if i in opened else 0 for i, dim in enumerate(after)), allowzero
    )
