"""The samples of a request."""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from onnx_bridge.requests.parity import ParityRequest
from onnx_bridge.samples import files
from onnx_bridge.samples.inputs import Sample, TensorSpec
from onnx_bridge.samples.suitable import suitable


def samples_for(request: ParityRequest, specs: Sequence[TensorSpec], original: ir.Model) -> list[Sample]:
    """The samples that a request names, or generated ones.

    Args:
        request: the samples.
        specs: the inputs, with their shapes.
        original: the model before cleaning, from which the roles of inputs are derived.

    Raises:
        InputError: given samples cannot be read, are too few, or do not fit.
    """
    if request.inputs is not None:
        return files.load(request.inputs, specs, count=request.samples)
    shapes = {spec.name: spec.shape for spec in specs}
    return suitable(original, shapes, seed=request.seed, samples=request.samples or 1)
