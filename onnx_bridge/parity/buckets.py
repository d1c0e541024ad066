"""Parity of a bundle with buckets: each at its edge, and inside, where inputs are padded."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import metadata
from pathlib import Path

from onnx_bridge.bundle.buckets import BucketInfo, Buckets, label
from onnx_bridge.core.errors import InputError, RuntimeFailure, RuntimeNotFound
from onnx_bridge.model import io as models
from onnx_bridge.parity.failure import Failure
from onnx_bridge.parity.report import Leg, Report
from onnx_bridge.reference.compare import Comparison, compare
from onnx_bridge.reference.reference import Reference
from onnx_bridge.reference.tolerances import Tolerances
from onnx_bridge.samples import inputs as samplers


def check_buckets(
    bundle: Buckets,
    *,
    reference: Path | None = None,
    seed: int = 0,
    samples: int | None = None,
    tolerances: Tolerances | None = None,
    progress: Callable[[str], None] | None = None,
) -> Report:
    """Compare each bucket with the original model on ONNX Runtime, at its edge and, padded, inside.

    Args:
        bundle: what `convert_buckets` made.
        reference: the original model; default: the file that it was converted from.
        seed: of the samples, which are generated.
        samples: how many for each size; default: 1.
        tolerances: of the outputs.
        progress: told each bucket as it begins.

    Raises:
        InputError: the original is gone or was changed.
        RuntimeNotFound: no MIGraphX here runs it.
    """
    tell = progress or (lambda _stage: None)
    original = reference or _original(bundle)
    names = {each.name for each in bundle.manifest.inputs}
    model = models.load(original)
    specs = [spec for spec in samplers.specs(model) if spec.name in names]
    truth = Reference(original)
    fixed = bundle.manifest.options["dims"]
    symbols = {dim for spec in specs for dim in spec.shape or () if isinstance(dim, str)}
    legs = []
    for info in bundle.manifest.buckets:
        tell(f"bucket {label(info.dims)}")
        found: list[Comparison] = []
        failure = None
        for dims in {tuple(each.items()): each for each in (info.dims, _inside(bundle, info))}.values():
            wanted = {name: size for name, size in {**fixed, **dims}.items() if name in symbols}
            try:
                for sample in samplers.generate(specs, seed=seed, samples=samples or 1, dims=wanted):
                    found.append(compare(bundle(sample), truth.run(sample), tolerances or Tolerances()))
            except RuntimeNotFound:
                raise
            except RuntimeFailure as error:
                failure = Failure("run", error, len(found))
                break
        legs.append(Leg(f"bucket {label(info.dims)}", tuple(found), failure))
    return Report(
        model=bundle.manifest.name,
        legs=tuple(legs),
        seed=seed,
        versions={"ONNX Runtime": metadata.version("onnxruntime"), "MIGraphX": bundle.manifest.versions["migraphx"]},
        notes=(*bundle.manifest.notes, "each bucket is compared at its edge, and inside, where inputs are padded"),
    )


def _inside(bundle: Buckets, info: BucketInfo) -> Mapping[str, int]:
    """Sizes that fall into a bucket and are smaller than it, where there are any: the least above the one before."""
    dims = {}
    for name, size in info.dims.items():
        below = [each.dims[name] for each in bundle.manifest.buckets if each.dims[name] < size]
        dims[name] = min(size, max(below) + 1) if below else max(1, size // 2)
    return dims


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
