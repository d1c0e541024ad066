"""Converting a model for several sizes: a bundle for each, in one folder, with large weights written once."""

from __future__ import annotations

import itertools
import math
import os
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import onnx_ir as ir

from onnx_bridge.bundle.buckets import Buckets, has_buckets
from onnx_bridge.bundle.buckets_manifest import (
    EDGE,
    Axis,
    BucketInfo,
    BucketsManifest,
    BucketTensor,
    label,
    manifest_digest,
    size_of,
    symbols_of,
)
from onnx_bridge.bundle.bundle import Bundle
from onnx_bridge.bundle.manifest import FileInfo, Manifest, TensorInfo, manifest_path, sealed
from onnx_bridge.bundle.proof import Prove, together
from onnx_bridge.bundle.verify import is_intact
from onnx_bridge.conversion.clean import rewrite
from onnx_bridge.conversion.convert import run
from onnx_bridge.conversion.keys import cleaning_key, conversion_key
from onnx_bridge.conversion.request import PROVE_BUDGET, CleanRequest, ConvertRequest, as_json, as_shapes
from onnx_bridge.conversion.source import ModelSource, Source
from onnx_bridge.conversion.staging import refuse_to_overwrite
from onnx_bridge.conversion.weight_sharing import SharedWeights
from onnx_bridge.core.errors import BridgeError, InputError, nearest
from onnx_bridge.core.progress import Progress, Stage, silent
from onnx_bridge.core.values import Array, Kind
from onnx_bridge.migraphx import runtime as runtimes
from onnx_bridge.migraphx.targets import resolve_target
from onnx_bridge.model import io as models
from onnx_bridge.samples.files import SampleSource
from onnx_bridge.samples.roles import dims_of
from passes.core.inference import infer
from passes.core.isolation.limits import Limits, limited


def convert_buckets(  # noqa: PLR0913
    model: str | os.PathLike[str],
    out: str | os.PathLike[str],
    buckets: Mapping[str, Sequence[int]],
    *,
    pad: Mapping[str, str] | None = None,
    target: str = "auto",
    pipeline: str = "default",
    dims: Mapping[str, int] | None = None,
    shapes: Mapping[str, Sequence[int]] | None = None,
    freeze: Mapping[str, Array | str] | None = None,
    host: bool = True,
    cache: bool = True,
    precision: str = "fp32",
    calibration: SampleSource | None = None,
    keep_fp32: Sequence[str] = (),
    options: Mapping[str, bool | str] | None = None,
    timeout: float | None = None,
    memory: float | None = None,
    runtime: str | None = None,
    reuse: bool = True,
    prove: Prove = "auto",
    prove_budget: float = PROVE_BUDGET,
    progress: Progress | None = None,
) -> Buckets:
    """Convert a model for several sizes of some of its dimensions.

    Large weights of the cleaned models are written once, whatever the number of buckets (`SharedWeights`); each program
    has its own, which its format requires.

    Args:
        model: an ONNX file.
        out: a folder.
        buckets: sizes by symbol; there is a bucket for each combination.
        pad: by input, the value that pads it: a number, or ``edge`` for its last element; default: 0, which is right
            for attention masks.
        target: like the following, as for `onnx_bridge.convert`.
        pipeline: as above.
        dims: sizes of the other symbols.
        shapes: as above.
        freeze: as above.
        host: as above.
        cache: as above.
        precision: as above.
        calibration: as above.
        keep_fp32: as above.
        options: as above.
        timeout: as above.
        memory: as above.
        runtime: as above.
        reuse: whether to keep those buckets of an earlier bundle in ``out`` that are up to date, and the cleaned models
            of others.
        prove: as above; the budget is that of all buckets together.
        prove_budget: as above.
        progress: as above.

    Raises:
        InputError: a symbol or an input is unknown, sizes are wrong, or as for `onnx_bridge.convert`.
        RuntimeFailure: as for `onnx_bridge.convert`.
    """
    request = ConvertRequest(
        target=target,
        pipeline=pipeline,
        dims=dict(dims or {}),
        shapes=as_shapes(shapes),
        freeze=as_json(freeze),
        buckets=as_shapes(buckets),
        pad=dict(pad or {}),
        host=host,
        cache=cache,
        precision=precision,
        calibration=calibration,
        keep_fp32=tuple(keep_fp32),
        options=dict(options or {}),
        timeout=timeout,
        memory=memory,
        runtime=runtime,
        reuse=reuse,
        prove=prove,
        prove_budget=prove_budget,
    )
    return run_buckets(model, Path(out), request, progress)


def run_any(
    model: ModelSource, out: Path, request: ConvertRequest, progress: Progress | None = None
) -> Bundle | Buckets:
    """Convert a model into a bundle, or, if the request has buckets, into a bundle with buckets."""
    return (run_buckets if request.buckets else run)(model, out, request, progress)


def run_buckets(
    model: ModelSource | Source, out: Path, request: ConvertRequest, progress: Progress | None = None
) -> Buckets:
    """Convert a model for the buckets of a request; errors are those of `convert_buckets`."""
    with limited(Limits.of(request.timeout, request.memory)):
        return _run_buckets(Source.of(model), out, request, progress or silent)


def _run_buckets(source: Source, out: Path, request: ConvertRequest, progress: Progress) -> Buckets:
    if out.suffix == ".mxr":
        raise InputError("buckets need a folder", where=str(out))
    source.hash()
    original, name = source.model(), source.name
    _check(original, request)
    earlier = _bucket_folders(out)
    sizes = [dict(zip(request.buckets, each, strict=True)) for each in _combinations(request)]
    sizes.sort(key=lambda each: (math.prod(each.values()), list(each.values())))
    written = [f"{name}.onnx", f"{name}.onnx.data", *(f"{label(each)}.onnx" for each in sizes), "manifest.json"]
    refuse_to_overwrite([out / each for each in written], source.given, out)
    progress(Stage.CLEAN)
    fixed = _fixed_dims(original, request)
    cleaned = rewrite(
        source.model(), CleanRequest(request.pipeline, dims=fixed, freeze=request.freeze), progress=progress
    ).model
    infer(cleaned)
    weights = SharedWeights(out / f"{name}.onnx.data")
    budget = request.prove_budget / len(sizes)
    requests = [replace(request, dims={**fixed, **each}, buckets={}, pad={}, prove_budget=budget) for each in sizes]
    # loaded while the weights are still those that they were saved with
    up_to_date = {
        label(each): models.load(_model_path(out / label(each)))
        for each, one in zip(sizes, requests, strict=True)
        if request.reuse and _is_complete(out / label(each), _key(source, one), request.prove)
    }
    buckets: list[BucketInfo] = []
    for each, one in zip(sizes, requests, strict=True):
        folder = out / label(each)
        if folder.name not in up_to_date:
            run(source, folder, one, progress)
        of_bucket = up_to_date.get(folder.name) or models.load(_model_path(folder))
        if not buckets:
            weights.gather([cleaned, of_bucket])
        weights.share(folder, of_bucket)
        buckets.append(BucketInfo(each, folder.name, manifest_digest(folder / "manifest.json")))
    progress(Stage.FINISH)
    if not weights.save(cleaned, out / f"{name}.onnx"):
        models.save(cleaned, out / f"{name}.onnx")
    _write(_describe(_Converted(source, original, cleaned, fixed, buckets), out, request), out)
    for stale in earlier - {each.folder for each in buckets}:
        shutil.rmtree(out / stale, ignore_errors=True)
        (out / f"{stale}.onnx").unlink(missing_ok=True)
    return Buckets(out, runtime=request.runtime, timeout=request.timeout, memory=request.memory)


@dataclass(frozen=True)
class _Converted:
    """A model for which all buckets were converted: the original, the cleaned one, and the dimensions of both."""

    source: Source
    model: ir.Model
    cleaned: ir.Model
    fixed: Mapping[str, int]
    buckets: Sequence[BucketInfo]


def _describe(converted: _Converted, out: Path, request: ConvertRequest) -> BucketsManifest:
    infos, model, fixed = tuple(converted.buckets), converted.model, converted.fixed
    manifests = [Manifest.read(manifest_path(out / each.folder)) for each in infos]
    first = manifests[0]
    required = [value for value in _required(model) if value.name not in request.freeze]
    inputs = tuple(_tensor(value, first.inputs, fixed) for value in required)
    outputs = tuple(
        _following(_tensor(value, first.outputs, fixed), infos, [_shape(each, str(value.name)) for each in manifests])
        for value in converted.cleaned.graph.outputs
    )
    timings: dict[str, float] = {}
    for each in manifests:
        for stage, seconds in each.timings.items():
            timings[stage] = round(timings.get(stage, 0) + seconds, 4)
    notes = list(dict.fromkeys(note for each in manifests for note in each.notes))
    if unknown := [each.name for each in outputs if None in each.axes]:
        notes.append(f"{', '.join(unknown)}: some sizes depend on the data, so that these outputs are not cropped")
    return BucketsManifest(
        name=converted.source.name,
        source=first.source,
        key=_key(converted.source, request),
        request=request.to_json(),
        model=f"{converted.source.name}.onnx",
        buckets=infos,
        inputs=inputs,
        outputs=outputs,
        target=first.target,
        versions=first.versions,
        timings=timings,
        notes=notes,
        proof=together({label(info.dims): each.proof for info, each in zip(infos, manifests, strict=True)}),
    )


def _write(manifest: BucketsManifest, out: Path) -> None:
    """Write the manifest atomically, with the files beside it."""
    files = [out / manifest.model, out / f"{manifest.model}.data"]
    try:
        complete = replace(manifest, files=tuple(FileInfo.of(each) for each in files if each.exists()))
        with tempfile.TemporaryDirectory(prefix=".converting-", dir=out) as staging:
            written = Path(staging) / "manifest.json"
            written.write_text(sealed(complete.to_json()))
            written.replace(out / "manifest.json")
    except OSError as error:
        raise InputError(f"the bundle cannot be written: {error.strerror}", where=str(out)) from error


def _key(source: Source, request: ConvertRequest) -> str | None:
    """The content key of a bucket, or of all; None for calibration samples in memory, which are not read yet."""
    if not isinstance(request.calibration, (str, os.PathLike, type(None))):
        return None
    runtime = runtimes.find(request.runtime)
    target = resolve_target(request.target, runtime)
    return conversion_key(cleaning_key(source.digest, request, runtime), request, runtime, target=target)


def _is_complete(bundle: Path, key: str | None, prove: str) -> bool:
    """Whether there is an intact bundle with this key, proven as it should be."""
    try:
        manifest = Manifest.read(manifest_path(bundle))
    except BridgeError:
        return False
    current = key is not None and manifest.key == key and manifest.is_proven_for(prove)
    return current and is_intact(bundle)


def _model_path(bundle: Path) -> Path:
    """The cleaned model of a bundle in a folder, which always has one."""
    return bundle / Manifest.read(manifest_path(bundle)).model[0].file


def _bucket_folders(out: Path) -> set[str]:
    """The folders of the buckets that are there already."""
    try:
        return {each.folder for each in BucketsManifest.read(manifest_path(out)).buckets} if has_buckets(out) else set()
    except BridgeError:
        return set()


def _combinations(request: ConvertRequest) -> itertools.product[tuple[int, ...]]:
    return itertools.product(*map(sorted, request.buckets.values()))


def _required(model: ir.Model) -> list[ir.Value]:
    return [value for value in model.graph.inputs if value.name not in model.graph.initializers]


def _check(model: ir.Model, request: ConvertRequest) -> None:
    """Require that buckets and padding rules fit the model; raises InputError."""
    inputs = [value for value in _required(model) if value.name not in request.freeze]
    _check_sizes({axis for value in inputs for axis in dims_of(value) or () if isinstance(axis, str)}, request)
    names = [str(value.name) for value in inputs]
    for name, rule in request.pad.items():
        if name not in names:
            hint = nearest(name, names) or f"there are {', '.join(names)}"
            raise InputError(f"the model has no input {name}", where="pad", hint=hint)
        if rule != EDGE and not _is_number(rule):
            raise InputError(f"{rule!r} is neither a number nor {EDGE}", where=f"pad {name}")
    for value in inputs:
        if Kind.of(value.type) is not Kind.TENSOR or value.dtype == ir.DataType.STRING or value.shape is None:
            raise InputError("only tensors of numbers can be padded", where=f"input {value.name!r}")


def _check_sizes(symbols: set[str], request: ConvertRequest) -> None:
    if not request.buckets:
        raise InputError("there are no sizes", where="bucket", hint="for example batch=1,4,16")
    for name, sizes in request.buckets.items():
        if name not in symbols:
            hint = nearest(name, symbols) or f"there are {', '.join(sorted(symbols)) or 'none'}"
            raise InputError(f"no input has a dimension {name}", where="bucket", hint=hint)
        if name in request.dims:
            raise InputError("it has a fixed size as well", where=f"bucket {name}")
        if not sizes or min(sizes) < 1:
            raise InputError("sizes must be 1 or more", where=f"bucket {name}", hint=f"for example {name}=1,4,16")


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _fixed_dims(model: ir.Model, request: ConvertRequest) -> dict[str, int]:
    """The sizes of all symbols that have no buckets: those of the request, or 1."""
    axes = [axis for value in model.graph.inputs for axis in dims_of(value) or () if isinstance(axis, str)]
    bucketed = request.buckets.keys()
    free = [axis for axis in axes if axis not in bucketed and not symbols_of(axis) & bucketed]
    return {**dict.fromkeys(free, 1), **request.dims}


def _tensor(value: ir.Value, infos: Sequence[TensorInfo], fixed: Mapping[str, int]) -> BucketTensor:
    info = next(each for each in infos if each.name == value.name)
    axes = dims_of(value) if value.shape is not None else None
    if axes is None or len(axes) != len(info.shape or ()):
        axes = tuple(None for _ in info.shape or ())
    sizes = tuple(fixed.get(axis, axis) if isinstance(axis, str) else axis for axis in axes)
    return BucketTensor(info.name, info.dtype, sizes)


def _shape(manifest: Manifest, name: str) -> tuple[int | None, ...]:
    return next(each.shape or () for each in manifest.outputs if each.name == name)


def _following(
    output: BucketTensor, infos: Sequence[BucketInfo], shapes: Sequence[tuple[int | None, ...]]
) -> BucketTensor:
    """An output, with the symbol that each axis follows, judged by its sizes in all buckets."""
    axes: list[Axis] = []
    for index, axis in enumerate(output.axes):
        sizes = [shape[index] for shape in shapes]
        if all(size_of(axis, info.dims) == size is not None for info, size in zip(infos, sizes, strict=True)):
            axes.append(axis)
        elif None in sizes:
            axes.append(None)
        elif len(set(sizes)) == 1 and len(infos) > 1:
            axes.append(sizes[0])
        else:
            alike = [name for name in infos[0].dims if [each.dims[name] for each in infos] == sizes]
            axes.append(alike[0] if len(alike) == 1 else None)
    return BucketTensor(output.name, output.dtype, tuple(axes))
