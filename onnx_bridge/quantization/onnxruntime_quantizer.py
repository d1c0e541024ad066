"""ONNX Runtime's quantizer: static quantization as QDQ, and matrix weights of 4 bits in blocks."""

from __future__ import annotations

from typing import Any

import onnx

from onnx_bridge.core.errors import InputError
from onnx_bridge.quantization.data_reader import Readings
from onnx_bridge.quantization.prepare import Source
from onnx_bridge.quantization.schemes import BLOCK, Scheme
from onnx_bridge.quantization.silence import silence, told

_TYPES = {
    "int8": ("QInt8", "QInt8"),
    "uint8": ("QUInt8", "QInt8"),
    "int16": ("QInt16", "QInt8"),
    "fp8": ("QFLOAT8E4M3FN", "QFLOAT8E4M3FN"),
}
"""Dtypes of activations and weights, by scheme, as its QuantType has them."""


def quantize(source: Source, scheme: Scheme, readings: Readings, *, per_channel: bool) -> tuple[str, ...]:
    """Quantize a file.

    Args:
        source: what to read, and where to write.
        scheme: one that it can do.
        readings: the calibration data.
        per_channel: whether weights get a scale for each output channel.

    Returns:
        What the user should know, in sentences.

    Raises:
        InputError: it cannot, in its own words.
    """
    softmax = _softmax(source) if scheme.name == "fp8" else []
    try:
        with silence():
            if scheme.name == "int4-weights":
                _few_bits(source)
            else:
                _static(source, scheme, readings, per_channel, [*source.excluded, *softmax])
    except InputError:
        raise
    except Exception as error:  # it raises everything
        raise InputError(f"ONNX Runtime's quantizer cannot do it: {told(error)}", where=scheme.name) from error
    return ("Softmax stays in float: ONNX Runtime's quantizer has no float8 for it",) if softmax else ()


def _softmax(source: Source) -> list[str]:
    """The nodes for whose outputs it knows a range, but not the deviation that a scale of float8 is made from."""
    graph = onnx.load(source.path, load_external_data=False).graph
    return [node.name for node in graph.node if node.op_type == "Softmax"]


def _static(source: Source, scheme: Scheme, readings: Readings, per_channel: bool, excluded: list[str]) -> None:
    from onnxruntime.quantization import CalibrationMethod, QuantFormat, QuantType, quantize_static

    activations, weights = (getattr(QuantType, each) for each in _TYPES[scheme.name])
    options: dict[str, Any] = {"ActivationSymmetric": scheme.name != "uint8"}
    quantize_static(
        source.path,
        source.target,
        readings,
        quant_format=QuantFormat.QDQ,
        activation_type=activations,
        weight_type=weights,
        per_channel=per_channel,
        nodes_to_exclude=excluded,
        calibrate_method=CalibrationMethod.Distribution if scheme.name == "fp8" else CalibrationMethod.MinMax,
        use_external_data_format=source.large,
        extra_options=options,
    )


def _few_bits(source: Source) -> None:
    from onnxruntime.quantization.matmul_nbits_quantizer import DefaultWeightOnlyQuantConfig, MatMulNBitsQuantizer

    config = DefaultWeightOnlyQuantConfig(block_size=BLOCK, is_symmetric=True, bits=4)
    model = onnx.load(source.path)
    quantizer = MatMulNBitsQuantizer(model, nodes_to_exclude=list(source.excluded), algo_config=config)
    quantizer.process()
    quantizer.model.save_model_to_file(str(source.target), source.large)
