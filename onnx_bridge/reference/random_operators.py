"""Models that draw random numbers, in an opset for which ONNX Runtime's CPU provider has the kernels.

Opset 22 let these operators make bfloat16 and changed nothing else; the provider has kept to the definitions before it.
"""

from __future__ import annotations

import onnx_ir as ir

from passes.analysis.randomness import is_random
from passes.cleanup.infer_shapes import InferShapes
from passes.core.base import Context
from passes.core.errors import InputError
from passes.core.graphs import Scope
from passes.specialize.convert_opset import ConvertOpset

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
