"""The precision that a model computes in, which the dtypes of its outputs need not show."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import onnx_ir as ir

from onnx_bridge.conversion.precision.precision import TOLERANCES
from onnx_bridge.reference.comparison.computed_precision import EPSILON, computed_precisions
from onnx_bridge.reference.comparison.tolerances import PRESETS, Tolerances
from passes.graphs.scopes import scopes
from passes.operators import is_quantizer


@dataclass(frozen=True)
class ComputedPrecision:
    """The precision of a model.

    Attributes:
        preset: one of `onnx_bridge.reference.comparison.tolerances.PRESETS`; None goes by the outputs' dtypes.
        doubles: the presets of doubles that are made of float32, by name.
    """

    preset: str | None = None
    doubles: Mapping[str, str] = field(default_factory=dict)

    @property
    def tolerances(self) -> Tolerances:
        """The tolerances of outputs, as `check` has them for a conversion to this precision."""
        return Tolerances(self.preset, inside=self.doubles)

    @property
    def epsilon(self) -> float:
        """The unit in the last place of 1.0; 0 if the outputs' dtypes decide."""
        return EPSILON.get(self.preset or "", 0.0)


def computed_precision(original: ir.Model, cleaned: ir.Model, converted_to: str) -> ComputedPrecision:
    """Return the coarsest precision that a model computes in; ties of quantizers need int8's tolerances."""
    presets = {TOLERANCES[converted_to]} if converted_to != "fp32" else set()
    inside = {name: each.preset for name, each in computed_precisions(original, cleaned).items()}
    doubles = {name: preset for name, preset in inside.items() if preset == "float32"}
    presets |= {preset for preset in inside.values() if preset != "float32"}
    nodes = (node for model in (original, cleaned) for scope in scopes(model) for node in scope.nodes())
    if any(map(is_quantizer, nodes)):
        presets.add("int8")
    return ComputedPrecision(max(presets, key=lambda preset: PRESETS[preset] or 0.0, default=None), doubles)
