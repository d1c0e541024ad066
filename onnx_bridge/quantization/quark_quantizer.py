"""Quark's quantizer for ONNX models.

Its rewrites for AMD's NPUs (Sigmoid to HardSigmoid, scales aligned for a DPU) change what the model computes, and are
turned off.
"""

from __future__ import annotations

from typing import Any

from onnx_bridge.core.errors import InputError
from onnx_bridge.core.third_party import describe, suppressed_output
from onnx_bridge.quantization import quark
from onnx_bridge.quantization.calibration_data import CalibrationReader
from onnx_bridge.quantization.prepare import Source
from onnx_bridge.requests.schemes import BLOCK, Scheme

_SPECS = {
    "int8": ("Int8Spec", "Int8Spec"),
    "int8-pow2": ("XInt8Spec", "XInt8Spec"),
    "uint8": ("UInt8Spec", "Int8Spec"),
    "int16": ("Int16Spec", "Int8Spec"),
    "bf16": ("BFloat16Spec", "BFloat16Spec"),
    "bfp16": ("BFP16Spec", "BFP16Spec"),
    "mxfp4": ("MXFP4E2M1Spec", "MXFP4E2M1Spec"),
    "int4-weights": ("Int8Spec", "Int8Spec"),
}
"""Quark's classes for activations and weights, by scheme; 4-bit weights are a separate option."""
_PLAIN = {"EnableNPUCnn": False, "OptimizeModel": False, "PrintSummary": False, "ForceQuantizeNoInputCheck": True}
_FOUR_BITS = {"UseMatMulNBits": True, "MatMulNBitsParams": {"GroupSize": BLOCK, "Symmetric": True, "Bits": 4}}


def quantize(source: Source, scheme: Scheme, reader: CalibrationReader, *, per_channel: bool) -> tuple[str, ...]:
    """Quantize a file; returns no notes.

    Args:
        source: the file to read, and the one to write.
        scheme: one that it supports.
        reader: the calibration data.
        per_channel: whether weights get a scale for each output channel.

    Raises:
        InputError: Quark is not installed, or it fails, with its message.
    """
    library = quark.load("quark.onnx")
    config = _config(scheme, source, per_channel)
    try:
        with suppressed_output():
            library.ModelQuantizer(config).quantize_model(str(source.path), str(source.target), reader)
    except Exception as error:  # of any type
        raise InputError(f"Quark cannot do it: {describe(error)}", where=scheme.name) from error
    return ()


def _config(scheme: Scheme, source: Source, per_channel: bool) -> Any:
    library, specs = quark.load("quark.onnx"), quark.load("quark.onnx.quantization.config.spec")
    activations, weights = (getattr(specs, each) for each in _SPECS[scheme.name])
    given: dict[str, Any] = {}
    if scheme.calibrated and scheme.name != "int8-pow2":  # which minimizes the squared error
        given["calibration_method"] = specs.CalibMethod.MinMax
    granularity = specs.QuantGranularity.Channel if per_channel else specs.QuantGranularity.Tensor
    weight = weights(**given, quant_granularity=granularity)
    return library.QConfig(
        library.QLayerConfig(input_tensors=activations(**given), weight=weight),
        exclude=list(source.excluded),
        use_external_data_format=source.large,
        extra_options={**_PLAIN, **(_FOUR_BITS if scheme.name == "int4-weights" else {})},
    )
