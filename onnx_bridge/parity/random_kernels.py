"""Models that draw random numbers, in an opset for which ONNX Runtime's CPU provider has the kernels.

Opset 22 let these operators make bfloat16 and changed nothing else; the provider has kept to the definitions before it.
"""

from __future__ import annotations

import onnx_ir as ir

from passes.base import Context
from passes.convert_opset import ConvertOpset
from passes.errors import InputError
from passes.graphs import Scope
from passes.infer_shapes import InferShapes
from passes.randomness import is_random

_LAST = 21


def with_random_kernels(model: ir.Model) -> ir.Model | None:
    """A model in an opset whose random operators the provider has; None where that is not to be had, or not needed.

    Args:
        model: rewritten in place, if anything is.
    """
    scope = Scope(model, model.graph)
    if scope.opset() <= _LAST or not any(is_random(node, scope) for node in scope.nodes()):
        return None
    try:
        InferShapes().run(model, Context())
        ConvertOpset(to=_LAST).run(model, Context())
    except InputError:
        return None
    return model
