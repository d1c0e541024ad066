"""Parity of a bundle with buckets: each at its edge, and inside, where inputs are padded."""

from __future__ import annotations

from dataclasses import replace
from importlib import metadata
from pathlib import Path

from onnx_bridge.bundle.buckets import Buckets
from onnx_bridge.bundle.buckets_manifest import inside, label
from onnx_bridge.conversion.precision import TOLERANCES
from onnx_bridge.core.errors import InputError, RuntimeFailure, RuntimeNotFound, Step
from onnx_bridge.core.progress import Progress, silent
from onnx_bridge.model import io as models
from onnx_bridge.parity.failure import Failure
from onnx_bridge.parity.report import CheckReport, Leg
from onnx_bridge.parity.request import CheckRequest
from onnx_bridge.reference.compare import Comparison, compare
from onnx_bridge.reference.reference import Reference
from onnx_bridge.samples import inputs as samplers
from onnx_bridge.samples.suitable import frozen_values


def check_buckets(bundle: Buckets, request: CheckRequest, tell: Progress = silent) -> CheckReport:
    """Compare each bucket with the original model on ONNX Runtime, at its edge and, padded, inside.

    Args:
        bundle: what `onnx_bridge.convert_buckets` made.
        request: the reference, seed, number of samples for each size, and tolerances.
        tell: is called with each bucket.

    Raises:
        InputError: the request has inputs or layers, or the original is gone or was changed.
        RuntimeNotFound: no MIGraphX here runs it.
    """
    if request.inputs is not None or request.layers:
        what = "buckets are compared on generated samples of their sizes, and without their layers"
        raise InputError(what, where=str(bundle.path), hint="name the folder of one bucket")
    original = request.reference or _original(bundle)
    axes = {each.name: each.axes for each in bundle.manifest.inputs}
    model = models.load(original)
    frozen = frozen_values(model, bundle.manifest.freeze)
    declared = [spec for spec in samplers.specs(model) if spec.name in axes]
    specs = [replace(spec, shape=axes[spec.name]) for spec in declared]
    reference = Reference(original)
    buckets = [each.dims for each in bundle.manifest.buckets]
    precision = bundle.manifest.precision
    tolerances = request.error_tolerances
    if precision != "fp32":
        tolerances = tolerances.at_least(TOLERANCES[precision])
    legs = []
    for info in bundle.manifest.buckets:
        tell(f"bucket {label(info.dims)}")
        found: list[Comparison] = []
        failure = None
        for dims in {tuple(each.items()): each for each in (info.dims, inside(info.dims, buckets))}.values():
            try:
                for sample in samplers.generate(specs, seed=request.seed, samples=request.samples or 1, dims=dims):
                    found.append(compare(bundle(sample), reference.run({**sample, **frozen}), tolerances))
            except RuntimeNotFound:
                raise
            except RuntimeFailure as error:
                failure = Failure(Step.RUN, error, len(found))
                break
        legs.append(Leg(f"bucket {label(info.dims)}", tuple(found), failure))
    return CheckReport(
        model=bundle.manifest.name,
        legs=tuple(legs),
        seed=request.seed,
        versions={"ONNX Runtime": metadata.version("onnxruntime"), "MIGraphX": bundle.manifest.versions["migraphx"]},
        notes=(*bundle.manifest.notes, "each bucket is compared at its edge, and inside, where inputs are padded"),
    )


def _original(bundle: Buckets) -> Path:
    source = bundle.manifest.source
    path = Path(source["path"] or "")
    if not path.is_file():
        what = "the model that it was converted from is gone"
        raise InputError(what, where=str(path), hint="name the original with --reference")
    if models.digest(path) != source["sha256"]:
        what = "the model was changed since it was converted"
        raise InputError(what, where=str(path), hint="convert again, or name the original with --reference")
    return path
