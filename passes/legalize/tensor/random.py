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

import onnx_ir as ir

from passes.builders import random_numbers
from passes.graphs.randomness import is_random
from passes.rewriting.base import Exactness, Skip
from passes.rewriting.edit import Edit
from passes.rewriting.expressions import Attribute
from passes.rewriting.rewrite import UNKNOWN_SHAPE, Replacement, rewrite

_LIKE = {"RandomNormalLike": ("mean", "scale"), "RandomUniformLike": ("low", "high")}
"""The parameters of the distributions."""
_FROM_UNIFORM = [operator for _, operator in random_numbers.FROM_UNIFORM]


@rewrite(*_LIKE, *_FROM_UNIFORM, exactness=Exactness.ROUNDING)
def draw_first(node: ir.Node, edit: Edit) -> Replacement:
    """Separate drawing random numbers from what is computed from them."""
    scope = edit.scope
    if not is_random(node, scope):
        return None
    random_numbers.check_supported(node, scope)
    shape, dtype = scope.proven_sizes(node.outputs[0]), scope.dtype(node.outputs[0])
    if dtype is None or (shape is None and node.op_type != "Bernoulli"):
        return Skip(UNKNOWN_SHAPE)
    if node.op_type not in _LIKE:
        uniform = _drawn("RandomUniform", random_numbers.precision(node, scope), shape, node, edit)
        return random_numbers.from_uniform(node, uniform, edit)
    wide = dtype if dtype in (ir.DataType.FLOAT, ir.DataType.DOUBLE) else ir.DataType.FLOAT
    drawn = _drawn(node.op_type.removesuffix("Like"), wide, shape, node, edit)
    return drawn if wide == dtype else edit.op("Cast", [drawn], {"to": dtype.value})


def _drawn(operator: str, dtype: ir.DataType, shape: tuple[int, ...] | None, node: ir.Node, edit: Edit) -> ir.Value:
    """Draw numbers of ``shape``, or of the shape of the node's input if it is unknown."""
    kept = ("seed", *_LIKE.get(node.op_type, ()))
    attributes: dict[str, Attribute] = {"dtype": dtype.value}
    for name in kept:
        if name in node.attributes:
            attributes[name] = float(node.attributes[name].value)  # the seed of Dropout is an integer
    if shape:
        return edit.op(operator, [], attributes | {"shape": shape})
    return edit.op(f"{operator}Like", [node.inputs[0]], attributes)
