"""Quantize an ONNX graph, by AMD Quark or ONNX Runtime's quantizer.

Quantizers run the model on its calibration data, so they have a process with limits.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import onnx_ir as ir

from onnx_bridge.core.errors import InputError
from onnx_bridge.core.progress import Progress
from onnx_bridge.core.values import Array
from onnx_bridge.quantization.calibration_data import as_arrays, calibration_samples
from onnx_bridge.quantization.prepare import Source, prepared
from onnx_bridge.quantization.quantized import Quantized, deviations, require_quantized, saved, versioned
from onnx_bridge.reference.reference import SECONDS, Reference
from onnx_bridge.requests.quantization import QuantizeRequest
from onnx_bridge.samples.inputs import Sample, specs
from passes.isolation import limits, value_messages, worker

_LIBRARIES = {"quark": "Quark", "ort": "ONNX Runtime's quantizer"}
_NAMES = {"quark": ("AMD Quark", "amd-quark"), "ort": ("ONNX Runtime", "onnxruntime")}


def quantize_graph(
    model: ir.Model, request: QuantizeRequest, progress: Progress, own: Sequence[Sample] = ()
) -> Quantized:
    """Quantize a graph in float, which is not changed; raises like `onnx_bridge.quantize`.

    ``own`` samples come with the model, for calibration if none are given.
    """
    scheme = request.format
    with prepared(model, scheme, request.exclude) as source:
        data = calibration_samples(scheme, request.calibration, specs(model), own)
        samples = [as_arrays(sample) for sample in data.samples]
        on = f" on {len(samples)} samples" if scheme.calibrated else ""
        progress(f"quantize to {scheme.name}{on}")
        notes = _quantize_file(request, source, samples)
        quantized = source.result(_LIBRARIES[request.with_])
        require_quantized(quantized, scheme)
        progress("compare with the float model")
        reference, original = Reference(quantized), Reference(model)
        compared = deviations(reference.run, original.run, data.samples)
        quantized = saved(quantized, request.out, progress)
    return Quantized(
        model=quantized,
        quantizer=versioned(*_NAMES[request.with_]),
        scheme=scheme.name,
        per_channel=request.per_channel,
        excluded=source.excluded,
        calibration=data.source,
        samples=len(data.samples),
        deviations=compared,
        notes=(*data.notes, *notes, *reference.notes),
        path=request.out,
    )


def _quantize_file(request: QuantizeRequest, source: Source, samples: Sequence[Mapping[str, Array]]) -> tuple[str, ...]:
    """Quantize a file in a quantizer's process; return sentences for the user. Raises InputError or NativeFailure."""
    entries, arrays = value_messages.pack(samples)
    message = {
        "quantizer": request.with_,
        "path": str(source.path),
        "target": str(source.target),
        "excluded": source.excluded,
        "large": source.large,
        "scheme": request.scheme,
        "per_channel": request.per_channel,
        "samples": entries,
    }
    bounds = limits.current(SECONDS * (2 + len(samples)))  # it loads and writes the model, and runs it on each sample
    server, library = "onnx_bridge.quantization.server", _LIBRARIES[request.with_]
    (answer, _), _ = worker.shared("quantizers").call(server, message, arrays, limits=bounds, library=library)
    if "error" in answer:
        raise InputError(**answer["error"])
    return tuple(answer["notes"])
