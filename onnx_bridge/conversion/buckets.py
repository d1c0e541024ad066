"""Converting a model for several sizes: a bundle for each, in one folder, with the large weights written once."""

from __future__ import annotations

import itertools
import math
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import onnx_ir as ir

from onnx_bridge.bundle.buckets import (
    EDGE,
    Axis,
    BucketInfo,
    Buckets,
    BucketsManifest,
    Ends,
    digest,
    has_buckets,
    label,
    size_of,
    symbols_of,
)
from onnx_bridge.bundle.bundle import Bundle, manifest_path
from onnx_bridge.bundle.manifest import FileInfo, Manifest, TensorInfo, sealed
from onnx_bridge.conversion.clean import clean
from onnx_bridge.conversion.convert import convert
from onnx_bridge.conversion.keys import cleaning_key, conversion_key
from onnx_bridge.conversion.precision import Precision
from onnx_bridge.conversion.publish import keep_off
from onnx_bridge.conversion.request import as_json
from onnx_bridge.conversion.weight_sharing import SharedWeights
from onnx_bridge.core.atomic_write import write_text
from onnx_bridge.core.errors import BridgeError, InputError, nearest
from onnx_bridge.core.progress import Stage
from onnx_bridge.core.values import Kind
from onnx_bridge.migraphx import runtime as runtimes
from onnx_bridge.migraphx.targets import resolve_target
from onnx_bridge.model import io as models
from onnx_bridge.samples.roles import dims_of
from passes.core.inference import infer


def convert_buckets(
    model: str | os.PathLike[str],
    out: str | os.PathLike[str],
    buckets: Mapping[str, Sequence[int]],
    *,
    pad: Mapping[str, str] | None = None,
    dims: Mapping[str, int] | None = None,
    reuse: bool = True,
    progress: Callable[[str], None] | None = None,
    **rest: Any,
) -> Buckets:
    """Convert a model for several sizes of some of its dimensions.

    Large weights of the cleaned models are written once, whatever the number of buckets (`SharedWeights`); each program
    has its own, which its format demands.

    Args:
        model: an ONNX file.
        out: a folder.
        buckets: sizes by symbol; there is a bucket for each combination.
        pad: by input what it is padded with: a number, or ``edge`` for its last element; default: 0, which is what
            attention masks want.
        dims: sizes of the other symbols.
        reuse: whether to keep those buckets of an earlier bundle in ``out`` that would be made again as they are, and,
            of others, the cleaned models that would.
        progress: told each stage as it begins.
        rest: as for `convert`.

    Raises:
        InputError: a symbol or an input is unknown, sizes are wrong, or as `convert`.
        RuntimeFailure: as `convert`.
    """
    path, out, pad = Path(model), Path(out), dict(pad or {})
    tell = progress or (lambda _stage: None)
    path, out, pad, dims = Path(model), Path(out), dict(pad or {}), dict(dims or {})
    if out.suffix == ".mxr":
        raise InputError("buckets need a folder", where=str(out))
    source, name = models.load(path), f"{path.stem}.onnx"
    _check(source, buckets, pad, dims, set(rest.get("freeze") or {}))
    before = _folders(out)
    fixed = _others(source, buckets, dims)
    combined = [dict(zip(buckets, sizes, strict=True)) for sizes in itertools.product(*map(sorted, buckets.values()))]
    combined.sort(key=lambda each: (math.prod(each.values()), list(each.values())))
    written = [name, f"{name}.data", *(f"{label(each)}.onnx" for each in combined)]
    keep_off([out / each for each in (*written, "manifest.json")], path, out)
    tell(Stage.CLEAN)
    options = {"pipeline": rest.get("pipeline", "default"), "dims": fixed, "freeze": rest.get("freeze")}
    cleaned = clean(source, progress=progress, **options).model
    infer(cleaned)
    key = _keys(models.digest(path), rest)
    limits = {each: rest.get(each) for each in ("runtime", "timeout", "memory")}
    weights = SharedWeights(out / f"{name}.data")
    made: list[tuple[BucketInfo, Bundle]] = []
    kept = {}  # mapped while the weights are still those that they were saved with
    for each in combined if reuse else ():
        if _is_whole(out / label(each), key({**fixed, **each})):
            kept[label(each)] = models.load(_model_path(out / label(each)))
    for each in combined:
        folder = out / label(each)
        if folder.name in kept:
            mine = kept[folder.name]
        else:
            convert(path, folder, dims={**fixed, **each}, reuse=reuse, progress=progress, **rest)
            mine = models.load(_model_path(folder))
        if not made:
            weights.gather([cleaned, mine])
        weights.share(folder, mine)
        made.append((BucketInfo(each, folder.name, digest(folder / "manifest.json")), Bundle(folder, **limits)))
    tell(Stage.FINISH)
    if not weights.save(cleaned, out / name):
        models.save(cleaned, out / name)
    manifest = _manifest(
        source, cleaned, made, fixed, rest, name=path.stem, pad=pad, dims=dims, key=key(dims, buckets, pad)
    )
    _write(manifest, out)
    for stale in before - {info.folder for info, _ in made}:
        shutil.rmtree(out / stale, ignore_errors=True)
        (out / f"{stale}.onnx").unlink(missing_ok=True)
    return Buckets(out, **limits)


def _manifest(
    source: ir.Model,
    cleaned: ir.Model,
    made: Sequence[tuple[BucketInfo, Bundle]],
    fixed: Mapping[str, int],
    rest: Mapping[str, Any],
    *,
    name: str,
    pad: dict[str, str],
    dims: dict[str, int],
    key: str | None,
) -> BucketsManifest:
    infos, bundles = tuple(info for info, _ in made), [bundle for _, bundle in made]
    frozen = set(rest.get("freeze") or {})
    required = [v for v in source.graph.inputs if v.name not in source.graph.initializers and v.name not in frozen]
    inputs = tuple(_ends(value, bundles[0].inputs, fixed) for value in required)
    outputs = tuple(
        _following(_ends(value, bundles[0].outputs, fixed), infos, [_shape(each, str(value.name)) for each in bundles])
        for value in cleaned.graph.outputs
    )
    timings: dict[str, float] = {}
    for each in bundles:
        for stage, seconds in each.manifest.timings.items():
            timings[stage] = round(timings.get(stage, 0) + seconds, 4)
    notes = list(dict.fromkeys(note for each in bundles for note in each.manifest.notes))
    if loose := [each.name for each in outputs if None in each.axes]:
        notes.append(f"of {', '.join(loose)} some sizes depend on the data, and are not cut down to what was asked for")
    first = bundles[0].manifest
    sizes = {symbol: sorted({info.dims[symbol] for info in infos}) for symbol in infos[0].dims}
    return BucketsManifest(
        name=name,
        source=first.source,
        key=key,
        model=f"{name}.onnx",
        buckets=infos,
        inputs=inputs,
        outputs=outputs,
        pad=pad,
        target=first.target,
        options={**first.options, "dims": dims, "buckets": sizes},
        versions=first.versions,
        timings=timings,
        notes=notes,
    )


def _write(manifest: BucketsManifest, out: Path) -> None:
    """Write the manifest, with its files as they are, so that it appears whole or not at all."""
    files = [out / manifest.model, out / f"{manifest.model}.data"]
    try:
        whole = replace(manifest, files=tuple(FileInfo.of(each) for each in files if each.exists()))
        write_text(out / "manifest.json", sealed(whole.to_json()))
    except OSError as error:
        raise InputError(f"the bundle cannot be written: {error.strerror}", where=str(out)) from error


def _keys(source: str, rest: Mapping[str, Any]) -> Callable[..., str | None]:
    """What gives the key of a bucket for its sizes, and that of the whole."""
    runtime = runtimes.find(rest.get("runtime"))
    precision = Precision(rest.get("precision", "fp32"), tuple(rest.get("keep_fp32", ())), rest.get("calibration"))

    def key(
        dims: Mapping[str, int],
        buckets: Mapping[str, Sequence[int]] | None = None,
        pad: Mapping[str, str] | None = None,
    ) -> str | None:
        if isinstance(rest.get("calibration"), (str, os.PathLike, type(None))):
            cleaned = cleaning_key(
                source,
                pipeline=rest.get("pipeline", "default"),
                dims=dims,
                shapes=rest.get("shapes") or {},
                freeze=as_json(rest.get("freeze") or {}),
                runtime=runtime,
                precision=precision.to_json(),
            )
            return conversion_key(
                cleaned,
                host=rest.get("host", True),
                target=resolve_target(rest.get("target", "auto"), runtime),
                runtime=runtime,
                precision=precision.to_key(),
                options=rest.get("options") or {},
                buckets=buckets,
                pad=pad,
            )
        return None  # arrays in memory are not looked at before they are needed

    return key


def _is_whole(bundle: Path, key: str | None) -> bool:
    """Whether there is a bundle with a key, whose files are those that it had when it was made."""
    try:
        manifest = Manifest.read(manifest_path(bundle))
    except BridgeError:
        return False
    return key is not None and manifest.key == key and not any(each.problem(bundle) for each in manifest.files)


def _model_path(bundle: Path) -> Path:
    """The cleaned model of a bundle in a folder, which always has one."""
    return bundle / Manifest.read(manifest_path(bundle)).model[0].file


def _folders(out: Path) -> set[str]:
    """The folders of the buckets that are there already."""
    try:
        return {each.folder for each in BucketsManifest.read(manifest_path(out)).buckets} if has_buckets(out) else set()
    except BridgeError:
        return set()


def _check(
    model: ir.Model,
    buckets: Mapping[str, Sequence[int]],
    pad: Mapping[str, str],
    dims: Mapping[str, int],
    frozen: set[str],
) -> None:
    required = [value for value in model.graph.inputs if value.name not in model.graph.initializers]
    kept = [value for value in required if value.name not in frozen]
    symbols = {axis for value in kept for axis in dims_of(value) or () if isinstance(axis, str)}
    for name, sizes in buckets.items():
        if name not in symbols:
            hint = nearest(name, symbols) or f"there are {', '.join(sorted(symbols)) or 'none'}"
            raise InputError(f"no input has a dimension {name}", where="bucket", hint=hint)
        if name in dims:
            raise InputError("it has a fixed size as well", where=f"bucket {name}")
        if not sizes or min(sizes) < 1:
            raise InputError("sizes must be 1 or more", where=f"bucket {name}", hint=f"for example {name}=1,4,16")
    if not buckets:
        raise InputError("there are no sizes", where="bucket", hint="for example batch=1,4,16")
    names = [str(value.name) for value in kept]
    for name, rule in pad.items():
        if name not in names:
            hint = nearest(name, names) or f"there are {', '.join(names)}"
            raise InputError(f"the model has no input {name}", where="pad", hint=hint)
        if rule != EDGE and not _is_number(rule):
            raise InputError(f"{rule!r} is neither a number nor {EDGE}", where=f"pad {name}")
    for value in kept:
        if Kind.of(value.type) is not Kind.TENSOR or value.dtype == ir.DataType.STRING or value.shape is None:
            raise InputError("only tensors of numbers can be padded", where=f"input {value.name!r}")


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _others(model: ir.Model, buckets: Mapping[str, Sequence[int]], dims: Mapping[str, int]) -> dict[str, int]:
    """The sizes of all symbols that have no buckets: as given, or 1."""
    axes = [axis for value in model.graph.inputs for axis in dims_of(value) or () if isinstance(axis, str)]
    free = [axis for axis in axes if axis not in buckets and not symbols_of(axis) & buckets.keys()]
    return {**dict.fromkeys(free, 1), **dims}


def _ends(value: ir.Value, given: Sequence[TensorInfo], fixed: Mapping[str, int]) -> Ends:
    info = next(each for each in given if each.name == value.name)
    axes = dims_of(value) if value.shape is not None else None
    if axes is None or len(axes) != len(info.shape or ()):
        axes = tuple(None for _ in info.shape or ())
    return Ends(info.name, info.dtype, tuple(fixed.get(axis, axis) if isinstance(axis, str) else axis for axis in axes))


def _shape(bundle: Bundle, name: str) -> tuple[int | None, ...]:
    return next(each.shape or () for each in bundle.outputs if each.name == name)


def _following(ends: Ends, infos: Sequence[BucketInfo], shapes: Sequence[tuple[int | None, ...]]) -> Ends:
    """An output whose dimensions say by what they are given in the buckets which symbols they follow."""
    axes: list[Axis] = []
    for index, axis in enumerate(ends.axes):
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
    return Ends(ends.name, ends.dtype, tuple(axes))
