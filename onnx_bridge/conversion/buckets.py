"""Bundles with buckets: one program for each of some sizes, for inputs of any size up to them.

    NAME.onnx  manifest.json  batch=1,seq=128/  batch=4,seq=128/  …

The folder holds the cleaned model with its symbolic dimensions, and an ordinary bundle for each bucket. A call takes
the smallest bucket that fits, pads the inputs up to it, and cuts the outputs down to what they would have been: an
output's dimension follows the symbols that the model gives it, or, where it gives none, the one size that it agrees
with in all buckets. Whether a model computes the same on padded inputs is its own affair (its masks are there for
that), which is why `check_buckets` compares each bucket inside as well as at its edge.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import math
import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx_ir as ir

from onnx_bridge import inputs as samplers
from onnx_bridge import model as models
from onnx_bridge.cleaning import as_json, clean
from onnx_bridge.conversion.bundle import Bundle, manifest_path
from onnx_bridge.conversion.convert import convert, keep_off
from onnx_bridge.conversion.keys import conversion_key
from onnx_bridge.conversion.manifest import BUCKETS, Manifest, TensorInfo
from onnx_bridge.errors import InputError, nearest
from onnx_bridge.migraphx import runtime as runtimes
from onnx_bridge.precision import Precision
from onnx_bridge.roles import dims_of
from onnx_bridge.values import Array, Kind, Value
from passes.inference import infer

Axis = int | str | None
EDGE = "edge"
"""The rule that repeats the last element; any other is a number, ``0`` where nothing is said."""


@dataclass(frozen=True)
class Ends:
    """An input or output of all buckets.

    Attributes:
        name: the model's.
        dtype: as in `TensorInfo`.
        axes: sizes, symbols or expressions of symbols, and None for what depends on the data.
    """

    name: str
    dtype: str
    axes: tuple[Axis, ...]

    def sizes(self, dims: Mapping[str, int]) -> tuple[int | None, ...]:
        """The shape for some sizes of the symbols; None where they do not say."""
        return tuple(_size(axis, dims) for axis in self.axes)


@dataclass(frozen=True)
class BucketInfo:
    """One bucket: its sizes, the folder of its bundle beside the manifest, and the digest of that one's manifest."""

    dims: dict[str, int]
    folder: str
    manifest: str


@dataclass(frozen=True)
class BucketsManifest:
    """What is known of a bundle with buckets.

    Attributes:
        name: the model's.
        source: path and sha256 of the model.
        key: the content key; None for a model in memory.
        model: the cleaned model, whose dimensions are still symbolic.
        buckets: the smallest first.
        inputs: what it takes.
        outputs: what it gives.
        pad: the rules of inputs, by name.
        target: what programs were compiled for.
        options: of the conversion.
        versions: of everything that had a hand in it.
        timings: seconds by stage, of all buckets together.
        notes: what the user should know, in sentences.
    """

    name: str
    source: dict[str, str | None]
    key: str | None
    model: str
    buckets: tuple[BucketInfo, ...]
    inputs: tuple[Ends, ...]
    outputs: tuple[Ends, ...]
    pad: dict[str, str]
    target: str
    options: dict[str, Any]
    versions: dict[str, str]
    timings: dict[str, float]
    notes: list[str] = field(default_factory=list)

    @property
    def stage_line(self) -> str:
        """The buckets in a line."""
        return f"buckets: {'; '.join(label(each.dims) for each in self.buckets)}"

    def to_json(self) -> dict[str, Any]:
        """As JSON values."""
        return {"format": BUCKETS, "program": None, **asdict(self)}

    @classmethod
    def read(cls, path: Path) -> BucketsManifest:
        """Read one.

        Raises:
            InputError: it is damaged, or describes a bundle without buckets.
        """
        try:
            values = json.loads(path.read_text())
            if values["format"] != BUCKETS:
                raise InputError(f"the bundle has format {values['format']}, without buckets", where=str(path))
            made = {each.name: values[each.name] for each in fields(cls)}
            made["buckets"] = tuple(BucketInfo(**each) for each in made["buckets"])
            for name in ("inputs", "outputs"):
                made[name] = tuple(Ends(**{**each, "axes": tuple(each["axes"])}) for each in made[name])
            found = cls(**made)
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise InputError(f"the manifest cannot be read: {error}", where=str(path), hint="convert again") from None
        for inner in (found.model, *(each.folder for each in found.buckets)):
            if not inner or inner == ".." or Path(inner).name != inner:
                raise InputError(f"the manifest is damaged: {inner!r} is not in the bundle", where=str(path))
        return found


def label(dims: Mapping[str, int]) -> str:
    """The sizes of a bucket, as people and folders have them."""
    return ",".join(f"{name}={size}" for name, size in dims.items())


def has_buckets(path: str | os.PathLike[str]) -> bool:
    """Whether ``path`` is a bundle with buckets."""
    try:
        values = json.loads((Path(path) / "manifest.json").read_text())
    except (OSError, ValueError):
        return False
    return isinstance(values, dict) and values.get("format") == BUCKETS


class Buckets:
    """A model converted for several sizes: call it with named arrays of any size up to the largest.

    Attributes:
        path: its folder.
        manifest: what is known of it.
        bundles: those of the buckets, in their order.
        notes: what was done in the last call that is worth knowing: the bucket, and what was padded.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        runtime: str | None = None,
        timeout: float | None = None,
        memory: float | None = None,
    ) -> None:
        self.path = Path(path)
        self.manifest = BucketsManifest.read(manifest_path(self.path))
        self.notes: list[str] = []
        limits = {"runtime": runtime, "timeout": timeout, "memory": memory}
        self.bundles = [Bundle(self.path / each.folder, **limits) for each in self.manifest.buckets]  # type: ignore[arg-type]
        for each in self.manifest.buckets:
            if _digest(self.path / each.folder / "manifest.json") != each.manifest:
                what = "the bucket is not the one that the manifest describes"
                raise InputError(what, where=str(self.path / each.folder), hint="convert again")

    @property
    def specs(self) -> list[samplers.TensorSpec]:
        """What it takes, as `onnx_bridge.inputs` has it."""
        return [samplers.TensorSpec(each.name, _numpy(each), each.axes) for each in self.manifest.inputs]

    @property
    def model_path(self) -> Path:
        """The cleaned ONNX."""
        return self.path / self.manifest.model

    def to_json(self) -> dict[str, Any]:
        """As JSON values: the manifest, and the path."""
        return {"kind": "buckets", "path": str(self.path), **self.manifest.to_json()}

    def render(self) -> str:
        """In lines."""
        shapes = [
            f"{kind} {each.name}: {each.dtype} [{', '.join('?' if axis is None else str(axis) for axis in each.axes)}]"
            for kind, all_ in (("input", self.manifest.inputs), ("output", self.manifest.outputs))
            for each in all_
        ]
        target = f"target: {self.manifest.target}, MIGraphX {self.manifest.versions['migraphx']}"
        notes = [f"note: {note}" for note in self.manifest.notes]
        return "\n".join([f"bundle: {self.path}", target, self.manifest.stage_line, *shapes, *notes])

    def open(self) -> None:
        """Load all programs; raises like `onnx_bridge.load`."""
        for each in self.bundles:
            each.open()

    def bucket(self, dims: Mapping[str, int]) -> BucketInfo:
        """The smallest bucket that holds some sizes.

        Raises:
            InputError: none does; names all of them.
        """
        fitting = [each for each in self.manifest.buckets if all(dims[name] <= each.dims[name] for name in each.dims)]
        if not fitting:
            there = "; ".join(label(each.dims) for each in self.manifest.buckets)
            raise InputError(f"no bucket holds {label(dims)}", where=str(self.path), hint=f"there are {there}")
        return fitting[0]

    def __call__(self, arrays: Mapping[str, Value]) -> dict[str, Value]:
        """Run the model on arrays of any size up to the largest bucket; arguments and errors are `Bundle`'s."""
        sample = samplers.validate(arrays, self.specs)
        dims = self._dims(sample)
        chosen = self.bucket(dims)
        bundle = self.bundles[self.manifest.buckets.index(chosen)]
        padded, grown = dict(sample), []
        for ends in self.manifest.inputs:
            array = sample[ends.name]
            assert isinstance(array, np.ndarray)
            shape = tuple(size for size in ends.sizes(chosen.dims) if size is not None)
            if shape != array.shape:
                padded[ends.name] = _pad(array, shape, self.manifest.pad.get(ends.name, "0"))
                grown.append(f"{ends.name} {list(array.shape)} to {list(shape)}")
        padding = f", padded: {', '.join(grown)}" if grown else ""
        self.notes = [f"run in the bucket {label(chosen.dims)}{padding}"]
        outputs = bundle(padded)
        for ends in self.manifest.outputs if grown else ():
            array = outputs[ends.name]
            if isinstance(array, np.ndarray):
                outputs[ends.name] = _cut(array, ends.sizes(dims))
        return outputs

    def close(self) -> None:
        """Let go of all that was loaded."""
        for each in self.bundles:
            each.close()

    def _dims(self, sample: Mapping[str, Value]) -> dict[str, int]:
        """The sizes of the symbols in a sample."""
        found: dict[str, int] = {}
        for ends in self.manifest.inputs:
            array = sample[ends.name]
            assert isinstance(array, np.ndarray)
            found |= {axis: size for axis, size in zip(ends.axes, array.shape, strict=True) if isinstance(axis, str)}
        return {name: found[name] for name in self.manifest.buckets[0].dims}


def convert_buckets(
    model: str | os.PathLike[str],
    out: str | os.PathLike[str],
    buckets: Mapping[str, Sequence[int]],
    *,
    pad: Mapping[str, str] | None = None,
    dims: Mapping[str, int] | None = None,
    progress: Callable[[str], None] | None = None,
    **rest: Any,
) -> Buckets:
    """Convert a model for several sizes of some of its dimensions.

    Args:
        model: an ONNX file.
        out: a folder.
        buckets: sizes by symbol; there is a bucket for each combination.
        pad: by input what it is padded with: a number, or ``edge`` for its last element; default: 0, which is what
            attention masks want.
        dims: sizes of the other symbols.
        progress: told each stage as it begins.
        rest: as for `convert`.

    Raises:
        InputError: a symbol or an input is unknown, sizes are wrong, or as `convert`.
        RuntimeFailure: as `convert`.
    """
    path, out, pad = Path(model), Path(out), dict(pad or {})
    tell = progress or (lambda _stage: None)
    if out.suffix == ".mxr":
        raise InputError("buckets need a folder", where=str(out))
    source = models.load(path)
    keep_off([out / f"{path.stem}.onnx", out / "manifest.json"], path, out)
    _check(source, buckets, pad, dims or {}, set(rest.get("freeze") or {}))
    combined = [dict(zip(buckets, sizes, strict=True)) for sizes in itertools.product(*map(sorted, buckets.values()))]
    combined.sort(key=lambda each: (math.prod(each.values()), list(each.values())))
    tell("clean")
    fixed = _others(source, buckets, dims or {})
    options = {"pipeline": rest.get("pipeline", "default"), "dims": fixed, "freeze": rest.get("freeze")}
    cleaned = clean(source, progress=progress, **options).model
    infer(cleaned)
    made: list[tuple[BucketInfo, Bundle]] = []
    for each in combined:
        folder = out / label(each)
        bundle = convert(path, folder, dims={**fixed, **each}, progress=progress, **rest)
        made.append((BucketInfo(each, folder.name, _digest(folder / "manifest.json")), bundle))
    tell("finish")
    bundles = [bundle for _, bundle in made]
    infos = tuple(info for info, _ in made)
    frozen = set(rest.get("freeze") or {})
    required = [v for v in source.graph.inputs if v.name not in source.graph.initializers and v.name not in frozen]
    inputs = tuple(_ends(value, bundles[0].inputs, fixed) for value in required)
    outputs = tuple(
        _following(_ends(value, bundles[0].outputs, fixed), infos, [_shape(each, str(value.name)) for each in bundles])
        for value in cleaned.graph.outputs
    )
    loose = [each.name for each in outputs if None in each.axes]
    first = bundles[0].manifest
    timings: dict[str, float] = {}
    for each_bundle in bundles:
        for stage, seconds in each_bundle.manifest.timings.items():
            timings[stage] = round(timings.get(stage, 0) + seconds, 4)
    notes = list(dict.fromkeys(note for each in bundles for note in each.manifest.notes))
    if loose:
        notes.append(f"of {', '.join(loose)} some sizes depend on the data, and are not cut down to what was asked for")
    manifest = BucketsManifest(
        name=path.stem,
        source=first.source,
        key=_key(first, buckets, pad, dims or {}, rest),
        model=f"{path.stem}.onnx",
        buckets=infos,
        inputs=inputs,
        outputs=outputs,
        pad=pad,
        target=first.target,
        options={**first.options, "dims": dict(dims or {}), "buckets": {k: list(v) for k, v in buckets.items()}},
        versions=first.versions,
        timings=timings,
        notes=notes,
    )
    models.save(cleaned, out / manifest.model)
    try:
        with tempfile.TemporaryDirectory(prefix=".converting-", dir=out) as staging:
            written = Path(staging) / "manifest.json"
            written.write_text(json.dumps(manifest.to_json(), indent=2) + "\n")
            written.replace(out / "manifest.json")
    except OSError as error:
        raise InputError(f"the bundle cannot be written: {error.strerror}", where=str(out)) from error
    return Buckets(out, **{name: rest.get(name) for name in ("runtime", "timeout", "memory")})


def _key(
    first: Manifest,
    buckets: Mapping[str, Sequence[int]],
    pad: Mapping[str, str],
    dims: Mapping[str, int],
    rest: Mapping[str, Any],
) -> str | None:
    precision = Precision(rest.get("precision", "fp32"), tuple(rest.get("keep_fp32", ())), rest.get("calibration"))
    return conversion_key(
        first.source["sha256"],
        pipeline=rest.get("pipeline", "default"),
        dims=dims,
        inputs=rest.get("inputs") or {},
        freeze=as_json(rest.get("freeze") or {}),
        host=rest.get("host", True),
        target=first.target,
        runtime=runtimes.find(rest.get("runtime")),
        precision=precision.to_key(),
        options=rest.get("options") or {},
        buckets=buckets,
        pad=pad,
    )


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
    free = [axis for axis in axes if axis not in buckets and not _symbols(axis) & buckets.keys()]
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
        if all(_size(axis, info.dims) == size is not None for info, size in zip(infos, sizes, strict=True)):
            axes.append(axis)
        elif None in sizes:
            axes.append(None)
        elif len(set(sizes)) == 1 and len(infos) > 1:
            axes.append(sizes[0])
        else:
            alike = [name for name in infos[0].dims if [each.dims[name] for each in infos] == sizes]
            axes.append(alike[0] if len(alike) == 1 else None)
    return Ends(ends.name, ends.dtype, tuple(axes))


def _size(axis: Axis, dims: Mapping[str, int]) -> int | None:
    if not isinstance(axis, str) or axis in dims:
        return dims[axis] if isinstance(axis, str) else axis
    if not _symbols(axis) <= dims.keys():
        return None
    found = ir.SymbolicDim(axis).evaluate(dict(dims))
    return found if isinstance(found, int) else None


def _symbols(axis: str) -> frozenset[str]:
    try:
        return ir.SymbolicDim(axis).free_symbols()
    except ValueError:
        return frozenset({axis})


def _pad(array: Array, shape: Sequence[int], rule: str) -> Array:
    widths = [(0, size - had) for had, size in zip(array.shape, shape, strict=True)]
    if rule == EDGE:
        return np.pad(array, widths, mode="edge")
    padded = np.full(shape, np.asarray(float(rule)).astype(array.dtype), array.dtype)
    padded[tuple(slice(0, size) for size in array.shape)] = array
    return padded


def _cut(array: Array, sizes: Sequence[int | None]) -> Array:
    if len(sizes) != array.ndim:
        return array
    return array[tuple(slice(0, size) for size in sizes)]


def _numpy(ends: Ends) -> np.dtype[Any]:
    return np.dtype(getattr(ml_dtypes, ends.dtype, ends.dtype))


def _digest(path: Path) -> str:
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError as error:
        raise InputError(f"the bucket is missing: {error.strerror}", where=str(path), hint="convert again") from error
