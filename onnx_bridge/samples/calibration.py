"""Calibration data: the samples on which the ranges of an int8 or fp8 program are measured.

The formats are those of `onnx_bridge.samples.files`, whose samples may be several of the model's batches long. Without
any, seeded random samples are generated, with a note that the ranges are those of noise.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from onnx_bridge.core.errors import InputError
from onnx_bridge.core.values import Array, flat
from onnx_bridge.samples import files
from onnx_bridge.samples.images import ImageRules, image_batches, images_at
from onnx_bridge.samples.inputs import Sample, TensorSpec, generate

_GENERATED = 8
"""The number of samples that are generated if none are given."""


@dataclass(frozen=True)
class Calibration:
    """At least one sample, of one batch each, and the origin of them in words; ``count`` is that of all batches."""

    samples: tuple[Sample, ...]
    source: str
    count: int
    notes: tuple[str, ...] = ()


def load_calibration(
    given: files.SampleSource | None, specs: Sequence[TensorSpec], *, measured: bool = True
) -> Calibration:
    """Load the calibration data of a model.

    Args:
        given: the samples, or where to read them from; None generates some.
        specs: the inputs of the model, with fixed shapes.
        measured: whether ranges are measured on them.

    Raises:
        InputError: the samples are missing, do not fit the model, or have no range: they contain NaN or Inf, or an
            input that is measured is 0 in all of them.
    """
    if given is None:
        generated = tuple(generate(specs, seed=0, samples=_GENERATED))
        note = (
            f"calibrated on {_GENERATED} generated samples (seed 0), whose ranges are not those of real data; "
            "give real data with --calibration"
        )
        return Calibration(generated, "seeded samples", files.count(generated, specs), (note,))
    notes: tuple[str, ...] = ()
    where = str(given) if isinstance(given, (str, os.PathLike)) else "what was given"
    if isinstance(given, (str, os.PathLike)) and (images := images_at(Path(given))):
        rules = ImageRules.beside(Path(given))
        batches = image_batches(images, rules, specs, fill=True)
        samples = [files.validated(files.unlabelled(sample, specs)[0], specs, origin) for origin, sample in batches]
        notes, count = (f"calibrated on {len(images)} images: {rules}",), len(images)
    else:
        samples = files.load(given, specs, split=True)
        count = files.count(samples, specs)
    _check(samples, where)
    if measured:
        _require_ranges(samples, where)
    return Calibration(tuple(samples), where, count, notes)


def _check(samples: Sequence[Sample], where: str) -> None:
    if not samples:
        raise InputError("there are no samples to calibrate on", where=where)
    if warnings := files.find_non_finite(samples):
        raise InputError(f"the samples have no range: {warnings[0]}", where=where)


def _require_ranges(samples: Sequence[Sample], where: str) -> None:
    arrays: dict[str, list[Array]] = {}
    for sample in samples:
        for name, array in flat(sample).items():
            arrays.setdefault(name, []).append(array)
    for name, pieces in arrays.items():
        if "float" in pieces[0].dtype.name and not any(array.any() for array in pieces):
            hint = "if it is a state, give samples of later steps"
            raise InputError(f"the input {name} is 0 in all samples: it has no range", where=where, hint=hint)
