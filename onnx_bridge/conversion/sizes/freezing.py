"""The passes that give a model its sizes, and the values of frozen inputs."""

from __future__ import annotations

import onnx_ir as ir

from onnx_bridge.core.errors import InputError
from onnx_bridge.requests.conversion import CleanRequest
from passes.graphs.scopes import Scope
from passes.rewriting.pipeline import Pipeline
from passes.specialize.freeze_inputs import FreezeInputs
from passes.specialize.freeze_shapes import FreezeShapes


def settle_defaults(model: ir.Model, request: CleanRequest) -> list[str]:
    """Return the inputs that have a default, and are constant therefore; those with a given shape lose it.

    Raises InputError if a value is given to what is no input.
    """
    scope = Scope(model, model.graph)
    constants = {*model.graph.initializers} - {
        value.name for value in model.graph.inputs if not scope.is_parameter(value)
    }
    if frozen := [name for name in request.freeze if name in constants]:
        what = f"{frozen[0]} is a constant of the model, and no input"
        raise InputError(what, where="freeze", hint="leave it out, or change the model")
    defaults = [value for value in model.graph.inputs if value.is_initializer() and not scope.is_parameter(value)]
    for value in (value for value in defaults if value.name in request.shapes):
        del model.graph.initializers[str(value.name)]
        value.const_value = None
    return [str(value.name) for value in defaults if value.is_initializer() and value.name not in request.freeze]


def freezing(request: CleanRequest, *, defaults: bool = False) -> Pipeline:
    """Return the passes before the pipeline of a request; they may be empty.

    Args:
        defaults: whether inputs that have a default are constant.
    """
    passes = Pipeline()
    if request.dims or request.shapes or request.dim_default is not None:
        passes += Pipeline([FreezeShapes(dims=request.dims, shapes=request.shapes, default=request.dim_default)])
    if request.freeze:
        passes += Pipeline([FreezeInputs(values=request.freeze)])
    return passes + Pipeline([FreezeInputs()]) if defaults else passes
