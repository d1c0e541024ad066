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

import numpy as np
import onnx_ir as ir

from passes.builders.operands import given, is_output_used
from passes.graphs.replacement import can_take_name
from passes.graphs.scopes import Scope
from passes.graphs.tensors import ints
from passes.rewriting.base import Skip
from passes.rewriting.edit import Edit
from passes.rewriting.rewrite import Replacement, rewrite

_SLICE_TO_END = 2**31 - 1
"""The least end of a slice that means the end of the axis."""


def _one_input(node: ir.Node, scope: Scope) -> bool:
    return len(node.inputs) == 1


def _dropout(node: ir.Node, scope: Scope) -> bool:
    if scope.opset() < 12 or given(node, 2) is None:
        return True
    training = scope.constant(node.inputs[2])
    return training is not None and not training.numpy().item()


def _cast(node: ir.Node, scope: Scope) -> bool:
    dtype = scope.dtype(node.inputs[0])
    wanted = _int(node, "to", None) if node.op_type == "Cast" else scope.dtype(node.inputs[1])
    return dtype is not None and dtype == wanted


def _same_shape(node: ir.Node, scope: Scope) -> bool:
    """Return whether the shape is certainly unchanged: equal in all dimensions, none of which is unknown."""
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
    if not any(starts) and all(end >= _SLICE_TO_END for end in ends):
        return True
    return _same_shape(node, scope)


def _expand(node: ir.Node, scope: Scope) -> bool:
    shape, wanted = scope.proven_shape(node.inputs[0]), _operand(node, scope, 1, "shape")
    if shape is not None and wanted is not None and len(wanted) <= len(shape) and all(size == 1 for size in wanted):
        return True
    return _same_shape(node, scope)


def _tile(node: ir.Node, scope: Scope) -> bool:
    repeats = _operand(node, scope, 1, "repeats")
    return repeats is not None and all(count == 1 for count in repeats)


def _flatten(node: ir.Node, scope: Scope) -> bool:
    shape = scope.proven_shape(node.inputs[0])
    return shape is not None and len(shape) == 2 and _int(node, "axis", 1) in (1, -1)


def _neutral(node: ir.Node, scope: Scope) -> bool:
    """Return whether one operand changes no element of the other, and not its shape."""
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
    """Return whether a broadcast of a shape with another has that other shape."""
    return len(shape) <= len(other) and all(
        size in (1, into) for size, into in zip(reversed(shape), reversed(other), strict=False)
    )


def _kept(node: ir.Node, scope: Scope) -> int:
    """Return the index of the input that is returned."""
    commutative = node.op_type in ("Add", "Mul") and len(node.inputs) == 2
    return 1 if commutative and scope.constant(node.inputs[0]) is not None else 0


def _int(node: ir.Node, name: str, default: int | None) -> int | None:
    """Return an integer attribute; None if the caller of a function supplies it, or if it is not an integer."""
    attribute = node.attributes.get(name)
    if attribute is None:
        return default
    return None if attribute.is_ref() or attribute.type != ir.AttributeType.INT else attribute.as_int()


def _operand(node: ir.Node, scope: Scope, index: int, name: str, absent: list[int] | None = None) -> list[int] | None:
    """Return integers that are an input or, in older opsets, an attribute; None if they are not constant."""
    attribute = node.attributes.get(name)
    if attribute is not None:
        return None if attribute.is_ref() else list(attribute.as_ints())
    value = given(node, index)
    return absent if value is None else ints(scope.constant(value))


_TESTS: dict[str, Callable[[ir.Node, Scope], bool]] = {
    "Add": _neutral,
    "Cast": _cast,
    "CastLike": _cast,
    "Concat": _one_input,
    "Div": _neutral,
    "Dropout": _dropout,
    "Expand": _expand,
    "Flatten": _flatten,
    "Identity": lambda node, scope: True,
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


@rewrite(*_TESTS, tensors_only=False, allows_references=True)
def remove_identity(node: ir.Node, edit: Edit) -> Replacement:
    """Remove nodes that return their input unchanged."""
    value, output = (node.inputs[_kept(node, edit.scope)] if node.inputs else None), node.outputs[0]
    if value is None or not _TESTS[node.op_type](node, edit.scope):
        return None
    mask = is_output_used(node, 1)
    if mask and edit.scope.opset() < 12:
        return Skip("the mask is used, whose dtype depends on that of the input before opset 12")
    if output.is_graph_output() and not can_take_name(value, node.graph):
        return Skip(f"{output.name} is an output of the graph, and {value.name} cannot be")
    if not mask:
        return [value]
    true = ir.Tensor(np.array([True]))
    return [value, edit.op("ConstantOfShape", [edit.op("Shape", [value])], {"value": true})]
