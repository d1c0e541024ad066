"""Reduce random operators to drawing numbers, which depends on no other result.

    RandomNormalLike(x), RandomUniformLike(x)             →  RandomNormal<shape>(), RandomUniform<shape>()
    Bernoulli(p), Multinomial(x), Dropout(x) in training  →  a function of RandomUniform<shape>()
                                                             (`passes.builders.random_numbers`)

A compiled program cannot draw new numbers in each run, so random operators stay on the host. With an explicit shape
they have no inputs, and can all run before the device partitions. They draw float32 or float64, as ONNX Runtime does.
Seeds are kept.

Skips: unknown shapes, except for Bernoulli, whose function body is wrong; Dropout and Multinomial of old opsets.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import onnx_ir as ir

from passes.builders import random_numbers
from passes.builders.operands import UNKNOWN_SHAPE
from passes.graphs.randomness import is_random
from passes.rewriting.base import Exactness, Skip
from passes.rewriting.edit import Edit
from passes.rewriting.expressions import Attribute
from passes.rewriting.rewrite import Match, NodeContext, NodeRewrite

_LIKE = frozenset({("", "RandomNormalLike"), ("", "RandomUniformLike")})
_WIDE = (ir.DataType.FLOAT, ir.DataType.DOUBLE)


@dataclass(frozen=True)
class _Drawn(Match):
    shape: tuple[int, ...] | None
    """None if it is unknown; then it is that of the input."""
    dtype: ir.DataType


class DrawFirst(NodeRewrite[_Drawn]):
    """Separate drawing random numbers from what is computed from them."""

    name = "draw-first"
    exactness = Exactness.ROUNDING
    operators = _LIKE | random_numbers.FROM_UNIFORM

    def match(self, node: ir.Node, context: NodeContext) -> _Drawn | Skip | None:
        """Match nodes that draw numbers of known shape."""
        scope = context.scope
        if not is_random(node, scope):
            return None
        if (reason := random_numbers.unsupported_reason(node, scope)) is not None:
            return Skip(reason)
        shape, dtype = scope.proven_sizes(node.outputs[0]), scope.dtype(node.outputs[0])
        if dtype is None or (shape is None and node.op_type != "Bernoulli"):
            return Skip(UNKNOWN_SHAPE)
        return _Drawn(node, shape, dtype)

    def rewrite(self, match: _Drawn, edit: Edit) -> Sequence[ir.Value | None]:
        """The operator without inputs, and the computation."""
        node = match.node
        seed = node.attributes.get("seed")
        kept: dict[str, Attribute] = {} if seed is None else {"seed": float(seed.value)}
        if (node.domain, node.op_type) not in _LIKE:
            return random_numbers.from_uniform(
                node, self._drawn(match, "RandomUniform", kept, random_numbers.precision(node, edit.scope), edit), edit
            )
        names = ("mean", "scale") if node.op_type == "RandomNormalLike" else ("low", "high")
        kept |= {name: node.attributes[name].as_float() for name in names if name in node.attributes}
        dtype = match.dtype if match.dtype in _WIDE else ir.DataType.FLOAT
        drawn = self._drawn(match, node.op_type.removesuffix("Like"), kept, dtype, edit)
        return [drawn if dtype == match.dtype else edit.op("Cast", [drawn], {"to": match.dtype.value})]

    @staticmethod
    def _drawn(match: _Drawn, operator: str, kept: dict[str, Attribute], dtype: ir.DataType, edit: Edit) -> ir.Value:
        if match.shape:
            return edit.op(operator, [], {**kept, "dtype": dtype.value, "shape": match.shape})
        return edit.op(f"{operator}Like", [match.node.inputs[0]], {**kept, "dtype": dtype.value})


RULES: tuple[NodeRewrite[Any], ...] = (DrawFirst(),)
