"""The samples of a request, and the values of inputs that cleaning makes constant."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import onnx_ir as ir

from onnx_bridge.parity.request import ParityRequest
from onnx_bridge.samples import files
from onnx_bridge.samples import inputs as samplers
from onnx_bridge.samples.inputs import Sample, TensorSpec
from passes.core.base import Context
from passes.specialize.freeze_inputs import FreezeInputs


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
    shapes = {spec.name: spec.shape for spec in specs if spec.shape is not None}
    names = {spec.name for spec in specs}
    wanted, dims = samplers.with_shapes([spec for spec in samplers.specs(original) if spec.name in names], shapes)
    count = 1 if request.samples is None else request.samples
    return samplers.generate(wanted, seed=request.seed, samples=count, dims=dims)


def frozen_values(model: ir.Model, freeze: Mapping[str, str]) -> Sample:
    """The values of the inputs of a model that cleaning makes constant.

    Args:
        model: it is not changed.
        freeze: the values as JSON text.
    """
    if not freeze:
        return {}
    model = model.clone()
    FreezeInputs(values=freeze).run(model, Context())
    tensors = {name: model.graph.initializers[name].const_value for name in freeze}
    return {name: np.asarray(tensor.numpy()) for name, tensor in tensors.items() if tensor is not None}
