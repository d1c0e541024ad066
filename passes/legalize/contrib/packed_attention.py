"""Write com.microsoft's attention of packed tokens (all samples concatenated, without padding) as masked attention.

    PackedMultiHeadAttention(q, k, v, b, …)   →  attention in which a token attends only to its own sample
    PackedAttention(x, W, b, …)               →  the same with (q, k, v) = x · W + b
    RestorePadding(x, offset)                 →  ScatterND of the tokens into zeros

The sample of a token is the number of cumulative lengths at or before its position. Scores are computed for all pairs
of tokens, which is more work than a dedicated kernel does.

Skips: an unknown number of tokens, as after RemovePadding, when it depends on the data; biases of the scores, which
have the layout of padded samples.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from passes.builders.arithmetic import Arithmetic
from passes.builders.attention import Heads, Scoring, attend, default_scale, merge_heads, split_heads
from passes.builders.operands import given
from passes.rewriting.base import Exactness, Skip
from passes.rewriting.edit import Edit
from passes.rewriting.rewrite import Replacement, rewrite

_PADDED = "the bias of the scores has the layout of padded samples"


@rewrite("com.microsoft.PackedAttention", exactness=Exactness.ROUNDING, needs_shape=(0, 1), needs_dtype=(0,))
def unpack_projected_attention(node: ir.Node, edit: Edit) -> Replacement:
    """Write PackedAttention as a projection, and attention with a mask."""
    if given(node, 5) is not None:
        return Skip(_PADDED)
    a = Arithmetic(edit, edit.dtype(node))
    third = edit.shape(node, 1)[1] // 3
    widths = node.attributes.get_ints("qkv_hidden_sizes", ()) or (third, third, third)
    y = a("MatMul", *node.inputs[:2])
    bias = given(node, 2)
    if bias is not None:
        y = a("Add", y, bias)
    ends = np.cumsum((0, *widths)).tolist()
    parts = [a.slice(y, 1, ends[i], ends[i + 1]) for i in range(3)]
    return _attend(a, node, parts, widths, edit.input(node, 4))


@rewrite(
    "com.microsoft.PackedMultiHeadAttention", exactness=Exactness.ROUNDING, needs_shape=(0, 1, 2), needs_dtype=(0,)
)
def unpack_attention(node: ir.Node, edit: Edit) -> Replacement:
    """Write PackedMultiHeadAttention as attention with a mask."""
    if given(node, 6) is not None:
        return Skip(_PADDED)
    a, shape = Arithmetic(edit, edit.dtype(node)), edit.shape(node)
    k, v, bias = node.inputs[1:4]
    if k is None or v is None:  # (tokens, heads, 3, size)
        width = shape[1] * shape[3]
        widths = [width] * 3
        parts = [a.reshape(a.slice(edit.input(node), 2, i, i + 1), [shape[0], width]) for i in range(3)]
    else:
        widths = [shape[1], shape[1], edit.shape(node, 2)[1]]
        parts = [edit.input(node), k, v]
    if bias is not None:
        ends = np.cumsum((0, *widths)).tolist()
        parts = [a("Add", part, a.slice(bias, 0, ends[i], ends[i + 1])) for i, part in enumerate(parts)]
    return _attend(a, node, parts, widths, edit.input(node, 5))


def _attend(a: Arithmetic, node: ir.Node, parts: Sequence[ir.Value], widths: Sequence[int], ends: ir.Value) -> ir.Value:
    """Return the attention over one sample of all tokens.

    The ``parts`` are queries, keys and values, (tokens, width) each; ``ends`` the cumulative lengths of the samples.
    """
    tokens, count = a.edit.shape(node)[0], node.attributes["num_heads"].as_int()
    q, k, v = (split_heads(a, part, (1, tokens, width), count) for part, width in zip(parts, widths, strict=True))
    heads = Heads(1, count, count, tokens, tokens, widths[0] // count, widths[2] // count)
    is_before = a("Not", a("Less", a.constant(np.arange(tokens, dtype=np.int32)[:, None]), ends))
    sample = a.reduce("Sum", a.cast(is_before, ir.DataType.INT32), [1])
    same = a("Equal", sample, a.reshape(sample, [1, tokens]))
    scale = node.attributes.get_float("scale", 0.0) or default_scale(heads.size)
    output = attend(a, q, k, v, heads, Scoring(scale, same, every_query_attends=True)).output
    return a.reshape(merge_heads(a, output, (1, count, tokens, heads.value_size)), [tokens, widths[2]])


@rewrite("com.microsoft.RestorePadding", needs_shape=(0, 1), needs_dtype=(0,))
def restore_padding(node: ir.Node, edit: Edit) -> Replacement:
    """Scatter packed tokens to their padded positions; the first offsets are those of the tokens."""
    (tokens, width), (batch, length) = edit.shape(node), edit.shape(node, 1)
    order = edit.cast(edit.reshape(edit.input(node, 1), [batch * length]), ir.DataType.INT64)
    places = edit.unsqueeze(edit.slice(order, 0, 0, tokens), [1])
    zeros = edit.constant(np.zeros((batch * length, width), edit.dtype(node).numpy()))
    return edit.reshape(edit.op("ScatterND", [zeros, places, node.inputs[0]]), [batch, length, width])
