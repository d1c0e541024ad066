"""Decompose ONNX Runtime's fused operators: products with transposes and factors, activations with biases.

    FusedMatMul<transA, transB, transBatchA, transBatchB, alpha>(A, B)  →  alpha · A' · B'      (also TransposeMatMul)
    FusedGemm<…, activation>(A, B, C)                                   →  activation(Gemm(A, B, C))
    FusedConv<…, activation>(X, W, B, Z)                                →  activation(Conv(X, W, B) + Z)
    Gelu(x), BiasGelu(x, b)                                             →  x · ½ · (1 + Erf(x / √2))
    FastGelu(x, b)                                                      →  x · ½ · (1 + Tanh(√(2/π)·(x + 0.044715 x³)))
    QuickGelu<alpha>(x)                                                 →  x · Sigmoid(alpha · x)
    BiasSplitGelu, BiasAdd, GemmFastGelu                                →  parts of the same
    BiasSoftmax<axis>(x, b)                                             →  Softmax(x + b), over all axes from axis on

Skips: unknown ranks and dtypes, and unknown activations.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import onnx_ir as ir

from passes.builders.arithmetic import Arithmetic
from passes.rewriting.base import Exactness, NotApplicable, Skip
from passes.rewriting.edit import Edit
from passes.rewriting.rewrite import UNKNOWN_DTYPE, UNKNOWN_SHAPE, Replacement, rewrite

_ACTIVATIONS: Mapping[str, tuple[str, ...]] = {
    **dict.fromkeys(("Relu", "Sigmoid", "Tanh", "Softplus", "Softsign"), ()),
    **dict.fromkeys(("LeakyRelu", "Elu", "ThresholdedRelu"), ("alpha",)),
    "HardSigmoid": ("alpha", "beta"),
    "Clip": ("min", "max"),
}
"""The activations that ONNX Runtime fuses, with their parameters."""


def common_dtype(node: ir.Node, edit: Edit) -> ir.DataType:
    """Return the dtype of a node whose inputs all have the same one: that of the first input whose dtype is known."""
    for value in node.inputs:
        dtype = edit.scope.dtype(value)
        if dtype is not None:
            return dtype
    raise NotApplicable(UNKNOWN_DTYPE)


def unfused(a: Arithmetic, node: ir.Node, op_type: str, inputs: Sequence[ir.Value | None]) -> ir.Value:
    """Return the activation of a fused ``node`` applied to ``op_type`` of the first three inputs plus the fourth."""
    operands, summands = list(inputs[:3]), inputs[3:]
    while operands[-1] is None:
        operands.pop()
    attributes = {
        name: attribute.value
        for name, attribute in node.attributes.items()
        if not name.startswith("activation") and attribute.value not in ([], ())
    }
    y = a.op(op_type, operands, attributes)
    for summand in summands:
        y = y if summand is None else a("Add", y, summand)
    return _activated(a, node, y)


def _activated(a: Arithmetic, node: ir.Node, x: ir.Value) -> ir.Value:
    """Apply the activation of a fused ``node`` to ``x``."""
    name = node.attributes.get_string("activation", "")
    if not name:
        return x
    if name not in _ACTIVATIONS:
        raise NotApplicable(f"the activation {name} is unknown")
    separate = [f"activation_{parameter}" for parameter in ("alpha", "beta", "gamma")]
    parameters = [node.attributes.get_float(name) for name in separate if name in node.attributes]
    parameters = parameters or list(node.attributes.get_floats("activation_params", []))
    if name == "Clip":
        return a("Clip", x, *parameters)
    return a(name, x, **dict(zip(_ACTIVATIONS[name], parameters, strict=False)))


def gelu(a: Arithmetic, x: ir.Value, *, tanh: bool = False) -> ir.Value:
    """Return GELU, exact or with the tanh approximation."""
    if a.edit.scope.opset() >= 20:
        return a("Gelu", x, approximate="tanh" if tanh else "none")
    if tanh:
        cubic = a("Add", x, a("Mul", a("Mul", a("Mul", x, x), x), 0.044715))
        inner = a("Tanh", a("Mul", cubic, math.sqrt(2 / math.pi)))
    else:
        inner = a("Erf", a("Mul", x, math.sqrt(0.5)))
    return a("Mul", a("Mul", x, 0.5), a("Add", inner, 1.0))


@rewrite("com.microsoft.BiasSoftmax", exactness=Exactness.ROUNDING, needs_shape=(0,), needs_dtype=(0,))
def decompose_bias_softmax(node: ir.Node, edit: Edit) -> Replacement:
    """Write BiasSoftmax as a sum and a softmax over the flattened axes."""
    a, shape = Arithmetic(edit, edit.dtype(node)), edit.shape(node)
    axis = node.attributes.get_int("axis", 1) % len(shape)
    total = a("Add", *node.inputs)
    if axis == len(shape) - 1:
        return a("Softmax", total, axis=axis)
    flat = a.reshape(total, [math.prod(shape[:axis]), math.prod(shape[axis:])])
    return a.reshape(a("Softmax", flat, axis=1), shape)


@rewrite("com.microsoft.FusedMatMul", "com.microsoft.TransposeMatMul", exactness=Exactness.ROUNDING, needs_dtype=(0,))
def decompose_fused_mat_mul(node: ir.Node, edit: Edit) -> Replacement:
    """Write FusedMatMul and TransposeMatMul as transposes, a product and a factor."""
    a, alpha = Arithmetic(edit, edit.dtype(node)), node.attributes.get_float("alpha", 1.0)
    product = a("MatMul", _transposed(node, 0, "A", edit), _transposed(node, 1, "B", edit))
    return product if alpha == 1.0 else a("Mul", product, alpha)


def _transposed(node: ir.Node, index: int, side: str, edit: Edit) -> ir.Value:
    """Move the first axis after the batch axes (transBatch), then swap the last two (trans)."""
    x = edit.input(node, index)
    shape = edit.scope.shape(x)  # the rank is sufficient
    if shape is None:
        raise NotApplicable(UNKNOWN_SHAPE)
    if len(shape) < 2:
        return x
    order = list(range(len(shape)))
    if node.attributes.get_int(f"transBatch{side}", 0):
        order = [*order[1:-1], 0, order[-1]]
    if node.attributes.get_int(f"trans{side}", 0):
        order[-2:] = order[:-3:-1]
    return x if order == sorted(order) else edit.op("Transpose", [x], {"perm": order})


@rewrite("com.microsoft.FusedGemm", "com.microsoft.FusedConv", exactness=Exactness.ROUNDING)
def decompose_fused_activation(node: ir.Node, edit: Edit) -> Replacement:
    """Write FusedGemm and FusedConv as a product and an activation."""
    a = Arithmetic(edit, common_dtype(node, edit))
    return unfused(a, node, node.op_type.removeprefix("Fused"), node.inputs)


@rewrite(
    "com.microsoft.Gelu",
    "com.microsoft.BiasGelu",
    "com.microsoft.FastGelu",
    "com.microsoft.QuickGelu",
    "com.microsoft.BiasSplitGelu",
    "com.microsoft.BiasAdd",
    "com.microsoft.GemmFastGelu",
    exactness=Exactness.ROUNDING,
)
def decompose_contrib_gelu(node: ir.Node, edit: Edit) -> Replacement:
    """Write com.microsoft's forms of GELU with standard operators."""
    a, x, summands = Arithmetic(edit, common_dtype(node, edit)), edit.input(node), node.inputs[1:]
    if node.op_type == "GemmFastGelu":
        x, summands = a("MatMul", x, summands[0]), summands[1:]
    for summand in summands:
        x = x if summand is None else a("Add", x, summand)
    match node.op_type:
        case "BiasAdd":
            return x
        case "QuickGelu":
            return a("Mul", x, a("Sigmoid", a("Mul", x, node.attributes.get_float("alpha", 1.702))))
        case "BiasSplitGelu":
            shape = edit.scope.static_shape(node.inputs[0])
            if shape is None:
                return Skip(UNKNOWN_SHAPE)
            left, right = a.slice(x, -1, 0, shape[-1] // 2), a.slice(x, -1, shape[-1] // 2, shape[-1])
            return a("Mul", left, gelu(a, right))
    return gelu(a, x, tanh=node.op_type in ("FastGelu", "GemmFastGelu"))
