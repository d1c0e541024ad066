"""The quantizers of ONNX models, in a process with limits: they run the model on its calibration data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from onnx_bridge.core.errors import InputError
from onnx_bridge.core.values import Array
from onnx_bridge.quantization.prepare import Source
from onnx_bridge.reference.reference import SECONDS
from onnx_bridge.requests.schemes import Scheme
from passes.isolation import limits, value_messages, worker

LIBRARIES: Mapping[str, str] = {"quark": "Quark", "ort": "ONNX Runtime's quantizer"}


def quantize(
    quantizer: str, source: Source, scheme: Scheme, samples: Sequence[Mapping[str, Array]], *, per_channel: bool
) -> tuple[str, ...]:
    """Quantize a file.

    Args:
        quantizer: ``quark`` or ``ort``.
        source: the file to read, and the one to write.
        scheme: one that it supports.
        samples: to calibrate on.
        per_channel: whether weights get a scale for each output channel.

    Returns:
        What the user should know, in sentences.

    Raises:
        InputError: the quantizer is not installed, or it fails, with its message.
        NativeFailure: a limit was exceeded, or it has crashed.
    """
    entries, arrays = value_messages.pack(samples)
    request = {
        "quantizer": quantizer,
        "path": str(source.path),
        "target": str(source.target),
        "excluded": source.excluded,
        "large": source.large,
        "scheme": scheme.name,
        "per_channel": per_channel,
        "samples": entries,
    }
    bounds = limits.current(SECONDS * (2 + len(samples)))  # it loads and writes the model, and runs it on each sample
    (answer, _), _ = worker.shared("quantizers").call(
        "onnx_bridge.quantization.server", request, arrays, limits=bounds, library=LIBRARIES[quantizer]
    )
    if "error" in answer:
        raise InputError(**answer["error"])
    return tuple(answer["notes"])
