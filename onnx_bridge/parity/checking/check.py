"""The verb ``check``: parity of a model or a bundle with its reference."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal

import onnx_ir as ir

from onnx_bridge.bundle.bundle import Bundle, is_bundle
from onnx_bridge.bundle.gpu_preview import GpuPreview
from onnx_bridge.conversion import convert as conversion
from onnx_bridge.conversion.precision.precision import TOLERANCES
from onnx_bridge.core.errors import InputError, RuntimeFailure, RuntimeNotFound
from onnx_bridge.core.progress import Progress, silent
from onnx_bridge.core.values import Array
from onnx_bridge.migraphx import runtime as runtimes
from onnx_bridge.migraphx import worker as workers
from onnx_bridge.migraphx.targets import target_beside
from onnx_bridge.model import io as models
from onnx_bridge.parity.bisect.bisection import Bisection
from onnx_bridge.parity.bisect.localizer import FaultLocalizer
from onnx_bridge.parity.checking.baseline import Baseline
from onnx_bridge.parity.checking.bucket_check import check_buckets
from onnx_bridge.parity.checking.decoder_check import check_decoder
from onnx_bridge.parity.checking.report import CheckReport, Leg
from onnx_bridge.parity.checking.runtime_failure import bisect_advice, bisect_failure, run_until_failure, time_note
from onnx_bridge.parity.failure import Failure
from onnx_bridge.parity.layers.report import LayerReport
from onnx_bridge.parity.submodels.device import Device
from onnx_bridge.reference.comparison.tolerances import PartialTolerance, Tolerance
from onnx_bridge.requests.cleaning import as_json, as_shapes
from onnx_bridge.requests.conversion import ConvertRequest
from onnx_bridge.requests.parity import CheckRequest
from onnx_bridge.samples.files import SampleSource
from passes.graphs.quantization import is_quantized
from passes.isolation.limits import limited

AS_GPU = "rehearsed as gpu, on MIGraphX ref"
"""The name of the leg of ``as_target="gpu"``."""

_SHOWN = 0.5
"""The share of an output's error from which on a layer shows it."""


def check(  # noqa: PLR0913
    model: str | os.PathLike[str] | ir.Model | Bundle,
    *,
    reference: str | os.PathLike[str] | None = None,
    inputs: SampleSource | None = None,
    seed: int = 0,
    samples: int | None = None,
    rtol: float | None = None,
    atol: float | None = None,
    tolerance: str | None = None,
    tolerances: Mapping[str, Tolerance | PartialTolerance] | None = None,
    layers: bool = False,
    layers_memory: float = 1.0,
    evidence: bool = False,
    as_target: Literal["gpu"] | None = None,
    target: str = "auto",
    pipeline: str = "default",
    dims: Mapping[str, int] | None = None,
    shapes: Mapping[str, Sequence[int]] | None = None,
    freeze: Mapping[str, Array | str] | None = None,
    host: bool = True,
    cache: bool = True,
    timeout: float | None = None,
    memory: float | None = None,
    progress: Progress | None = None,
) -> CheckReport:
    """Compare with the reference: the original model on ONNX Runtime's CPU provider, all graph optimizations off.

    Two things are compared: the cleaned model on ONNX Runtime, and the bundle, which is MIGraphX, and ONNX Runtime for
    host partitions. This separates a difference that a pass makes from one that MIGraphX makes. Sequences are compared
    element by element. Where MIGraphX rejects the model, crashes or exceeds a limit, the report says so, with the nodes
    at fault if these can be found without waiting (`onnx_bridge.bisect`).

    Args:
        model: a model, which is converted first (into a temporary folder), or a bundle.
        reference: the original model of a bundle; default: the file that it was converted from.
        inputs: samples, a function that returns them, or where to read them from (`onnx_bridge.samples.files`): an
            ``.npz``, a folder of ``.pb``, a Polygraphy ``.json`` or loader script; default: seeded samples that suit
            the model.
        seed: of generated samples.
        samples: how many to generate (default: 1), or to take of those given (default: all).
        rtol: relative tolerance of floats: |actual − expected| ≤ atol + rtol·|expected|; default: by dtype.
        atol: absolute tolerance of floats; default: by dtype and the size of the values.
        tolerance: the precision that MIGraphX computes in (`onnx_bridge.reference.comparison.tolerances.PRESETS`),
            whose tolerances hold for its outputs instead of those of their dtypes.
        tolerances: by output, before all of these; with ``layers``, of other values too.
        layers: also compare every value of the cleaned model, on the first sample that differs, or the first.
        layers_memory: limit in GiB of the values that this holds at a time.
        evidence: whether the report keeps all outputs, the graphs before and after, and a sketch of each layer.
        as_target: ``gpu`` also rehearses the gpu target: the bundle runs on ``ref`` after those of its passes that need
            no GPU (`onnx_bridge.as_gpu`), with the tolerances of int8 if the model is quantized.
        target: as for `onnx_bridge.convert`, for a model; with ``as_target``, ``auto`` is ``ref``.
        pipeline: likewise.
        dims: likewise.
        shapes: likewise.
        freeze: likewise; given inputs are without the frozen ones.
        host: likewise.
        cache: likewise.
        timeout: limit in seconds for each of MIGraphX's steps.
        memory: limit in GiB for MIGraphX's process.
        progress: called with each step.

    Raises:
        InputError: the model or the inputs are wrong, or the original of a bundle is gone or was changed.
        RuntimeFailure: there is no MIGraphX, or none that the bundle runs on.
    """
    settings = ConvertRequest(
        target=target_beside(as_target, target),
        pipeline=pipeline,
        dims=dict(dims or {}),
        shapes=as_shapes(shapes),
        freeze=as_json(freeze),
        host=host,
        cache=cache,
        timeout=timeout,
        memory=memory,
    )
    request = CheckRequest(
        inputs=inputs,
        seed=seed,
        samples=samples,
        rtol=rtol,
        atol=atol,
        tolerance=tolerance,
        conversion=settings,
        reference=None if reference is None else Path(reference),
        tolerances={name: PartialTolerance(each.rtol, each.atol) for name, each in (tolerances or {}).items()},
        layers=layers,
        layers_memory=layers_memory,
        evidence=evidence,
        as_target=as_target,
    )
    return run(model, request, progress)


def run(
    model: str | os.PathLike[str] | ir.Model | Bundle,
    request: CheckRequest,
    progress: Progress | None = None,
) -> CheckReport:
    """Check a model or a bundle as a request says; errors are those of `check`."""
    with limited(request.limits):
        return _run(model, request, progress)


def _run(
    model: str | os.PathLike[str] | ir.Model | Bundle, request: CheckRequest, progress: Progress | None
) -> CheckReport:
    tell = progress or silent
    timeout, memory = request.conversion.timeout, request.conversion.memory
    if not isinstance(model, ir.Model | Bundle) and is_bundle(model):
        model = Bundle(model, timeout=timeout, memory=memory)
    if not isinstance(model, Bundle):
        return _check_model(model, request, progress)
    if model.manifest.decoder is not None:
        return check_decoder(model, request, tell)
    return (check_buckets if model.manifest.dims else _check_bundle)(model, request, tell)


def _check_model(
    model: str | os.PathLike[str] | ir.Model, request: CheckRequest, progress: Progress | None
) -> CheckReport:
    """Convert a model into a temporary folder, and check the bundle; or report why MIGraphX does not take it."""
    with tempfile.TemporaryDirectory(prefix="onnx-bridge-") as folder:
        try:
            bundle = conversion.run(
                model, Path(folder) / "bundle", replace(request.conversion, prove="never"), progress
            )
        except RuntimeNotFound:
            raise
        except RuntimeFailure as error:
            workers.shared(runtimes.find(None)).start()  # raises if the runtime is at fault
            return _check_unconverted(model, request, Failure.of(error), progress)
        if isinstance(model, ir.Model):
            original = Path(folder) / "original.onnx"
            models.save(model, original)
            request = replace(request, reference=request.reference or original)
        return _check_bundle(bundle, request, progress or silent)


def _check_bundle(bundle: Bundle, request: CheckRequest, tell: Progress) -> CheckReport:
    """Compare a bundle, its cleaned model, and its GPU preview with the reference."""
    baseline = Baseline.of_bundle(request, bundle, tell)
    baseline.compare_cleaned(tell)
    outputs, failure = run_until_failure(bundle, baseline.samples, baseline.device_name, tell)
    baseline.compare(baseline.device_name, outputs, baseline.device_tolerances, failure)
    gpu_notes = _compare_as_gpu(bundle, baseline, tell) if request.as_target is not None else ()
    layers = _compare_layers(bundle, baseline, tell) if request.layers else None
    bisection = None if failure is None else bisect_failure(bundle, failure, baseline.samples[failure.sample or 0])
    manifest = bundle.manifest
    notes = (
        *([f"partitions: {manifest.partition_line}"] if not manifest.wholly_on_migraphx else []),
        *manifest.notes,
        *bundle.notes,
        *baseline.notes,
        *gpu_notes,
        *_fusion_note(baseline.legs, layers),
        *time_note(bundle, failure),
        *bisect_advice(failure, bisection),
    )
    return baseline.report(manifest.name, manifest.versions["migraphx"], notes, layers, bisection)


def _check_unconverted(
    model: str | os.PathLike[str] | ir.Model, request: CheckRequest, failure: Failure, progress: Progress | None
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


def _compare_as_gpu(bundle: Bundle, baseline: Baseline, tell: Progress) -> Sequence[str]:
    """Compare what the bundle computes after the gpu target's passes; returns notes on them and their kernels."""
    preview = GpuPreview(bundle)
    outputs, failure = run_until_failure(preview.bundle, baseline.samples, AS_GPU, tell)
    quantized = bundle.model_path is not None and is_quantized(models.load(bundle.model_path))
    tolerances = baseline.device_tolerances
    baseline.compare(AS_GPU, outputs, tolerances.at_least(TOLERANCES["int8"]) if quantized else tolerances, failure)
    advice = "`onnx-bridge bisect --as gpu` names the group of passes, and the nodes"
    return preview.rehearsal.note, *preview.kernel_notes, *([] if baseline.legs[-1].passed else [advice])


def _compare_layers(bundle: Bundle, baseline: Baseline, tell: Progress) -> LayerReport:
    if bundle.model_path is None:
        what = "layers are those of the cleaned model, which a program alone does not have"
        raise InputError(what, where=str(bundle.path), hint="convert into a folder")
    worker, limits = bundle.program.worker, bundle.program.limits
    device = None if worker is None else Device(worker, bundle.manifest.target, limits)
    host = {each.node: each.reason for partition in bundle.manifest.partitions for each in partition.host}
    report = baseline.compare_layers(device, host, tell)
    outputs = [each for leg in baseline.legs for one in leg.comparisons for each in one.outputs]
    if any(each.differs for each in outputs):
        return report
    return replace(report, undetermined=next((each.undetermined for each in outputs if each.undetermined), None))


def _fusion_note(legs: Sequence[Leg], layers: LayerReport | None) -> list[str]:
    """Return a note if outputs are wrong and every value inside agrees: whether the layers show the difference."""
    wrong = [each for leg in legs for one in leg.comparisons for each in one.outputs if each.differs]
    if layers is None or not layers.passed or not wrong:
        return []
    errors = {row.tensor: row.accumulated.max_abs or 0.0 for row in layers.rows if row.accumulated is not None}
    shown = [each.name for each in wrong if errors.get(each.name, 0.0) >= _SHOWN * (each.max_abs or 0.0)]
    if shown:
        return [
            f"the layers show the difference of {', '.join(shown)} as an accumulated error: each is right alone, "
            "within the tolerances of what is rounded to steps"
        ]
    return [
        "outputs differ though no layer does: fetching intermediate values changes what MIGraphX fuses, and the fault "
        "disappears; `onnx-bridge bisect` localizes it without fetching them"
    ]
