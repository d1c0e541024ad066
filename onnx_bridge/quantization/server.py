"""The process of the quantizers of ONNX models."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from onnx_bridge.core.errors import InputError
from onnx_bridge.core.values import Array
from onnx_bridge.quantization import onnxruntime_quantizer, quark
from onnx_bridge.quantization.calibration_data import CalibrationReader, as_arrays
from onnx_bridge.quantization.prepare import Source
from onnx_bridge.requests.schemes import Recipe
from passes.isolation import server, value_messages
from passes.isolation.failure import lacks_memory
from passes.isolation.messages import Message

_QUANTIZERS = {"ort": onnxruntime_quantizer.quantize, "quark": quark.quantize}


def answer(request: dict[str, Any], arrays: dict[str, Array]) -> Message:
    """Quantize a file (see `onnx_bridge.quantization.quantize_graph`); raises MemoryError if none is left."""
    source = Source(Path(request["path"]), Path(request["target"]), tuple(request["excluded"]), request["large"])
    samples = [as_arrays(sample) for sample in value_messages.unpack(request["samples"], arrays)]
    reader = CalibrationReader(samples, server.tell)
    try:
        return {"notes": _QUANTIZERS[request["quantizer"]](source, Recipe(**request["recipe"]), reader)}, {}
    except InputError as error:
        cause = error.__cause__
        if lacks_memory(cause):
            raise MemoryError from None
        return {"error": {"what": error.what, "where": error.where, "hint": error.hint}}, {}
