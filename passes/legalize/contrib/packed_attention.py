"""Write com.microsoft's attention of packed tokens (all samples concatenated, without padding) as masked attention.

    PackedMultiHeadAttention(q, k, v, b, …)   →  attention in which a token attends only to its own sample
    PackedAttention(x, W, b, …)               →  the same with (q, k, v) = x · W + b
    RestorePadding(x, offset)                 →  ScatterND of the tokens into zeros

The sample of a token is the number of cumulative lengths at or before its position. Scores are computed for all pairs
of tokens, which is more work than a dedicated kernel does.

Skips: an unknown number of tokens, as after RemovePadding, where it depends on the data; biases of the scores, which
have the layout of padded samples.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir

from passes.builders.arithmetic import Arithmetic
from passes.builders.attention import Heads, Scoring, attend, default_scale, merge_heads, split_heads
from passes.builders.operands import given
from passes.rewriting.base import Exactness, Skip
from passes.rewriting.edit import Edit
from passes.rewriting.rewrite import Match, NodeContext, NodeRewrite

_DOMAIN = "com.microsoft"


@dataclass(frozen=True)
class _Packed(Match):
    tokens: int
    hidden: tuple[int, int, int]
    """The widths of queries, keys and values."""
    dtype: ir.DataType


class UnpackAttention(NodeRewrite[_Packed]):
    """Write PackedAttention and PackedMultiHeadAttention as attention with a mask."""

    name = "unpack-attention"
    exactness = Exactness.ROUNDING
    operators = frozenset({(_DOMAIN, "PackedAttention"), (_DOMAIN, "PackedMultiHeadAttention")})
    needs_shape = (0, 1, 2)
    needs_dtype = (0,)

    def match(self, node: ir.Node, context: NodeContext) -> _Packed | Skip | None:
        """Match nodes without a bias of the scores."""
        projected = node.op_type == "PackedAttention"
        if given(node, 5 if projected else 6) is not None:
            return Skip("the bias of its scores has the layout of padded samples")
        x = context.shape(node)
        if projected:
            third = context.shape(node, 1)[1] // 3
            widths = tuple(node.attributes.get_ints("qkv_hidden_sizes", ()) or (third, third, third))
        elif len(x) == 4:  # (tokens, heads, 3, size)
            widths = (x[1] * x[3],) * 3
        else:
            widths = (x[1], x[1], context.shape(node, 2)[1])
        return _Packed(node, x[0], (widths[0], widths[1], widths[2]), context.dtype(node))

    def rewrite(self, match: _Packed, edit: Edit) -> Sequence[ir.Value | None]:
        """Attention over one sample of all tokens."""
        node, a = match.node, Arithmetic(edit, match.dtype)
        projected, count = node.op_type == "PackedAttention", node.attributes["num_heads"].as_int()
        parts = self._projected(a, match) if projected else self._given(a, match)
        q, k, v = (
            split_heads(a, part, (1, match.tokens, width), count)
            for part, width in zip(parts, match.hidden, strict=True)
        )
        size, value_size = match.hidden[0] // count, match.hidden[2] // count
        heads = Heads(1, count, count, match.tokens, match.tokens, size, value_size)
        ends = node.inputs[4 if projected else 5]
        assert ends is not None
        before = a("Not", a("Less", edit.constant(np.arange(match.tokens, dtype=np.int32)[:, None]), ends))
        sample = a.reduce("Sum", a("Cast", before, to=int(ir.DataType.INT32)), [1])
        same = a("Equal", sample, a.reshape(sample, [1, match.tokens]))
        scale = node.attributes.get_float("scale", 0.0) or default_scale(size)
        output = attend(a, q, k, v, heads, Scoring(scale, same, every_query_attends=True)).output
        output = merge_heads(a, output, (1, count, match.tokens, value_size))
        return [a.reshape(output, [match.tokens, match.hidden[2]])]

    @staticmethod
    def _projected(a: Arithmetic, match: _Packed) -> list[ir.Value]:
        x, weights, bias = match.node.inputs[:3]
        y = a("MatMul", x, weights)
        y = y if bias is None else a("Add", y, bias)
        ends = np.cumsum((0, *match.hidden))
        return [a.slice(y, 1, int(ends[i]), int(ends[i + 1])) for i in range(3)]

    @staticmethod
    def _given(a: Arithmetic, match: _Packed) -> list[ir.Value]:
        q, k, v, bias = match.node.inputs[:4]
        assert q is not None
        if k is None or v is None:
            parts = [a.reshape(a.slice(q, 2, i, i + 1), [match.tokens, match.hidden[i]]) for i in range(3)]
        else:
            parts = [q, k, v]
        if bias is None:
            return parts
        ends = np.cumsum((0, *match.hidden))
        return [a("Add", part, a.slice(bias, 0, int(ends[i]), int(ends[i + 1]))) for i, part in enumerate(parts)]


@dataclass(frozen=True)
class _Padded(Match):
    tokens: int
    width: int
    shape: tuple[int, ...]
    dtype: ir.DataType


class RestorePaddingByScatter(NodeRewrite[_Padded]):
    """Scatter packed tokens to their padded positions."""

    name = "restore-padding"
    exactness = Exactness.BITWISE
    operators = frozenset({(_DOMAIN, "RestorePadding")})
    needs_shape = (0, 1)
    needs_dtype = (0,)

    def match(self, node: ir.Node, context: NodeContext) -> _Padded | Skip | None:
        """Match every node whose sizes are known."""
        tokens, width = context.shape(node)[:2]
        return _Padded(node, tokens, width, context.shape(node, 1), context.dtype(node))

    def rewrite(self, match: _Padded, edit: Edit) -> Sequence[ir.Value | None]:
        """Scatter; the first offsets are those of the tokens."""
        a = Arithmetic(edit, match.dtype)
        x, offsets = match.node.inputs
        assert offsets is not None
        batch, length = match.shape
        order = a("Cast", a.reshape(offsets, [batch * length]), to=int(ir.DataType.INT64))
        places = a.unsqueeze(a.slice(order, 0, 0, match.tokens), [1])
        zeros = a.value(np.zeros((batch * length, match.width)))
        return [a.reshape(a("ScatterND", zeros, places, x), [batch, length, match.width])]


RULES: tuple[NodeRewrite[Any], ...] = (UnpackAttention(), RestorePaddingByScatter())
