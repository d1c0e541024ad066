"""Write simple operators of com.microsoft with standard operators.

    ExpandDims(x, axis)               →  Unsqueeze(x, axis)
    Range(start, limit)               →  Range(start, limit, 1)
    UnfoldTensor<dim, size, step>(x)  →  Transpose(Gather(x, windows))
    CDist<metric>(A, B)               →  |a|² + |b|² − 2 · a · b for all pairs of rows, or its square root
    GatedAdd(x, y, g)                 →  x + y · g
    ScaledSiLU<alpha>(x, s)           →  z · Sigmoid(z),  z = s · x, or alpha · x
    BranchwiseRMSNorm(x, s)           →  x / √(mean(x²) + ε) · s  per branch
    GatedRMSNorm(x, s, g)             →  the same per row as long as s, times activation(g)
    LinearAttentionGate(x, s, f, b)   →  f · Softplus(x + s), Sigmoid(b)
    LinearAttention(q, k, …)          →  the same, if heads of values share those of q or k, with these repeated

Skips: unknown shapes; an axis that is not constant.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from passes.builders.arithmetic import Arithmetic, wide
from passes.builders.operands import constant_integer, given
from passes.legalize.contrib.normalization import rms_norm
from passes.rewriting.base import Exactness, Skip
from passes.rewriting.edit import Edit, not_constant
from passes.rewriting.rewrite import EVERY_INPUT, Replacement, rewrite


@rewrite("com.microsoft.ExpandDims", needs_shape=(0,))
def rename_expand_dims(node: ir.Node, edit: Edit) -> Replacement:
    """Write ExpandDims as Unsqueeze."""
    x, axis = edit.input(node, 0), edit.input(node, 1)
    place = constant_integer(axis, edit.scope)
    return Skip(not_constant(axis, "the axis")) if place is None else edit.unsqueeze(x, [place])


@rewrite("com.microsoft.Range", needs_shape=EVERY_INPUT, needs_dtype=(0,))
def rename_range(node: ir.Node, edit: Edit) -> Replacement:
    """Write Range as ONNX's, whose operands are scalars and all given."""
    operands = [edit.squeeze(edit.input(node, i), range(len(edit.shape(node, i)))) for i in range(len(node.inputs))]
    step = [] if len(operands) == 3 else [edit.scalar(1, edit.dtype(node))]
    return edit.op("Range", [*operands, *step])


@rewrite("com.microsoft.UnfoldTensor", needs_shape=(0,))
def gather_windows(node: ir.Node, edit: Edit) -> Replacement:
    """Write UnfoldTensor as Gather by constant indices."""
    attributes, shape = node.attributes, edit.shape(node)
    axis, size = attributes.get_int("dim", -1) % len(shape), attributes["size"].as_int()
    starts = np.arange(0, shape[axis] - size + 1, attributes.get_int("step", 1))
    windows = edit.op("Gather", [node.inputs[0], edit.index(starts[:, None] + np.arange(size))], {"axis": axis})
    order = [*range(axis + 1), *range(axis + 2, len(shape) + 1), axis + 1]
    return windows if order == sorted(order) else edit.op("Transpose", [windows], {"perm": order})


@rewrite("com.microsoft.CDist", exactness=Exactness.ROUNDING, needs_dtype=(0,))
def decompose_c_dist(node: ir.Node, edit: Edit) -> Replacement:
    """Compute the distances of all pairs of rows by one product."""
    a, x, y = Arithmetic(edit, edit.dtype(node)), edit.input(node, 0), edit.input(node, 1)
    x_squares, y_squares = (a.reduce("Sum", a("Mul", rows, rows), [1]) for rows in (x, y))
    squares = a("Add", x_squares, a("Transpose", y_squares, perm=[1, 0]))
    products = a("MatMul", x, a("Transpose", y, perm=[1, 0]))
    distances = a("Max", a("Sub", squares, a("Mul", products, 2)), 0)
    is_euclidean = node.attributes.get_string("metric", "sqeuclidean") == "euclidean"
    return a("Sqrt", distances) if is_euclidean else distances


@rewrite("com.microsoft.GatedAdd", exactness=Exactness.ROUNDING)
def decompose_gated_add(node: ir.Node, edit: Edit) -> Replacement:
    """Write GatedAdd as a product and a sum."""
    x, y, gate = node.inputs
    return edit.op("Add", [x, edit.op("Mul", [y, gate])])


@rewrite("com.microsoft.ScaledSiLU", exactness=Exactness.ROUNDING, needs_dtype=(0,))
def decompose_scaled_silu(node: ir.Node, edit: Edit) -> Replacement:
    """Write ScaledSiLU as products and a sigmoid."""
    a, scale = Arithmetic(edit, edit.dtype(node)), given(node, 1)
    z = a("Mul", edit.input(node), node.attributes.get_float("alpha", 1.0) if scale is None else a.cast(scale))
    return a("Mul", z, a("Sigmoid", z))


@rewrite(
    "com.microsoft.BranchwiseRMSNorm",
    "com.microsoft.GatedRMSNorm",
    exactness=Exactness.ROUNDING,
    needs_shape=EVERY_INPUT,
    needs_dtype=(0,),
)
def decompose_contrib_rms_norm(node: ir.Node, edit: Edit) -> Replacement:
    """Write BranchwiseRMSNorm and GatedRMSNorm as means and products of their rows."""
    shape, dtype, scale = edit.shape(node), edit.dtype(node), given(node, 1)
    a, is_gated = Arithmetic(edit, wide(dtype)), node.op_type == "GatedRMSNorm"
    branches, scales = node.attributes.get_int("num_branches", 0), () if scale is None else edit.shape(node, 1)
    rows = shape[-2:]
    if is_gated:
        rows = (shape[-1] // scales[0], scales[0])
    elif branches:
        rows = (branches, shape[-1] // branches)
    factors = a.value(1.0) if scale is None else a.cast(scale)
    if scales == (rows[0] * rows[1],):
        factors = a.reshape(factors, rows)
    x = a.reshape(a.cast(edit.input(node)), [-1, *rows])
    y, _ = rms_norm(a, x, factors, [2], node.attributes.get_float("epsilon", 1e-5))
    if is_gated:
        gate = a.reshape(a.cast(edit.input(node, 2)), [-1, *rows])
        weight = a("Sigmoid", gate)
        if node.attributes.get_string("activation", "silu") != "sigmoid":
            weight = a("Mul", gate, weight)
        y = a("Mul", y, weight)
    return a.cast(a.reshape(y, shape), dtype)


@rewrite("com.microsoft.LinearAttentionGate", exactness=Exactness.ROUNDING, needs_dtype=(0,))
def decompose_linear_attention_gate(node: ir.Node, edit: Edit) -> Replacement:
    """Write LinearAttentionGate as a scaled Softplus and a sigmoid, in float32."""
    dtype, b = edit.dtype(node), given(node, 3)
    a = Arithmetic(edit, wide(dtype))
    shifted = a("Add", a.cast(edit.input(node)), a.cast(edit.input(node, 1)))
    decay = a.cast(a("Mul", a("Softplus", shifted), a.cast(edit.input(node, 2))), dtype)
    outputs = [decay, None if b is None else a.cast(a("Sigmoid", a.cast(b)), dtype)]
    return outputs[: len(node.outputs)]


@rewrite("com.microsoft.LinearAttention", needs_shape=(0, 1))
def repeat_linear_attention_heads(node: ir.Node, edit: Edit) -> Replacement:
    """Repeat the heads of queries and keys that several heads of values share: the standard's operator has no such."""
    queries, values = (node.attributes[f"{name}_num_heads"].as_int() for name in ("q", "kv"))
    size = edit.shape(node)[-1] // queries
    inputs = list(node.inputs)
    for index, heads in enumerate((queries, edit.shape(node, 1)[-1] // size)):
        if heads < values:
            channels = np.arange(heads * size).reshape(heads, size).repeat(values // heads, axis=0)
            inputs[index] = edit.op("Gather", [inputs[index], edit.index(channels.ravel())], {"axis": 2})
    if inputs == list(node.inputs):
        return None
    attributes = {**node.attributes, "q_num_heads": ir.AttrInt64("q_num_heads", max(queries, values))}
    return edit.node(node.op_type, inputs, attributes, domain=node.domain, outputs=len(node.outputs)).outputs
