"""Models with random operators, in an opset for which ONNX Runtime's CPU provider has kernels.

Opset 22 added bfloat16 to these operators and changed nothing else; the provider has only the earlier definitions.
"""

from __future__ import annotations

import onnx_ir as ir

from passes.cleanup.infer_shapes import InferShapes
from passes.core.errors import InputError
from passes.graphs.randomness import is_random
from passes.graphs.scopes import Scope
from passes.rewriting.base import Context
from passes.specialize.convert_opset import ConvertOpset

_LAST = 21


def downgrade_random_operators(model: ir.Model) -> ir.Model | None:
    """Return a model in an opset for whose random operators the provider has kernels; None if none is needed or exists.

    Args:
        model: may be rewritten in place.
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
