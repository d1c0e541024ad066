"""Parity of a bundle with buckets: each at its edge, and inside, where inputs are padded; or on given inputs."""

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
from onnx_bridge.samples import files
from onnx_bridge.samples import inputs as samplers
from onnx_bridge.samples.suitable import frozen_values

_Runs = tuple[str, list[tuple[Sample, Sample]]]
"""A bucket, and samples with the reference's outputs."""


def check_buckets(bundle: Bundle, request: CheckRequest, tell: Progress = silent) -> CheckReport:
    """Compare the buckets with the original model on ONNX Runtime: each at its edge and, padded, inside.

    Given inputs are compared in the buckets that hold them.

    Raises:
        InputError: the request has layers, no bucket holds an input, or the original was changed.
        RuntimeNotFound: no MIGraphX here runs the bundle.
    """
    if request.layers:
        what = "buckets are compared without their layers"
        raise InputError(what, where=str(bundle.path), hint=f"name one of them: {bundle.programs[-1].path}")
    original, notes = original_of(bundle, request.reference)
    manifest, model = bundle.manifest, models.load(original)
    reference = Reference(original, runs=runs_of_original(bundle, original, model, request))
    own = bundle.runs(fresh=request.fresh)
    tolerances, _ = tolerances_of_bundle(request, bundle)
    gpu = GpuLegs.of(bundle, request.rehearsed, tolerances)
    frozen = frozen_values(model, manifest.request.freeze)
    unproven: set[str] = set()

    def given() -> Iterator[_Runs]:
        loaded = files.load(
            request.inputs or (), bundle.specs, count=request.samples, split=True, most=bundle.most_rows
        )
        notes.extend(files.find_non_finite(loaded))
        runs: dict[str, list[tuple[Sample, Sample]]] = {}
        for sample in loaded:
            program, _ = bundle.chosen(sample)
            runs.setdefault(label(program.info.dims), []).append((sample, reference.run({**sample, **frozen})))
        yield from runs.items()

    def generated() -> Iterator[_Runs]:
        axes = {value.name: value.shape for value in manifest.inputs}
        declared = [spec for spec in samplers.specs(model) if spec.name in axes]
        specs = [replace(spec, shape=axes[spec.name]) for spec in declared]
        buckets = [program.dims for program in manifest.programs]
        notes.append(f"each bucket is compared at its edge{', and inside, where inputs are padded' * manifest.pads}")
        for info in manifest.programs:
            runs: list[tuple[Sample, Sample]] = []
            smaller = inside(info.dims, buckets, manifest.exact) if manifest.pads else info.dims
            for dims in (info.dims, smaller) if smaller != info.dims else (info.dims,):
                samples = bucket_samples(specs, dims, seed=request.seed, samples=request.samples or 1)
                truth: list[Sample] = [reference.run({**sample, **frozen}) for sample in samples]
                if dims is info.dims:
                    kept = {name: samples[0][name] for name in manifest.exact}
                    others = livelier_runs(model, reference, frozen, samples[0], kept)
                    unproven.update(enliven(model, samples, truth, others, tolerances))
                runs += zip(samples, truth, strict=True)
            yield label(info.dims), runs

    legs: list[Leg] = []
    gpu_legs: list[Leg] = []
    for bucket, runs in generated() if request.inputs is None else given():

        def comparisons(
            side: Bundle, allowed: Tolerances, runs: Iterable[tuple[Sample, Sample]] = runs
        ) -> Iterator[Comparison]:
            kept = own if side is bundle else KeptRuns(None)
            return (compare(kept.outputs(sample, partial(side, sample)), right, allowed) for sample, right in runs)

        tell(name := f"bucket {bucket}")
        legs.append(Leg.of_bundle(name, comparisons(bundle, tolerances)))
        if gpu is not None:
            tell(name := f"{name}, {gpu.passes.leg}")
            gpu_legs += gpu.compared(name, partial(comparisons, allowed=gpu.tolerances), tell)
    return CheckReport(
        model=manifest.name,
        legs=(*legs, *gpu_legs),
        seed=request.generated_seed,
        unproven=tuple(sorted(unproven)),
        versions=versions(manifest.versions["migraphx"]),
        notes=(
            *manifest.notes,
            *notes,
            *([own.note] if own.used else []),
            *(() if gpu is None else gpu.conclude(gpu_legs)),
        ),
    )
