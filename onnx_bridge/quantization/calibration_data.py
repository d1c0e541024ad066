"""The samples that quantizers calibrate on."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from onnx_bridge.core.errors import InputError
from onnx_bridge.core.values import Array, Kind
from onnx_bridge.requests.algorithms import ALGORITHMS
from onnx_bridge.requests.quantization import QuantizeRequest
from onnx_bridge.requests.schemes import Recipe, scheme_of
from onnx_bridge.samples import files
from onnx_bridge.samples.calibration import Calibration, load_calibration
from onnx_bridge.samples.files import SampleSource
from onnx_bridge.samples.inputs import Sample, TensorSpec, generate
from onnx_bridge.samples.text import as_data


def calibration_samples(
    recipe: Recipe,
    given: SampleSource | None,
    specs: Sequence[TensorSpec],
    own: Sequence[Sample] = (),
    dims: Mapping[str, int] | None = None,
) -> Calibration:
    """Return the samples for calibration and for the comparison with the float model.

    Args:
        recipe: the task, whose scheme or algorithms may need data.
        given: the user's samples, or where to read them from.
        specs: the model's inputs.
        own: samples that come with the model, such as a module's arguments; used if none are given.
        dims: the sizes of open dimensions in samples that are generated; others are 1.

    Raises:
        InputError: something is measured and there are no samples, or they do not fit the model.
    """
    measuring = [name for name, _ in recipe.algorithms if ALGORITHMS[name].measures]
    measuring += [recipe.scheme] if scheme_of(recipe.scheme).calibrated else []
    if given is not None:
        return load_calibration(given, specs, measured=bool(measuring))
    if own:
        count = files.count(own, specs)
        many = files.described(count, len(own))
        note = f"calibrated on the arguments alone ({many}): give representative data"
        return Calibration(tuple(own), "the arguments", count, (note,) if measuring else ())
    if measuring:
        what = f"calibration data is missing, and {measuring[0]} measures activations on it"
        raise InputError(what, where="calibration", hint="give an .npz, an .npy, a folder of images, or a script")
    seeded = tuple(generate(specs, seed=0, samples=2, dims=dims))
    return Calibration(seeded, "seeded samples", files.count(seeded, specs))


def with_tokens(
    request: QuantizeRequest, inputs: Sequence[TensorSpec], folders: Iterable[Path] = ()
) -> QuantizeRequest:
    """Return a request with the tokens of the texts that it names as data; ``folders`` may have a tokenizer."""
    if request.data is not None:
        request = replace(request, data=as_data(request.data, inputs, tuple(folders)))
    if isinstance(request.calibration, (str, os.PathLike)):
        tokens = as_data(request.calibration, inputs, tuple(folders))
        if isinstance(tokens, list):
            request = replace(request, calibration=[sample for sample, _ in tokens])
    return request


class CalibrationReader:
    """The samples as ONNX Runtime's quantizer, and Quark's for ONNX, read them.

    Args:
        samples: the samples.
        tell: called with the number of samples that were read in this pass, before each.
    """

    def __init__(self, samples: Sequence[Mapping[str, Array]], tell: Callable[[int], None]) -> None:
        self._samples, self._tell = samples, tell
        self._left, self._read = iter(samples), 0

    def __len__(self) -> int:
        return len(self._samples)

    def set_range(self, start_index: int, end_index: int) -> None:
        """Read some of the samples next, as ONNX Runtime's quantizer asks for, which forgets their activations then."""
        self._left = iter(self._samples[start_index:end_index])

    def get_next(self) -> dict[str, Array] | None:
        """Return the next sample, which may be changed; None after the last."""
        sample = next(self._left, None)
        if sample is None:
            return None
        self.count()
        return {name: array.copy() for name, array in sample.items()}

    def count(self) -> None:
        """Tell that a sample is read."""
        self._tell(self._read)
        self._read += 1

    def restart(self) -> None:
        """Count from the first sample on: a quantizer reads its copy of them several times."""
        self._read = 0


def as_arrays(sample: Sample) -> dict[str, Array]:
    """Return a sample of arrays only; raises InputError if an input is a sequence or an optional."""
    for name, value in sample.items():
        if not isinstance(value, np.ndarray):
            kind = Kind.SEQUENCE if isinstance(value, list) else Kind.OPTIONAL
            what = f"quantizers support only tensors, not {'a' if kind is Kind.SEQUENCE else 'an'} {kind.value}"
            raise InputError(what, where=f"input {name!r}")
    return {name: value for name, value in sample.items() if isinstance(value, np.ndarray)}
