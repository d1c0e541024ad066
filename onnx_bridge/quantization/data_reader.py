"""Samples as quantizers read them: one after the other, with word of how far they are."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from onnx_bridge.core.errors import InputError
from onnx_bridge.core.values import Array, Kind
from onnx_bridge.quantization.schemes import Scheme
from onnx_bridge.samples.calibration import Calibration, load_calibration
from onnx_bridge.samples.files import SampleSource
from onnx_bridge.samples.inputs import Sample, TensorSpec, generate

Tell = Callable[[str], None]


def calibration_for(
    scheme: Scheme, given: SampleSource | None, specs: Sequence[TensorSpec], own: Sequence[Sample] = ()
) -> Calibration:
    """The samples to calibrate on, and to compare on.

    Args:
        scheme: what is quantized to.
        given: where the user's are.
        specs: what the model takes.
        own: samples that come with the model, such as a module's arguments; used where none are given.

    Raises:
        InputError: none are given, and the scheme measures ranges; or they do not suit the model.
    """
    if given is not None:
        return load_calibration(given, specs)
    if own:
        many = f"{len(own)} sample{'s' * (len(own) != 1)}"
        note = f"calibrated on the arguments alone ({many}): give data as the model will see it"
        return Calibration(tuple(own), "the arguments", (note,) if scheme.calibrated else ())
    if scheme.calibrated:
        what = f"there is no calibration data, and {scheme.name} measures the ranges of activations on it"
        raise InputError(what, where="--calibration", hint="give an .npz, an .npy, a folder of images, or a script")
    return Calibration(tuple(generate(specs, seed=0, samples=2)), "seeded samples")


class Readings:
    """What ONNX Runtime's quantizer, and Quark's for ONNX, take samples from."""

    def __init__(self, samples: Sequence[Sample], tell: Tell) -> None:
        self._samples = [plain(each) for each in samples]
        self._tell, self._next = tell, 0

    def get_next(self) -> dict[str, Array] | None:
        """The next sample; None where there is none left."""
        if self._next == len(self._samples):
            return None
        self._next += 1
        self._tell(f"calibrate: sample {self._next} of {len(self._samples)}")
        return self._samples[self._next - 1]


def plain(sample: Sample) -> dict[str, Array]:
    """A sample of arrays alone.

    Raises:
        InputError: the model takes a sequence or an optional, which quantizers do not know.
    """
    for name, value in sample.items():
        if not isinstance(value, np.ndarray):
            kind = Kind.SEQUENCE if isinstance(value, list) else Kind.OPTIONAL
            what = f"it is {'a' if kind is Kind.SEQUENCE else 'an'} {kind.value}, and quantizers only feed tensors"
            raise InputError(what, where=f"input {name!r}")
    return {name: value for name, value in sample.items() if isinstance(value, np.ndarray)}
