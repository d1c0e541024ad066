"""ONNX Runtime's quantizer: static quantization as QDQ, and matrix weights of 4 bits in blocks."""

from __future__ import annotations

from typing import Any

import onnx

from onnx_bridge.core.errors import InputError
from onnx_bridge.core.third_party import describe, suppressed_output
from onnx_bridge.quantization.calibration_data import CalibrationReader
from onnx_bridge.quantization.prepare import Source
from onnx_bridge.requests.schemes import BLOCK, Recipe

_TYPES = {
    "int8": ("QInt8", "QInt8"),
    "uint8": ("QUInt8", "QInt8"),
    "int16": ("QInt16", "QInt8"),
    "fp8": ("QFLOAT8E4M3FN", "QFLOAT8E4M3FN"),
}
"""The members of QuantType for activations and weights, by scheme."""
_METHODS = {"minmax": "MinMax", "percentile": "Percentile", "entropy": "Entropy", "distribution": "Distribution"}
"""The members of CalibrationMethod."""
_ENTROPY = "ONNX Runtime's entropy has as many bins as levels: its ranges are mostly those of minmax"


def quantize(source: Source, recipe: Recipe, reader: CalibrationReader) -> tuple[str, ...]:
    """Quantize the first file of ``source`` into the second, and return what the user should know, in sentences.

    Args:
        source: the file to read, and the one to write.
        recipe: what to do; ONNX Runtime supports it.
        reader: the calibration data.

    Raises:
        InputError: ONNX Runtime fails, with its message.
    """
    softmax: list[str] = []
    if recipe.scheme == "fp8":  # the quantizer has fixed ranges for their outputs, but no float8 scale
        graph = onnx.load(source.path, load_external_data=False).graph
        softmax = [node.name for node in graph.node if node.op_type == "Softmax"]
    try:
        with suppressed_output():
            if recipe.scheme == "int4-weights":
                _four_bits(source, next((name for name, _ in recipe.algorithms), None), reader)
            else:
                _static(source, recipe, reader, [*source.excluded, *softmax])
    except InputError:
        raise
    except Exception as error:  # of any type
        raise InputError(f"ONNX Runtime's quantizer cannot do it: {describe(error)}", where=recipe.scheme) from error
    notes = ("Softmax stays in float: ONNX Runtime's quantizer has no float8 for it",) * bool(softmax)
    return (*notes, _ENTROPY) if recipe.method == "entropy" else notes


def _static(source: Source, recipe: Recipe, reader: CalibrationReader, excluded: list[str]) -> None:
    """Quantize by QDQ, with the activations of one sample in memory.

    The stride is, in spite of its name, that of all methods. With it the histogram of a later sample has more bins, of
    which entropy makes ranges that are far too small: only by entropy are the activations of all samples in memory.
    """
    from onnxruntime.quantization import CalibrationMethod, QuantFormat, QuantType, quantize_static

    activations, weights = (getattr(QuantType, name) for name in _TYPES[recipe.scheme])
    quantize_static(
        source.path,
        source.target,
        reader,
        quant_format=QuantFormat.QDQ,
        activation_type=activations,
        weight_type=weights,
        per_channel=recipe.per_channel,
        nodes_to_exclude=excluded,
        calibrate_method=getattr(CalibrationMethod, _METHODS[str(recipe.method)]),
        use_external_data_format=source.large,
        extra_options={
            "ActivationSymmetric": recipe.scheme != "uint8",
            "CalibStridedMinMax": int(recipe.method != "entropy"),
        },
    )


def _four_bits(source: Source, algorithm: str | None, reader: CalibrationReader) -> None:
    from onnxruntime.quantization import matmul_nbits_quantizer as library

    config: Any = library.DefaultWeightOnlyQuantConfig(block_size=BLOCK, is_symmetric=True, bits=4)
    if algorithm == "hqq":
        try:
            import torch  # noqa: F401 — it fails late without
        except ImportError:
            raise InputError("hqq needs PyTorch", where="algorithm", hint="pip install torch") from None
        config = library.HQQWeightOnlyQuantConfig(block_size=BLOCK, bits=4)
    elif algorithm == "gptq":
        samples = list(iter(reader.get_next, None))
        config = library.GPTQWeightOnlyQuantConfig(calibration_data_reader=samples)
    elif algorithm == "k-quant":
        config = library.KQuantWeightOnlyQuantConfig()
    quantizer = library.MatMulNBitsQuantizer(
        onnx.load(source.path), block_size=BLOCK, nodes_to_exclude=list(source.excluded), algo_config=config
    )
    quantizer.process()
    quantizer.model.save_model_to_file(str(source.target), source.large)
