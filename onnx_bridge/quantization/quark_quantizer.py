"""Quark's quantizer for ONNX models.

It is asked for quantization alone: the rewrites that it makes for AMD's NPUs (Sigmoid to HardSigmoid, positions of
scales that suit a DPU) would change what the model computes, and stay off.
"""

from __future__ import annotations

from typing import Any

from onnx_bridge.core.errors import InputError
from onnx_bridge.quantization import quark
from onnx_bridge.quantization.data_reader import Readings
from onnx_bridge.quantization.prepare import Source
from onnx_bridge.quantization.schemes import BLOCK, Scheme
from onnx_bridge.quantization.silence import silence, told

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
"""Quark's classes for activations and weights, by scheme; weights of 4 bits are an option of their own."""
_PLAIN = {"EnableNPUCnn": False, "OptimizeModel": False, "PrintSummary": False, "ForceQuantizeNoInputCheck": True}
_FOUR_BITS = {"UseMatMulNBits": True, "MatMulNBitsParams": {"GroupSize": BLOCK, "Symmetric": True, "Bits": 4}}


def quantize(source: Source, scheme: Scheme, readings: Readings, *, per_channel: bool) -> None:
    """Quantize a file.

    Args:
        source: what to read, and where to write.
        scheme: one that it can do.
        readings: the calibration data.
        per_channel: whether weights get a scale for each output channel.

    Raises:
        InputError: Quark is not installed, or cannot do it, in its own words.
    """
    library = quark.load("quark.onnx")
    config = _config(scheme, source, per_channel)
    try:
        with silence():
            library.ModelQuantizer(config).quantize_model(str(source.path), str(source.target), readings)
    except Exception as error:  # it raises everything
        raise InputError(f"Quark cannot do it: {told(error)}", where=scheme.name) from error


def _config(scheme: Scheme, source: Source, per_channel: bool) -> Any:
    library, specs = quark.load("quark.onnx"), quark.load("quark.onnx.quantization.config.spec")
    activations, weights = (getattr(specs, each) for each in _SPECS[scheme.name])
    given: dict[str, Any] = {}
    if scheme.calibrated and scheme.name != "int8-pow2":  # whose scales are those of the least squared error
        given["calibration_method"] = specs.CalibMethod.MinMax
    granularity = specs.QuantGranularity.Channel if per_channel else specs.QuantGranularity.Tensor
    weight = weights(**given, quant_granularity=granularity)
    return library.QConfig(
        library.QLayerConfig(input_tensors=activations(**given), weight=weight),
        exclude=list(source.excluded),
        use_external_data_format=source.large,
        extra_options={**_PLAIN, **(_FOUR_BITS if scheme.name == "int4-weights" else {})},
    )
