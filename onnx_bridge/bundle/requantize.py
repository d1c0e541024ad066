"""Quantizing programs with MIGraphX, also those of a bundle that it cannot read back.

Some quantized programs for ``ref`` can be saved and not loaded again. For these the bundle keeps the calibration
samples: the program is parsed, quantized and compiled again when the bundle is loaded.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from onnx_bridge.bundle.manifest.manifest import Manifest
from onnx_bridge.core.errors import InputError, RuntimeFailure
from onnx_bridge.core.files.regular_file import open_regular
from onnx_bridge.migraphx.program import STORAGE, Program, Tensor
from onnx_bridge.requests.conversion import BY_CALIBRATION
from passes.isolation.numpy_files import read_npz

KEPT = "calibration.npz"
"""The file of a bundle with the samples that its programs are quantized on again."""


class QuantizationError(RuntimeFailure):
    """MIGraphX could not quantize a program; the failure is not attributed to a node."""

    page = "guides/quantized-model.md"


def quantize(program: Program, precision: str, target: str, samples: Sequence[Mapping[str, Tensor]]) -> None:
    """Quantize a parsed program, with ranges measured on samples; raises QuantizationError if MIGraphX fails."""
    try:
        program.quantize(precision, target, samples)
    except RuntimeFailure as error:
        what = f"MIGraphX cannot quantize the program to {precision}: {error.what}"
        hint = "is the calibration data representative?"
        raise QuantizationError(what, hint=hint, output=error.output) from error


def quantize_again(program: Program, index: int, manifest: Manifest, folder: Path) -> None:
    """Quantize a parsed program of a bundle again; raises InputError without samples, QuantizationError."""
    if manifest.request.precision not in BY_CALIBRATION or manifest.quantized_in_model:
        return  # if there is a quantization, the model has it
    path, shapes = folder / KEPT, program.get_parameter_shapes()
    samples: dict[str, dict[str, Tensor]] = {}

    def expected(key: str) -> int | None:
        parts = key.split("/", 2)
        return 0 if parts[0] == str(index) and parts[-1] in shapes else None

    try:
        with open_regular(path) as opened:
            for key, array in read_npz(opened, str(path), expected).items():
                _, number, name = key.split("/", 2)
                kind = shapes[name].type
                samples.setdefault(number, {})[name] = Tensor(kind, array.astype(STORAGE[kind], copy=False))
    except (OSError, ValueError) as error:
        what = f"the program cannot be read back, and the calibration samples are missing: {error}"
        raise InputError(what, where=str(path), hint="convert again") from error
    quantize(program, manifest.request.precision, manifest.target, list(samples.values()))
