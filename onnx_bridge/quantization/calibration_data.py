"""The samples that quantizers calibrate on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from onnx_bridge.core.errors import InputError
from onnx_bridge.core.values import Array, Kind
from onnx_bridge.requests.schemes import Scheme
from onnx_bridge.samples import files
from onnx_bridge.samples.calibration import Calibration, load_calibration
from onnx_bridge.samples.files import SampleSource
from onnx_bridge.samples.inputs import Sample, TensorSpec, generate


def calibration_samples(
    scheme: Scheme,
    given: SampleSource | None,
    specs: Sequence[TensorSpec],
    own: Sequence[Sample] = (),
    dims: Mapping[str, int] | None = None,
) -> Calibration:
    """Return the samples for calibration and for the comparison with the float model.

    Args:
        scheme: the scheme to quantize to.
        given: the user's samples, or where to read them from.
        specs: the model's inputs.
        own: samples that come with the model, such as a module's arguments; used if none are given.
        dims: the sizes of open dimensions in samples that are generated; others are 1.

    Raises:
        InputError: the scheme measures ranges and there are no samples, or they do not fit the model.
    """
    if given is not None:
        return load_calibration(given, specs)
    if own:
        count = files.count(own, specs)
        many = files.described(count, len(own))
        note = f"calibrated on the arguments alone ({many}): give representative data"
        return Calibration(tuple(own), "the arguments", count, (note,) if scheme.calibrated else ())
    if scheme.calibrated:
        what = f"calibration data is missing, and {scheme.name} measures the ranges of activations on it"
        raise InputError(what, where="calibration", hint="give an .npz, an .npy, a folder of images, or a script")
    seeded = tuple(generate(specs, seed=0, samples=2, dims=dims))
    return Calibration(seeded, "seeded samples", files.count(seeded, specs))


class CalibrationReader:
    """The samples as ONNX Runtime's quantizer, and Quark's for ONNX, read them."""

    def __init__(self, samples: Sequence[Mapping[str, Array]]) -> None:
        self._samples = iter(samples)

    def get_next(self) -> dict[str, Array] | None:
        """Return the next sample, which may be changed; None after the last."""
        sample = next(self._samples, None)
        return None if sample is None else {name: array.copy() for name, array in sample.items()}


def as_arrays(sample: Sample) -> dict[str, Array]:
    """Return a sample of arrays only; raises InputError if an input is a sequence or an optional."""
    for name, value in sample.items():
        if not isinstance(value, np.ndarray):
            kind = Kind.SEQUENCE if isinstance(value, list) else Kind.OPTIONAL
            what = f"quantizers support only tensors, not {'a' if kind is Kind.SEQUENCE else 'an'} {kind.value}"
            raise InputError(what, where=f"input {name!r}")
    return {name: value for name, value in sample.items() if isinstance(value, np.ndarray)}
