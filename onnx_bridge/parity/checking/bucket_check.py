"""Parity of a bundle with buckets: each at its edge, and inside, where inputs are padded."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import partial

from onnx_bridge.bundle.bundle import Bundle
from onnx_bridge.bundle.manifest.axes import inside, label
from onnx_bridge.bundle.padding import bucket_samples
from onnx_bridge.core.errors import InputError
from onnx_bridge.core.files.kept_runs import KeptRuns
from onnx_bridge.core.progress import Progress, silent
from onnx_bridge.model import io as models
from onnx_bridge.parity.checking.baseline import livelier_runs, original_of, runs_of_original, tolerances_of_bundle
from onnx_bridge.parity.checking.gpu_legs import GpuLegs
from onnx_bridge.parity.checking.report import CheckReport, Leg
from onnx_bridge.parity.reference_runs import versions
from onnx_bridge.reference.comparison.compare import Comparison, compare
from onnx_bridge.reference.comparison.dependence import Sample, enliven
from onnx_bridge.reference.comparison.tolerances import Tolerances
from onnx_bridge.reference.reference import Reference
from onnx_bridge.requests.parity import CheckRequest
from onnx_bridge.samples import inputs as samplers
from onnx_bridge.samples.suitable import frozen_values


def check_buckets(bundle: Bundle, request: CheckRequest, tell: Progress = silent) -> CheckReport:
    """Compare each bucket with the original model on ONNX Runtime, at its edge and, padded, inside.

    Raises:
        InputError: the request has inputs or layers, or the original was changed.
        RuntimeNotFound: no MIGraphX here runs the bundle.
    """
    if request.inputs is not None or request.layers:
        what = "buckets are compared on generated samples of their sizes, and without their layers"
        raise InputError(what, where=str(bundle.path), hint="name the folder of one bucket")
    original, notes = original_of(bundle, request.reference)
    axes = {value.name: value.shape for value in bundle.manifest.inputs}
    model = models.load(original)
    frozen = frozen_values(model, bundle.manifest.request.freeze)
    declared = [spec for spec in samplers.specs(model) if spec.name in axes]
    specs = [replace(spec, shape=axes[spec.name]) for spec in declared]
    reference = Reference(original, runs=runs_of_original(bundle, original, model, request))
    own = bundle.runs(fresh=request.fresh)
    buckets = [program.dims for program in bundle.manifest.programs]
    tolerances, _ = tolerances_of_bundle(request, bundle)
    gpu = GpuLegs.of(bundle, request.rehearsed, tolerances)
    legs: list[Leg] = []
    gpu_legs: list[Leg] = []
    unproven: set[str] = set()
    for info in bundle.manifest.programs:
        runs: list[tuple[Sample, Sample]] = []
        smaller = inside(info.dims, buckets, bundle.manifest.exact) if bundle.manifest.pads else info.dims
        for dims in (info.dims, smaller) if smaller != info.dims else (info.dims,):
            samples = bucket_samples(specs, dims, seed=request.seed, samples=request.samples or 1)
            truth: list[Sample] = [reference.run({**sample, **frozen}) for sample in samples]
            if dims is info.dims:
                kept = {name: samples[0][name] for name in bundle.manifest.exact}
                others = livelier_runs(model, reference, frozen, samples[0], kept)
                unproven |= enliven(model, samples, truth, others, tolerances)
            runs += zip(samples, truth, strict=True)

        def comparisons(
            side: Bundle, allowed: Tolerances, runs: Iterable[tuple[Sample, Sample]] = runs
        ) -> Iterator[Comparison]:
            kept = own if side is bundle else KeptRuns(None)
            return (compare(kept.outputs(sample, partial(side, sample)), right, allowed) for sample, right in runs)

        tell(name := f"bucket {label(info.dims)}")
        legs.append(Leg.of_bundle(name, comparisons(bundle, tolerances)))
        if gpu is not None:
            tell(name := f"{name}, {gpu.passes.leg}")
            gpu_legs += gpu.compared(name, partial(comparisons, allowed=gpu.tolerances), tell)
    return CheckReport(
        model=bundle.manifest.name,
        legs=(*legs, *gpu_legs),
        seed=request.seed,
        unproven=tuple(sorted(unproven)),
        versions=versions(bundle.manifest.versions["migraphx"]),
        notes=(
            *bundle.manifest.notes,
            *notes,
            *([own.note] if own.used else []),
            *(() if gpu is None else gpu.conclude(gpu_legs)),
            f"each bucket is compared at its edge{', and inside, where inputs are padded' * bundle.manifest.pads}",
        ),
    )
