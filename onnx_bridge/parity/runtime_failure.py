"""Failures of MIGraphX during a check: the outputs until the failure, and the nodes that it fails on."""

from __future__ import annotations

from collections.abc import Sequence

from onnx_bridge.bundle.bundle import Bundle
from onnx_bridge.conversion.request import ConvertRequest
from onnx_bridge.core.errors import RuntimeFailure, RuntimeNotFound, Step
from onnx_bridge.core.values import Value
from onnx_bridge.parity.bisect import bisect
from onnx_bridge.parity.bisect.bisection import Bisection
from onnx_bridge.parity.failure import Failure
from onnx_bridge.parity.request import BisectRequest
from onnx_bridge.samples.inputs import Sample


def run_until_failure(bundle: Bundle, samples: Sequence[Sample]) -> tuple[list[dict[str, Value]], Failure | None]:
    """The outputs of each sample until MIGraphX fails, and the failure.

    Raises:
        RuntimeNotFound: no MIGraphX here runs the bundle.
    """
    found: list[dict[str, Value]] = []
    step = Step.LOAD
    try:
        if bundle.worker is None:
            bundle.open()
        step = Step.RUN
        for sample in samples:
            found.append(bundle(sample))
    except RuntimeNotFound:
        raise
    except RuntimeFailure as error:
        return found, Failure(step, error, len(found) if step is Step.RUN else None)
    return found, None


def bisect_failure(bundle: Bundle, failure: Failure, sample: Sample) -> Bisection | None:
    """The nodes that MIGraphX fails on; None where each attempt would exceed a limit, or without a cleaned model."""
    if bundle.model_path is None or failure.kind.is_limit:
        return None
    limits = bundle.limits
    conversion = ConvertRequest(
        pipeline="none",
        target=bundle.manifest.target,
        timeout=limits.timeout,
        memory=None if limits.memory is None else limits.memory / 2**30,
    )
    return bisect.run(bundle.model_path, BisectRequest(inputs=[sample], conversion=conversion))


def bisect_advice(failure: Failure | None, bisection: Bisection | None) -> list[str]:
    """A note where MIGraphX fails and the nodes at fault are unknown."""
    if failure is None or (bisection is not None and bisection.fault is not None):
        return []
    return ["`onnx-bridge bisect` finds the nodes that it fails on; each of its attempts may take as long as this one"]
