"""Remove nodes that return their input unchanged.

    y = Identity(x), Dropout(x) in inference, Cast(x) to its own dtype, Reshape(x) to its own shape, Transpose(x) in
    order, Pad(x) by 0, Slice(x) of everything, Concat(x), Expand(x) or Tile(x) by ones, Squeeze(x) or Unsqueeze(x) of
    nothing, Flatten of a matrix, Sum(x), Mean(x), Max(x), Min(x), x · 1, x / 1, x - 0, x + (-0)                →  x

An addition of +0 stays in floating point: it makes +0 of -0.

Skips: an output of the graph that would become an input, an initializer, a value of an outer graph, or another output:
ONNX and MIGraphX require a node there.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from passes.graphs.replacement import can_take_name
from passes.graphs.scopes import Scope
from passes.graphs.tensors import ints
from passes.rewriting.base import Skip
from passes.rewriting.edit import Edit
from passes.rewriting.rewrite import Match, NodeContext, NodeRewrite

_SLICE_TO_END = 2**31 - 1
"""The least end of a slice that means the end of the axis."""


def _always(node: ir.Node, scope: Scope) -> bool:
    return True


def _one_input(node: ir.Node, scope: Scope) -> bool:
    return len(node.inputs) == 1


def _dropout(node: ir.Node, scope: Scope) -> bool:
    opset = scope.opset()
    if opset < 7:
        return _int(node, "is_test", 0) != 0
    if opset < 12 or len(node.inputs) < 3 or node.inputs[2] is None:
        return True
    training = scope.constant(node.inputs[2])
    return training is not None and not training.numpy().item()


def _cast(node: ir.Node, scope: Scope) -> bool:
    dtype = scope.dtype(node.inputs[0])
    return dtype is not None and dtype == _int(node, "to", None)


def _cast_like(node: ir.Node, scope: Scope) -> bool:
    dtype = scope.dtype(node.inputs[0])
    return dtype is not None and dtype == scope.dtype(node.inputs[1])


def _same_shape(node: ir.Node, scope: Scope) -> bool:
    """Whether the shape is certainly unchanged: equal in all dimensions, none of which is unknown."""
    before, after = scope.proven_shape(node.inputs[0]), scope.proven_shape(node.outputs[0])
    return before is not None and after is not None and before == after and not before.has_unknown_dim()


def _reshape(node: ir.Node, scope: Scope) -> bool:
    if _same_shape(node, scope):
        return True
    before, wanted = scope.proven_shape(node.inputs[0]), _operand(node, scope, 1, "shape")
    if before is None or wanted is None or len(before) != len(wanted):
        return False
    copies = _int(node, "allowzero", 0) == 0
    free = [i for i, (old, new) in enumerate(zip(before, wanted, strict=True)) if old != new and (new or not copies)]
    # the dimension -1 is computed to be the same as before if the others are the same and not 0
    others = [new for i, new in enumerate(wanted) if i not in free and (new or not copies)]
    return not free or (len(free) == 1 and wanted[free[0]] == -1 and all(others))


def _transpose(node: ir.Node, scope: Scope) -> bool:
    permutation = node.attributes.get("perm")
    if permutation is not None:
        return not permutation.is_ref() and list(permutation.as_ints()) == sorted(permutation.as_ints())
    shape = scope.proven_shape(node.inputs[0])
    return shape is not None and len(shape) < 2


def _pad(node: ir.Node, scope: Scope) -> bool:
    pads = _operand(node, scope, 1, "pads")
    return pads is not None and not any(pads)


def _slice(node: ir.Node, scope: Scope) -> bool:
    starts, ends = _operand(node, scope, 1, "starts"), _operand(node, scope, 2, "ends")
    steps = _operand(node, scope, 4, "steps", absent=[])
    if starts is None or ends is None or steps is None or any(step != 1 for step in steps):
        return False
    return (all(start == 0 for start in starts) and all(end >= _SLICE_TO_END for end in ends)) or _same_shape(
        node, scope
    )


def _expand(node: ir.Node, scope: Scope) -> bool:
    shape, wanted = scope.proven_shape(node.inputs[0]), _operand(node, scope, 1, "shape")
    ones = shape is not None and wanted is not None and len(wanted) <= len(shape) and all(each == 1 for each in wanted)
    return ones or _same_shape(node, scope)


def _tile(node: ir.Node, scope: Scope) -> bool:
    repeats = _operand(node, scope, 1, "repeats")
    return repeats is not None and scope.opset() >= 6 and all(each == 1 for each in repeats)


def _flatten(node: ir.Node, scope: Scope) -> bool:
    shape = scope.proven_shape(node.inputs[0])
    return shape is not None and len(shape) == 2 and _int(node, "axis", 1) in (1, -1)


def _neutral(node: ir.Node, scope: Scope) -> bool:
    """Whether one operand changes no element of the other, and not its shape."""
    if len(node.inputs) != 2:
        return False
    kept = _kept(node, scope)
    tensor, shape = scope.constant(node.inputs[1 - kept]), scope.proven_shape(node.inputs[kept])
    if tensor is None or tensor.size == 0 or shape is None or not _fits_into(tensor.shape.numpy(), shape):
        return False
    numbers = tensor.numpy()
    first = numbers.reshape(-1)[0].item()
    if node.op_type in ("Mul", "Div"):
        return bool(first == 1 and (numbers == first).all())
    negative = tensor.dtype.is_floating_point() and math.copysign(1.0, first) < 0
    neutral = first == 0 and (tensor.dtype.is_integer() or negative == (node.op_type == "Add"))
    return bool(neutral and (numbers == 0).all() and (np.signbit(numbers) == negative).all())


def _fits_into(shape: Sequence[int], other: ir.Shape) -> bool:
    """Whether a broadcast of a shape with another has that other shape."""
    return len(shape) <= len(other) and all(
        size in (1, into) for size, into in zip(reversed(shape), reversed(other), strict=False)
    )


def _kept(node: ir.Node, scope: Scope) -> int:
    """Which input is returned."""
    commutative = node.op_type in ("Add", "Mul") and len(node.inputs) == 2
    return 1 if commutative and scope.constant(node.inputs[0]) is not None else 0


def _int(node: ir.Node, name: str, default: int | None) -> int | None:
    """An integer attribute; None if the caller of a function supplies it, or if it is none."""
    attribute = node.attributes.get(name)
    if attribute is None:
        return default
    return None if attribute.is_ref() or attribute.type != ir.AttributeType.INT else attribute.as_int()


def _operand(node: ir.Node, scope: Scope, index: int, name: str, absent: list[int] | None = None) -> list[int] | None:
    """A list of integers that is an input or, in older opsets, an attribute; None if it is not constant."""
    attribute = node.attributes.get(name)
    if attribute is not None:
        return None if attribute.is_ref() else list(attribute.as_ints())
    value = node.inputs[index] if index < len(node.inputs) else None
    return absent if value is None else ints(scope.constant(value))


_TESTS: dict[str, Callable[[ir.Node, Scope], bool]] = {
    "Add": _neutral,
    "Cast": _cast,
    "CastLike": _cast_like,
    "Concat": _one_input,
    "Div": _neutral,
    "Dropout": _dropout,
    "Expand": _expand,
    "Flatten": _flatten,
    "Identity": _always,
    "Max": _one_input,
    "Mean": _one_input,
    "Min": _one_input,
    "Mul": _neutral,
    "Pad": _pad,
    "Reshape": _reshape,
    "Slice": _slice,
    "Squeeze": _same_shape,
    "Sub": _neutral,
    "Sum": _one_input,
    "Tile": _tile,
    "Transpose": _transpose,
    "Unsqueeze": _same_shape,
}


@dataclass(frozen=True)
class _Found(Match):
    value: ir.Value
    mask: bool = False
    """Whether Dropout's mask is used: it is all true."""


class RemoveIdentity(NodeRewrite[_Found]):
    """Remove nodes that return their input unchanged."""

    name = "remove-identity"
    operators = frozenset(("", operator) for operator in _TESTS)
    tensors_only = False
    allows_references = True

    def match(self, node: ir.Node, context: NodeContext) -> _Found | Skip | None:
        """Apply the test of the operator; check that the output can be replaced by the input."""
        scope = context.scope
        value, output = (node.inputs[_kept(node, scope)] if node.inputs else None), node.outputs[0]
        if value is None or not _TESTS[node.op_type](node, scope):
            return None
        mask = len(node.outputs) > 1 and bool(node.outputs[1].uses() or node.outputs[1].is_graph_output())
        if mask and scope.opset() < 12:
            return Skip("its mask is used, whose dtype depends on the input's before opset 12")
        if output.is_graph_output() and not can_take_name(value, node.graph):
            return Skip(f"{output.name} is an output of the graph, and {value.name} cannot be")
        return _Found(node, value, mask)

    def rewrite(self, match: _Found, edit: Edit) -> Sequence[ir.Value | None]:
        """The input; for a mask, a tensor of true of its shape."""
        outputs: list[ir.Value | None] = [match.value, *[None for _ in match.node.outputs[1:]]]
        if match.mask:
            true = ir.Tensor(np.array([True]))
            outputs[1] = edit.op("ConstantOfShape", [edit.op("Shape", [match.value])], {"value": true})
        return outputs
