"""Failures of MIGraphX during a check: the outputs until the failure, and the nodes that it fails on."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from onnx_bridge.bundle.bundle import Bundle
from onnx_bridge.core.countdown import Countdown
from onnx_bridge.core.errors import RuntimeFailure, RuntimeNotFound, Step
from onnx_bridge.core.files.kept_runs import KeptRuns
from onnx_bridge.core.progress import Progress, duration, silent
from onnx_bridge.core.values import Value
from onnx_bridge.model import io as models
from onnx_bridge.parity.bisect import bisect
from onnx_bridge.parity.bisect.bisection import Bisection
from onnx_bridge.parity.failure import Failure
from onnx_bridge.parity.symptoms.symptom import SymptomKind
from onnx_bridge.requests.conversion import ConvertRequest
from onnx_bridge.requests.parity import BisectRequest
from onnx_bridge.samples.inputs import Sample
from onnx_bridge.verdicts.run_time import work_seconds
from passes.graphs.cost import Work, work


def run_until_failure(
    bundle: Bundle, samples: Sequence[Sample], name: str, tell: Progress = silent, runs: KeptRuns | None = None
) -> tuple[list[dict[str, Value]], Failure | None]:
    """Return the outputs of each sample until MIGraphX fails, and the failure.

    Args:
        name: the name of the leg, for progress.
        tell: called with each sample, and the time that is left; before the first, as estimated.
        runs: the runs of the bundle that are kept.

    Raises:
        RuntimeNotFound: no MIGraphX here runs the bundle.
    """
    outputs: list[dict[str, Value]] = []
    runs = runs or KeptRuns(None)
    step = Step.LOAD
    try:
        if bundle.program.worker is None:
            bundle.open()
        step = Step.RUN
        seconds = estimated_seconds(bundle)
        countdown = Countdown(tell, name, len(samples), None if seconds is None else seconds * len(samples))
        for sample in samples:
            outputs.append(runs.outputs(sample, partial(bundle, sample)))
            countdown.step()
    except RuntimeNotFound:
        raise
    except RuntimeFailure as error:
        return outputs, Failure(step, error, len(outputs) if step is Step.RUN else None)
    return outputs, None


def estimated_seconds(bundle: Bundle) -> float | None:
    """Return the estimated seconds of a run on ref; None for other targets, and without a cleaned model."""
    worker = bundle.program.worker
    if worker is None or bundle.model_path is None or bundle.manifest.target != "ref":
        return None
    model = models.load(bundle.model_path)
    hosted = {share.node for partition in bundle.manifest.partitions for share in partition.host}
    total = sum((work(node) for node in model.graph if node.name not in hosted), Work())
    return work_seconds(total, worker.runtime)


def bisect_failure(bundle: Bundle, failure: Failure, sample: Sample) -> Bisection | None:
    """Return the nodes that MIGraphX fails on; None if an attempt would exceed a limit, or without a cleaned model."""
    if bundle.model_path is None or failure.kind.is_limit:
        return None
    limits = bundle.program.limits
    conversion = ConvertRequest(
        pipeline="none",
        target=bundle.manifest.target,
        timeout=limits.timeout,
        memory=None if limits.memory is None else limits.memory / 2**30,
    )
    return bisect.run(bundle.model_path, BisectRequest(inputs=[sample], conversion=conversion))


def time_note(bundle: Bundle, failure: Failure | None) -> list[str]:
    """Return a note on how long a run that timed out was estimated to take."""
    if failure is None or failure.step is not Step.RUN or failure.kind is not SymptomKind.TIMEOUT:
        return []
    seconds = estimated_seconds(bundle)
    if seconds is None:
        return []
    return [f"a run was estimated to take about {duration(seconds)}; --timeout sets its limit"]


def bisect_advice(failure: Failure | None, bisection: Bisection | None) -> list[str]:
    """Return a note if MIGraphX fails and the nodes at fault are unknown."""
    if failure is None or (bisection is not None and bisection.fault is not None):
        return []
    return ["`onnx-bridge bisect` finds the nodes that it fails on; each of its attempts may take as long as this one"]
