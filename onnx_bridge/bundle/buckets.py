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
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np
import onnx_ir as ir

from onnx_bridge.bundle.bundle import Bundle, manifest_path
from onnx_bridge.bundle.manifest import BUCKETS, FileInfo
from onnx_bridge.bundle.pack import home
from onnx_bridge.core.errors import InputError
from onnx_bridge.core.values import Array, Value
from onnx_bridge.samples import inputs as samplers

if TYPE_CHECKING:
    from rich.console import RenderableType

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
        return tuple(size_of(axis, dims) for axis in self.axes)


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
        files: those beside the manifest: the cleaned model and, where it has some, the weights that all models share.
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
    files: tuple[FileInfo, ...] = ()

    @property
    def partition_line(self) -> str:
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
            return cls.parse(path.read_text(), str(path))
        except OSError as error:
            raise InputError(f"the manifest cannot be read: {error}", where=str(path), hint="convert again") from None

    @classmethod
    def parse(cls, text: str | bytes, where: str) -> BucketsManifest:
        """Read the text of one; raises as `read`."""
        try:
            values = json.loads(text)
            if values["format"] != BUCKETS:
                raise InputError(f"the bundle has format {values['format']}, without buckets", where=where)
            made = {each.name: values[each.name] for each in fields(cls)}
            made["files"] = tuple(FileInfo(**each) for each in made["files"])
            made["buckets"] = tuple(BucketInfo(**each) for each in made["buckets"])
            for name in ("inputs", "outputs"):
                made[name] = tuple(Ends(**{**each, "axes": tuple(each["axes"])}) for each in made[name])
            found = cls(**made)
        except (ValueError, KeyError, TypeError) as error:
            raise InputError(f"the manifest cannot be read: {error}", where=where, hint="convert again") from None
        for inner in (found.model, *(each.file for each in found.files), *(each.folder for each in found.buckets)):
            if not inner or inner == ".." or Path(inner).name != inner:
                raise InputError(f"the manifest is damaged: {inner!r} is not in the bundle", where=where)
        return found


def label(dims: Mapping[str, int]) -> str:
    """The sizes of a bucket, as people and folders have them."""
    return ",".join(f"{name}={size}" for name, size in dims.items())


def has_buckets(path: str | os.PathLike[str]) -> bool:
    """Whether ``path`` is a bundle with buckets."""
    try:
        values = json.loads((home(path) / "manifest.json").read_text())
    except (OSError, ValueError):
        return False
    return isinstance(values, dict) and values.get("format") == BUCKETS


class Buckets:
    """A model converted for several sizes: call it with named arrays of any size up to the largest.

    Attributes:
        path: its folder; of a packed bundle that where it was unpacked.
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
        self.path = home(path)
        self.manifest = BucketsManifest.read(manifest_path(self.path))
        self.notes: list[str] = []
        limits = {"runtime": runtime, "timeout": timeout, "memory": memory}
        self.bundles = [Bundle(self.path / each.folder, **limits) for each in self.manifest.buckets]  # type: ignore[arg-type]
        for each in self.manifest.buckets:
            if digest(self.path / each.folder / "manifest.json") != each.manifest:
                what = "the bucket is not the one that the manifest describes"
                raise InputError(what, where=str(self.path / each.folder), hint="convert again")

    @property
    def specs(self) -> list[samplers.TensorSpec]:
        """What it takes, as `onnx_bridge.samples.inputs` has it."""
        return [samplers.TensorSpec(each.name, _numpy(each), each.axes) for each in self.manifest.inputs]

    @property
    def model_path(self) -> Path:
        """The cleaned ONNX."""
        return self.path / self.manifest.model

    def to_json(self) -> dict[str, Any]:
        """As JSON values: the manifest, and the path."""
        return {"kind": "buckets", "path": str(self.path), **self.manifest.to_json()}

    def render(self) -> RenderableType:
        """In lines."""
        from rich.text import Text

        shapes = [
            f"{kind} {each.name}: {each.dtype} [{', '.join('?' if axis is None else str(axis) for axis in each.axes)}]"
            for kind, all_ in (("input", self.manifest.inputs), ("output", self.manifest.outputs))
            for each in all_
        ]
        target = f"target: {self.manifest.target}, MIGraphX {self.manifest.versions['migraphx']}"
        notes = [f"note: {note}" for note in self.manifest.notes]
        return Text("\n".join([f"bundle: {self.path}", target, self.manifest.partition_line, *shapes, *notes]))

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


def size_of(axis: Axis, dims: Mapping[str, int]) -> int | None:
    """A size for some sizes of the symbols; None where they do not say."""
    if not isinstance(axis, str) or axis in dims:
        return dims[axis] if isinstance(axis, str) else axis
    if not symbols_of(axis) <= dims.keys():
        return None
    found = ir.SymbolicDim(axis).evaluate(dict(dims))
    return found if isinstance(found, int) else None


def symbols_of(axis: str) -> frozenset[str]:
    """The symbols in an expression."""
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


def digest(path: Path) -> str:
    """That of a bucket's manifest; raises InputError where there is none."""
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError as error:
        raise InputError(f"the bucket is missing: {error.strerror}", where=str(path), hint="convert again") from error
