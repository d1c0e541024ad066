"""The verb ``check``: parity of a model or a bundle with its reference."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Unpack, overload

from onnx_bridge.bundle.bundle import Bundle
from onnx_bridge.bundle.device import Device
from onnx_bridge.core.errors import InputError, RuntimeFailure, RuntimeNotFound
from onnx_bridge.core.progress import Progress, silent
from onnx_bridge.migraphx import runtime as runtimes
from onnx_bridge.migraphx import worker as workers
from onnx_bridge.parity.bisect.bisection import Bisection
from onnx_bridge.parity.bisect.localizer import FaultLocalizer
from onnx_bridge.parity.checking.accuracy import AccuracyReport
from onnx_bridge.parity.checking.baseline import Baseline, converted
from onnx_bridge.parity.checking.bucket_check import check_buckets
from onnx_bridge.parity.checking.check_data import measure
from onnx_bridge.parity.checking.decoder_check import check_decoder
from onnx_bridge.parity.checking.gpu_legs import GpuLegs
from onnx_bridge.parity.checking.report import CheckReport, Leg
from onnx_bridge.parity.checking.runtime_failure import bisect_advice, bisect_failure, run_until_failure, time_note
from onnx_bridge.parity.failure import Failure
from onnx_bridge.parity.layers.report import LayerReport
from onnx_bridge.requests.parity import CheckRequest, DataRequest
from onnx_bridge.requests.request import ModelSource
from passes.isolation.limits import limited

if TYPE_CHECKING:
    from onnx_bridge.requests.keywords import CheckOptions, DataOptions

_SHOWN = 0.5
"""The share of an output's error from which on a layer shows it."""


@overload
def check(
    model: ModelSource | Bundle, *, progress: Progress | None = None, **options: Unpack[CheckOptions]
) -> CheckReport: ...


@overload
def check(
    model: ModelSource | Bundle, *, progress: Progress | None = None, **options: Unpack[DataOptions]
) -> AccuracyReport: ...


def check(
    model: ModelSource | Bundle, *, progress: Progress | None = None, **options: Any
) -> CheckReport | AccuracyReport:
    """Compare with the reference: the original model on ONNX Runtime's CPU provider, all graph optimizations off.

    Two things are compared: the cleaned model on ONNX Runtime, and the bundle, which is MIGraphX, and ONNX Runtime for
    host partitions. This separates a difference that a pass makes from one that MIGraphX makes. Sequences are compared
    element by element. If MIGraphX rejects the model, crashes or exceeds a limit, the report says so, with the nodes
    at fault if these can be found without waiting (`onnx_bridge.bisect`).

    With ``data``, metrics over a dataset are measured instead: of the original on ONNX Runtime, of the cleaned model,
    and of the bundle. If the dataset has labels, top1, top5 and the iou of masks are those of each side, the reference
    included, against the labels; without, they are those of each side against the reference. The samples are read one
    at a time. With a ``reference``, ``model`` may be a quantized model: then the table says what quantization costs.

    Args:
        model: a model, which is converted first (into a temporary folder), or a bundle, also one with buckets.
        progress: called with each step.
        options: the fields of `onnx_bridge.requests.parity.DataRequest`. If ``rehearse`` is ``gpu``, the bundle also
            runs on ``ref`` after those of the gpu target's passes that need no GPU (`onnx_bridge.as_gpu`), with the
            tolerances of int8 if the model is quantized. ``inputs`` are without the frozen ones.

    Raises:
        InputError: the model, the inputs or the data are wrong, or the original of a bundle is gone or was changed.
        RuntimeFailure: there is no MIGraphX, or none that the bundle runs on.
    """
    request = DataRequest.of(options)
    return run(model, request, progress) if request.data is None else measure(model, request, progress)


def run(model: ModelSource | Bundle, request: CheckRequest, progress: Progress | None = None) -> CheckReport:
    """Check a model or a bundle as a request says; errors are those of `check`."""
    with limited(request.conversion.limits):
        return _run(model, request, progress)


def _run(model: ModelSource | Bundle, request: CheckRequest, progress: Progress | None) -> CheckReport:
    with contextlib.ExitStack() as stack:
        try:
            bundle, request = stack.enter_context(converted(model, request, progress))
        except RuntimeNotFound:
            raise
        except RuntimeFailure as error:
            assert not isinstance(model, Bundle)
            workers.shared(runtimes.find(request.conversion.runtime)).start()  # raises if the runtime is at fault
            return _check_unconverted(model, request, Failure.of(error), progress)
        if bundle.manifest.decoder is not None:
            return check_decoder(bundle, request, progress or silent)
        return (check_buckets if bundle.manifest.dims else _check_bundle)(bundle, request, progress or silent)


def _check_bundle(bundle: Bundle, request: CheckRequest, tell: Progress) -> CheckReport:
    """Compare a bundle, its cleaned model, and its GPU preview with the reference."""
    baseline = Baseline.of_bundle(request, bundle, tell)
    baseline.compare_cleaned(tell)
    runs = bundle.runs(fresh=request.fresh)
    outputs, failure = run_until_failure(bundle, baseline.samples, baseline.device_name, tell, runs)
    baseline.compare(baseline.device_name, outputs, baseline.device_tolerances, failure)
    gpu = GpuLegs.of(bundle, request.rehearsed, baseline.device_tolerances)
    gpu_notes = () if gpu is None else _compare_as_gpu(gpu, baseline, tell)
    layers = _compare_layers(bundle, baseline, tell) if request.layers else None
    bisection = None if failure is None else bisect_failure(bundle, failure, baseline.samples[failure.sample or 0])
    manifest = bundle.manifest
    notes = (
        *([f"partitions: {manifest.partition_line}"] if not manifest.wholly_on_migraphx else []),
        *manifest.notes,
        *bundle.notes,
        *baseline.notes,
        *([runs.note] if runs.used else []),
        *gpu_notes,
        *_fusion_note(baseline.legs, layers),
        *time_note(bundle, failure),
        *bisect_advice(failure, bisection),
    )
    return baseline.report(manifest.name, manifest.versions["migraphx"], notes, layers, bisection)


def _check_unconverted(
    model: ModelSource, request: CheckRequest, failure: Failure, progress: Progress | None
) -> CheckReport:
    """Return the report of a model that MIGraphX rejects: the cleaned model, and the nodes that MIGraphX fails on."""
    tell = progress or silent
    localizer = FaultLocalizer(model, request, reference=request.reference, progress=progress)
    baseline = Baseline.of_localizer(request, localizer)
    baseline.compare_cleaned(tell)
    baseline.legs.append(Leg(f"MIGraphX {localizer.target}", failure=failure))
    bisection = None
    if not failure.kind.is_limit:
        fault = localizer.migraphx(host=request.conversion.host)
        bisection = Bisection(
            localizer.name,
            fault,
            localizer.runs,
            len(baseline.samples),
            request.generated_seed,
            notes=tuple(localizer.notes),
        )
    layers = None
    if request.layers:
        device = Device(workers.shared(localizer.runtime), localizer.target, localizer.limits)
        layers = baseline.compare_layers(device, {}, tell)
    notes = (*localizer.applications.cleaned.notes, *localizer.notes, *bisect_advice(failure, bisection))
    return baseline.report(localizer.name, localizer.runtime.version, notes, layers, bisection)


def _compare_as_gpu(gpu: GpuLegs, baseline: Baseline, tell: Progress) -> Sequence[str]:
    """Compare what a bundle computes in a rehearsal of the gpu target; returns notes on that and its kernels."""
    name, before = gpu.passes.leg, len(baseline.legs)
    if not gpu.passes.computes:
        baseline.legs += gpu.compiled(tell)
    else:
        outputs, failure = run_until_failure(gpu.bundle, baseline.samples, name, tell)
        if not gpu.leaves_out(failure):
            baseline.compare(name, outputs, gpu.tolerances, failure)
    legs = baseline.legs[before:]
    wrong = (n for leg in legs for n, comparison in enumerate(leg.comparisons) if comparison.differs)
    return gpu.conclude(legs, next((baseline.samples[number] for number in wrong), None))


def _compare_layers(bundle: Bundle, baseline: Baseline, tell: Progress) -> LayerReport:
    if bundle.model_path is None:
        what = "layers are those of the cleaned model, which a program alone does not have"
        raise InputError(what, where=str(bundle.path), hint="convert into a folder")
    worker, limits = bundle.program.worker, bundle.program.limits
    device = None if worker is None else Device(worker, bundle.manifest.target, limits)
    host = {share.node: share.reason for partition in bundle.manifest.partitions for share in partition.host}
    report = baseline.compare_layers(device, host, tell)
    outputs = [output for leg in baseline.legs for comparison in leg.comparisons for output in comparison.outputs]
    if any(output.differs for output in outputs):
        return report
    return replace(report, undetermined=next((output.undetermined for output in outputs if output.undetermined), None))


def _fusion_note(legs: Sequence[Leg], layers: LayerReport | None) -> list[str]:
    """Return a note if outputs are wrong and every value inside agrees: whether the layers show the difference."""
    compared = (output for leg in legs for comparison in leg.comparisons for output in comparison.outputs)
    wrong = [output for output in compared if output.differs]
    if layers is None or not layers.passed or not wrong:
        return []
    errors = {row.tensor: row.accumulated.max_abs or 0.0 for row in layers.rows if row.accumulated is not None}
    shown = [output.name for output in wrong if errors.get(output.name, 0.0) >= _SHOWN * (output.max_abs or 0.0)]
    if shown:
        return [
            f"the layers show the difference of {', '.join(shown)} as an accumulated error: each is right alone, "
            "within the tolerances of what is rounded to steps"
        ]
    return [
        "outputs differ though no layer does: fetching intermediate values changes what MIGraphX fuses, and the fault "
        "disappears; `onnx-bridge bisect` localizes it without fetching them"
    ]
