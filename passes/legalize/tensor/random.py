"""Leave to the host nothing but the drawing of random numbers, which waits for no other result.

    RandomNormalLike(x), RandomUniformLike(x)             →  RandomNormal<shape>(), RandomUniform<shape>()
    Bernoulli(p), Multinomial(x), Dropout(x) in training  →  what follows from RandomUniform<shape>()   (``draws.py``)

A compiled program cannot draw anew in each run, so the operators that draw stay on the host. With the shape of what
they are like written down they need nothing, and can all be drawn before the device begins. They draw in float32 or
float64, the dtypes that ONNX Runtime draws in. A seed stays a seed.

Skips: sizes that are not known, but for Bernoulli, whose own body is wrong; Dropout and Multinomial of old opsets.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import onnx_ir as ir

from passes.analysis.randomness import is_random
from passes.build import random_numbers
from passes.build.operands import UNKNOWN_SHAPE, sizes_of
from passes.core.base import Exactness, Skip
from passes.core.edit import Attribute, Edit
from passes.core.matching import is_plain
from passes.core.rewrite import Match, NodeContext, NodeRewrite

_LIKE = frozenset({("", "RandomNormalLike"), ("", "RandomUniformLike")})
_WIDE = (ir.DataType.FLOAT, ir.DataType.DOUBLE)


@dataclass(frozen=True)
class _Drawn(Match):
    """Attributes: the shape; None where it is not known, and that of the input has to do. The dtype."""

    shape: tuple[int, ...] | None
    dtype: ir.DataType


@dataclass(frozen=True)
class DrawFirst(NodeRewrite[_Drawn]):
    """Draw by itself what is random, and compute what follows from it."""

    name = "draw-first"
    exactness = Exactness.ROUNDING
    operators = _LIKE | random_numbers.FROM_UNIFORM

    def match(self, node: ir.Node, context: NodeContext) -> _Drawn | Skip | None:
        """Whether it draws, and how much."""
        scope = context.scope
        if not is_plain(node, scope) or not is_random(node, scope):
            return None
        if (reason := random_numbers.unsupported_reason(node, scope)) is not None:
            return Skip(reason)
        shape, dtype = sizes_of(node.outputs[0], scope), scope.dtype(node.outputs[0])
        if dtype is None or (shape is None and node.op_type != "Bernoulli"):
            return Skip(UNKNOWN_SHAPE)
        return _Drawn(node, shape, dtype)

    def rewrite(self, match: _Drawn, edit: Edit) -> Sequence[ir.Value | None]:
        """The operator without an input, and the rest."""
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
