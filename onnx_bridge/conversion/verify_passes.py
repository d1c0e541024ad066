"""Verification of passes: the results of ONNX Runtime before and after each pass."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import onnx_ir as ir

from onnx_bridge.core.tolerance import EXACT, Tolerance
from onnx_bridge.core.values import Array, flat
from onnx_bridge.reference.comparison.compare import Comparison, compare
from onnx_bridge.reference.comparison.tolerances import default_tolerance
from onnx_bridge.reference.reference import Reference
from onnx_bridge.samples import inputs as samplers
from passes.rewriting.base import Exactness
from passes.rewriting.pipeline import Step

_STEP = 0.05
"""The tolerance of a pass that changes quantization, as a share of the largest output."""


class Verifier:
    """A callable that compares the model's outputs before and after each pass, on one seeded sample.

    Args:
        model: the model before the first pass.
        dims: sizes of symbolic dimensions; default: 1.
        shapes: whole shapes of inputs.

    Attributes:
        comparisons: the comparison of each pass; None if it changed nothing.
    """

    def __init__(
        self, model: ir.Model, dims: Mapping[str, int] | None, shapes: Mapping[str, Sequence[int]] | None
    ) -> None:
        self.comparisons: list[Comparison | None] = []
        specs = samplers.specs(model)
        if shapes:
            (sample,) = samplers.generate(specs, dims=dims)
            tensors = {name: array for name, array in sample.items() if isinstance(array, np.ndarray)}
            wanted = {name: tuple(shapes.get(name, array.shape)) for name, array in tensors.items()}
            specs, dims = samplers.with_shapes(specs, wanted)
        (self._sample,) = samplers.generate(specs, dims=dims)
        self._outputs = Reference(model).run(self._sample)

    def __call__(self, step: Step) -> None:
        """Compare the outputs before and after one pass."""
        if not step.result.modified:
            self.comparisons.append(None)
            return
        outputs = Reference(step.result.model).run(self._sample)
        tolerances = {name: _tolerance(array, step.exactness) for name, array in flat(self._outputs).items()}
        self.comparisons.append(compare(outputs, self._outputs, tolerances))
        self._outputs = outputs


def _tolerance(expected: Array, exactness: Exactness) -> Tolerance:
    default = default_tolerance(expected)
    if exactness is Exactness.BITWISE or default == EXACT:
        return EXACT
    if exactness is Exactness.ROUNDING:
        return default
    scale = float(abs(expected.astype("float64")).max(initial=0.0))
    return Tolerance(default.rtol, max(default.atol, _STEP * scale))
