"""The verb ``inspect``."""

from __future__ import annotations

from onnx_bridge.bundle import inspect as inspection
from onnx_bridge.cli.options import ModelOrBundle
from onnx_bridge.cli.terminal import Json, show


def inspect(model: ModelOrBundle, as_json: Json = False) -> None:
    """Show inputs, outputs, operators, parameters and quantization at a glance."""
    show(inspection.inspect(model), as_json)
