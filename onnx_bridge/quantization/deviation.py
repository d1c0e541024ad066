"""How far a quantized model is from the float model, output by output, over all samples."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from onnx_bridge.core.errors import InputError
from onnx_bridge.core.values import Array, Value, flat
from onnx_bridge.reference.comparison.metrics import Tally, chunks
from onnx_bridge.reference.comparison.tolerances import EXACT, is_float
from onnx_bridge.samples.inputs import Sample

MOST = 32
"""The maximum number of samples that are compared."""

Run = Callable[[Sample], Mapping[str, Value]]


@dataclass(frozen=True)
class Deviation:
    """How far one output is from that of the float model.

    Attributes:
        name: of the output.
        max_abs: the largest |quantized − float|.
        largest: the largest |float|.
        sqnr_db: signal to quantization noise, 10 · log₁₀(Σ float² / Σ (quantized − float)²); None if there is no
            noise, or the signal is zero.
    """

    name: str
    max_abs: float
    largest: float
    sqnr_db: float | None


def deviations(quantized: Run, original: Run, samples: Sequence[Sample]) -> tuple[Deviation, ...]:
    """Compare a quantized model with the original on the first of the samples.

    Args:
        quantized: runs the quantized model; returns outputs by name.
        original: runs the original, with outputs in the same order: they are compared by position.
        samples: at least one.

    Raises:
        InputError: outputs are NaN or Inf only in the quantized model, or have other shapes; or a model cannot be run.
    """
    tallies: dict[str, Tally] = {}
    largest: dict[str, float] = {}
    for sample in samples[:MOST]:
        found, expected = flat(quantized(sample)), flat(original(sample))
        for (name, array), (_, other) in zip(found.items(), expected.items(), strict=True):
            if array.shape != other.shape:
                what = (
                    f"its shape is {list(array.shape)} in the quantized model, and {list(other.shape)} in the original"
                )
                raise InputError(what, where=f"output {name!r}")
            if not is_float(other.dtype) and other.dtype.kind not in "iub":
                continue
            tally = tallies.setdefault(name, Tally(EXACT))
            for one, two, start in chunks(array, other):
                tally.add(one, two, start)
            largest[name] = max(largest.get(name, 0.0), _largest(other))
    for name, tally in tallies.items():
        if bad := sum(tally.one_sided.values()):
            what = f"{bad} of {tally.seen} numbers are NaN or Inf only in the quantized model"
            raise InputError(what, where=f"output {name!r}", hint="calibrate on representative data")
    return tuple(_deviation(name, tally, largest[name]) for name, tally in tallies.items())


def _deviation(name: str, tally: Tally, largest: float) -> Deviation:
    ratio = tally.metrics().get("sqnr_db")
    return Deviation(name, tally.max_abs, largest, ratio if ratio is not None and math.isfinite(ratio) else None)


def _largest(array: Array) -> float:
    numbers = np.abs(array.astype(np.float64))
    return float(np.max(numbers[np.isfinite(numbers)], initial=0.0))
