"""Tolerances for outputs that depend on quantized activations, which ONNX Runtime and PyTorch round differently.

A value halfway between two quantization steps is rounded up or down by the last bit of its operands. Outputs that
depend on values quantized at run time get the tolerance of 8-bit computation; all others, also those that depend on
quantized weights alone, the usual one.
"""

from __future__ import annotations

from collections.abc import Mapping

import onnx_ir as ir

from onnx_bridge.core.tolerance import Tolerance
from onnx_bridge.core.values import Array
from onnx_bridge.reference.comparison.tolerances import preset_tolerance
from passes.graphs.dependencies import fixed_values
from passes.graphs.traversal import operands_of, with_nested
from passes.operators import is_quantizer


def output_tolerances(model: ir.Model, expected: Mapping[str, Array]) -> dict[str, Tolerance]:
    """Return the tolerances of an export's outputs that depend on quantized activations, by name."""
    presets = _presets(model)
    return {name: preset_tolerance(expected[name], preset) for name, preset in presets.items() if name in expected}


def _presets(model: ir.Model) -> dict[str, str]:
    """Return ``int8`` or ``fp8`` for each such output."""
    constant = fixed_values(model.graph)
    reached: dict[ir.Value, str] = {}
    for node in model.graph:
        quantizers = [inner for inner in with_nested([node]) if is_quantizer(inner)]
        presets = {_preset(quantizer) for quantizer in quantizers if quantizer.inputs[0] not in constant}
        presets |= {reached[value] for value in operands_of(node) if value in reached}
        if presets:
            reached |= dict.fromkeys(node.outputs, "fp8" if "fp8" in presets else "int8")
    return {str(value.name): reached[value] for value in model.graph.outputs if value in reached}


def _preset(quantizer: ir.Node) -> str:
    dtype = quantizer.outputs[0].dtype
    return "fp8" if dtype is not None and dtype.is_floating_point() else "int8"
