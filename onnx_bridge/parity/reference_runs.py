"""Runs of ONNX Runtime over samples, with progress; a failure says what was done until then."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from onnx_bridge.core.countdown import Countdown
from onnx_bridge.core.errors import BridgeError
from onnx_bridge.core.progress import Progress
from onnx_bridge.core.values import Value
from onnx_bridge.reference.reference import Reference
from onnx_bridge.samples.inputs import Sample


def failed_on(error: BridgeError, model: str, sample: int, samples: int | None) -> BridgeError:
    """An error of ONNX Runtime, which says what was done until then.

    Args:
        error: it is changed.
        model: what was run, in words.
        sample: the number of the sample.
        samples: how many there are; None if that is unknown.
    """
    of = "" if samples is None else f" of {samples}"
    error.what = f"the {model} fails on sample {sample}, after {sample}{of} were run: {error.what}"
    error.details |= {"model": model, "sample": sample, "samples": samples}
    return error


def run_samples(session: Reference, samples: Sequence[Sample], model: str, tell: Progress) -> list[Mapping[str, Value]]:
    """The outputs of each sample.

    Args:
        session: the model.
        samples: its inputs.
        model: what it is, in words.
        tell: is called with each sample, and the time that is left.

    Raises:
        InputError: ONNX Runtime does not run a sample.
        NativeFailure: it exceeded a limit, or crashed.
    """
    found: list[Mapping[str, Value]] = []
    countdown = Countdown(tell, model, len(samples))
    for sample in samples:
        try:
            found.append(session.run(sample))
        except BridgeError as error:
            raise failed_on(error, model, len(found), len(samples)) from None
        countdown.step()
    return found
