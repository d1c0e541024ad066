"""Parity of a bundle with buckets: each at its edge, and inside, where inputs are padded."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from functools import partial

from onnx_bridge.bundle.bundle import Bundle
from onnx_bridge.bundle.manifest.axes import inside, label
from onnx_bridge.bundle.padding import bucket_samples
from onnx_bridge.core.errors import InputError
from onnx_bridge.core.progress import Progress, silent
from onnx_bridge.model import io as models
from onnx_bridge.parity.checking.baseline import original_of, tolerances_of_bundle
from onnx_bridge.parity.checking.gpu_legs import GpuLegs
from onnx_bridge.parity.checking.report import CheckReport, Leg
from onnx_bridge.parity.reference_runs import versions
from onnx_bridge.reference.comparison.compare import Comparison, compare
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
    reference = Reference(original)
    buckets = [program.dims for program in bundle.manifest.programs]
    tolerances, _ = tolerances_of_bundle(request, bundle)
    gpu = GpuLegs.of(bundle, request.rehearsed, tolerances)
    legs: list[Leg] = []
    gpu_legs: list[Leg] = []
    for info in bundle.manifest.programs:
        every = (info.dims, inside(info.dims, buckets, bundle.manifest.exact))
        sizes = {tuple(dims.items()): dims for dims in every}.values()

        def comparisons(
            side: Bundle, allowed: Tolerances, sizes: Iterable[Mapping[str, int]] = sizes
        ) -> Iterator[Comparison]:
            for dims in sizes:
                for sample in bucket_samples(specs, dims, seed=request.seed, samples=request.samples or 1):
                    yield compare(side(sample), reference.run({**sample, **frozen}), allowed)

        tell(name := f"bucket {label(info.dims)}")
        legs.append(Leg.of_bundle(name, comparisons(bundle, tolerances)))
        if gpu is not None:
            tell(name := f"{name}, {gpu.passes.leg}")
            gpu_legs += gpu.compared(name, partial(comparisons, allowed=gpu.tolerances), tell)
    return CheckReport(
        model=bundle.manifest.name,
        legs=(*legs, *gpu_legs),
        seed=request.seed,
        versions=versions(bundle.manifest.versions["migraphx"]),
        notes=(
            *bundle.manifest.notes,
            *notes,
            *(() if gpu is None else gpu.conclude(gpu_legs)),
            "each bucket is compared at its edge, and inside, where inputs are padded",
        ),
    )
