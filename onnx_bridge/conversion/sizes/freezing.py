"""The passes that give a model its sizes, and the values of frozen inputs."""

from __future__ import annotations

from onnx_bridge.requests.conversion import CleanRequest
from passes.rewriting.pipeline import Pipeline
from passes.specialize.freeze_inputs import FreezeInputs
from passes.specialize.freeze_shapes import FreezeShapes


def freezing(request: CleanRequest) -> Pipeline:
    """Return the passes before the pipeline of a request; they may be empty."""
    passes = Pipeline()
    if request.dims or request.shapes or request.default_dim is not None:
        passes += Pipeline([FreezeShapes(dims=request.dims, shapes=request.shapes, default=request.default_dim)])
    if request.freeze:
        passes += Pipeline([FreezeInputs(values=request.freeze)])
    return passes
