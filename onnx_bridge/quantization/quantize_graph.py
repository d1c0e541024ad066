"""Quantize an ONNX graph, by AMD Quark or ONNX Runtime's quantizer."""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from onnx_bridge.core.progress import Progress
from onnx_bridge.quantization import isolated
from onnx_bridge.quantization.calibration_data import as_arrays, calibration_samples
from onnx_bridge.quantization.deviation import deviations
from onnx_bridge.quantization.prepare import prepared
from onnx_bridge.quantization.quantized import Quantized, require_quantized, saved, versioned
from onnx_bridge.reference.reference import Reference
from onnx_bridge.requests.quantization import QuantizeRequest
from onnx_bridge.samples.inputs import Sample, specs

_NAMES = {"quark": ("AMD Quark", "amd-quark"), "ort": ("ONNX Runtime", "onnxruntime")}


def quantize_graph(
    model: ir.Model, request: QuantizeRequest, progress: Progress, own: Sequence[Sample] = ()
) -> Quantized:
    """Quantize a graph; raises like `onnx_bridge.quantize`.

    Args:
        model: in float; it is not changed.
        request: how to quantize it.
        progress: called with each stage.
        own: samples that come with the model, for calibration if none are given.
    """
    scheme = request.scheme
    with prepared(model, scheme, request.exclude) as source:
        data = calibration_samples(scheme, request.calibration, specs(model), own)
        samples = [as_arrays(each) for each in data.samples]
        on = f" on {len(samples)} samples" if scheme.calibrated else ""
        progress(f"quantize to {scheme.name}{on}")
        notes = isolated.quantize(request.quantizer, source, scheme, samples, per_channel=request.per_channel)
        quantized = source.result(isolated.LIBRARIES[request.quantizer])
        require_quantized(quantized, scheme)
        progress("compare with the float model")
        reference, original = Reference(quantized), Reference(model)
        found = deviations(
            reference.run,
            original.run,
            data.samples,
        )
        quantized = saved(quantized, request.out, progress)
    return Quantized(
        model=quantized,
        quantizer=versioned(*_NAMES[request.quantizer]),
        scheme=scheme.name,
        per_channel=request.per_channel,
        excluded=source.excluded,
        calibration=data.source,
        samples=len(data.samples),
        deviations=found,
        notes=(*data.notes, *notes, *reference.notes),
        path=request.out,
    )
