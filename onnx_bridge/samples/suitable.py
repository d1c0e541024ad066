"""Samples that suit a model before it is cleaned, in the shapes that cleaning gave its inputs."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TypeVar

import numpy as np
import onnx_ir as ir

from onnx_bridge.core.values import Value
from onnx_bridge.samples import inputs as samplers
from onnx_bridge.samples.dimensions import Dim
from onnx_bridge.samples.inputs import Sample
from onnx_bridge.samples.roles import Data
from passes.rewriting.base import Context
from passes.specialize.freeze_inputs import FreezeInputs

_Run = TypeVar("_Run")
_TRIED = 4
"""The number of samples that are generated for each, if the reference may refuse some."""
_FACTORS = (None, 1, 16, 256, 1 / 16)
"""The factors of floats in `livelier`; with None they are noise."""
_BLOCK = 8
"""The number of neighbours that are alike in `livelier`, along each of the last two axes."""


def suitable(
    original: ir.Model,
    shapes: Mapping[str, Sequence[Dim] | None],
    *,
    seed: int = 0,
    samples: int = 1,
    takes: Callable[[Sample], bool] | None = None,
) -> list[Sample]:
    """Generate samples for the inputs that cleaning left; raises InputError like `onnx_bridge.samples.inputs.generate`.

    Args:
        original: the model before cleaning, from which the roles of inputs are derived.
        shapes: the shapes of the inputs of the cleaned model, by name; None if the rank is unknown.
        seed: a number of zero or more.
        samples: how many.
        takes: whether the reference runs a sample: a number that selects a branch may be any of several.
    """
    known = {name: shape for name, shape in shapes.items() if shape is not None}
    wanted, dims = samplers.with_shapes(
        [spec for spec in samplers.specs(original, shapes) if spec.name in shapes], known
    )
    if takes is None or not any(spec.may_select for spec in wanted):
        return samplers.generate(wanted, seed=seed, samples=samples, dims=dims)
    generated = samplers.generate(wanted, seed=seed, samples=samples * _TRIED, dims=dims)
    taken = list(itertools.islice(filter(takes, generated), samples))
    return taken if len(taken) == samples else generated[:samples]


def run_suitable(
    samples: Sequence[Sample], run: Callable[[Sequence[Sample]], Sequence[_Run]], refusal: type[Exception]
) -> tuple[list[Sample], list[_Run]]:
    """Run samples, or, if they are refused, one whose integers are 1, or 0; returns what was run, and the results.

    The integers may be out of a range that the model does not show.
    """
    try:
        return list(samples), list(run(samples))
    except refusal:
        integers = {
            name for name, value in samples[0].items() if isinstance(value, np.ndarray) and value.dtype.kind in "iu"
        }
        for number in (1, 0) if integers else ():
            sample = {**samples[0], **{name: np.full_like(samples[0][name], number) for name in integers}}
            with contextlib.suppress(refusal):
                return [sample], list(run([sample]))
        raise


def livelier(
    original: ir.Model, shapes: Mapping[str, Sequence[Dim] | None], first: Mapping[str, Value]
) -> Iterator[Sample]:
    """Yield other samples than the first of `suitable`, on which outputs may depend more.

    After another seed come floats that are alike in neighbourhoods, as in images and audio, of larger ranges, and of a
    small one, which saturates less; each also with the integers of the first sample, which may be sizes that fit
    nothing else.
    """
    kept = {name: value for name, value in first.items() if isinstance(value, np.ndarray) and value.dtype.kind in "iu"}
    roles = {spec.name: spec.role for spec in samplers.specs(original, shapes)}
    for seed, factor in enumerate(_FACTORS, 1):
        (sample,) = suitable(original, shapes, seed=seed)
        for name, array in sample.items() if factor else ():
            if isinstance(array, np.ndarray) and array.dtype.kind == "f" and type(roles[name]) is Data:
                for axis in range(max(0, array.ndim - 2), array.ndim):
                    array = array.take(np.arange(array.shape[axis]) // _BLOCK * _BLOCK, axis)
                sample[name] = (array * factor).astype(array.dtype)
        yield sample
        if kept:
            yield {**sample, **kept}


def frozen_values(model: ir.Model, freeze: Mapping[str, str]) -> Sample:
    """Return the values, given as JSON text, of the inputs of a model that cleaning makes constant."""
    if not freeze:
        return {}
    model = model.clone()
    FreezeInputs(values=freeze).run(model, Context())
    tensors = {name: model.graph.initializers[name].const_value for name in freeze}
    return {name: np.asarray(tensor.numpy()) for name, tensor in tensors.items() if tensor is not None}
