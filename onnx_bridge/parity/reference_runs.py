"""The samples of a request, and ONNX Runtime's outputs of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib import metadata

import onnx_ir as ir

from onnx_bridge.core.countdown import Countdown
from onnx_bridge.core.errors import BridgeError, InputError
from onnx_bridge.core.progress import Progress
from onnx_bridge.core.values import Value
from onnx_bridge.reference.reference import Reference
from onnx_bridge.requests.parity import ComparisonRequest
from onnx_bridge.samples import files
from onnx_bridge.samples.inputs import Sample, TensorSpec
from onnx_bridge.samples.suitable import suitable


def samples_for(
    request: ComparisonRequest, specs: Sequence[TensorSpec], original: ir.Model, run: Callable[[Sample], object]
) -> list[Sample]:
    """Return the samples that a request names, or generated ones.

    Args:
        original: the model before cleaning, from which the roles of inputs are derived.
        run: runs the reference; raises InputError for a sample that it does not take.

    Raises:
        InputError: given samples cannot be read, are too few, or do not fit.
    """
    if request.inputs is not None:
        return files.load(request.inputs, specs, count=request.samples, split=True)
    shapes = {spec.name: spec.shape for spec in specs}

    def takes(sample: Sample) -> bool:
        try:
            run(sample)
        except InputError:
            return False
        return True

    return suitable(original, shapes, seed=request.seed, samples=request.samples or 1, takes=takes)


def versions(migraphx: str) -> dict[str, str]:
    """Return the versions that a report names, by library."""
    return {"ONNX Runtime": metadata.version("onnxruntime"), "MIGraphX": migraphx}


def failed_on(error: BridgeError, model: str, sample: int, samples: int | None) -> BridgeError:
    """Return the error, changed to say which sample of ``samples`` (None: unknown) failed, and of which model."""
    of = "" if samples is None else f" of {samples}"
    error.what = f"the {model} fails on sample {sample}, after {sample}{of} were run: {error.what}"
    error.details |= {"model": model, "sample": sample, "samples": samples}
    return error


def run_samples(session: Reference, samples: Sequence[Sample], model: str, tell: Progress) -> list[Mapping[str, Value]]:
    """Return the outputs of each sample, and tell the time that is left before each.

    Raises:
        InputError: ONNX Runtime does not run a sample.
        NativeFailure: a sample exceeded a limit, or ONNX Runtime crashed.
    """
    outputs: list[Mapping[str, Value]] = []
    countdown = Countdown(tell, model, len(samples))
    for sample in samples:
        try:
            outputs.append(session.run(sample))
        except BridgeError as error:
            raise failed_on(error, model, len(outputs), len(samples)) from None
        countdown.step()
    return outputs
