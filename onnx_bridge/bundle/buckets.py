"""Bundles with buckets: one program for each of several sizes, for inputs of any size up to the largest.

    NAME.onnx  manifest.json  batch=1,seq=128/  batch=4,seq=128/  …

The folder holds the cleaned model with its symbolic dimensions, and an ordinary bundle for each bucket. A call picks
the smallest bucket that fits, pads the inputs to its sizes, and cuts the outputs to the sizes that the unpadded inputs
imply (`onnx_bridge.bundle.padding`). Whether a model computes the same on padded inputs depends on the model (masks are
for that): `convert` tries it with the reference, and `check` compares each bucket with samples smaller than it, too.

Where an input selects between branches, the programs of its two values are buckets as well, and a call picks those of
the value that it has.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from onnx_bridge.bundle.bundle import Bundle
from onnx_bridge.bundle.files.pack import unpacked
from onnx_bridge.bundle.manifest.buckets_manifest import (
    BucketInfo,
    BucketsManifest,
    BucketTensor,
    label,
    manifest_digest,
)
from onnx_bridge.bundle.manifest.manifest import BUCKETS
from onnx_bridge.bundle.manifest.proof import BundleProof
from onnx_bridge.bundle.manifest.text import manifest_path
from onnx_bridge.bundle.padding import Padding
from onnx_bridge.core.errors import InputError
from onnx_bridge.core.files.regular_file import read_regular
from onnx_bridge.core.schema import parse_json
from onnx_bridge.core.values import Value
from onnx_bridge.samples import inputs as samplers


def has_buckets(path: str | os.PathLike[str]) -> bool:
    """Whether ``path`` is a bundle with buckets."""
    try:
        values = parse_json(read_regular(unpacked(path) / "manifest.json"))
    except (OSError, ValueError):
        return False
    return isinstance(values, dict) and values.get("format") == BUCKETS


class Buckets:
    """A model converted for several sizes: call it with named arrays of any size up to the largest.

    Attributes:
        path: its folder; of a packed bundle, the folder that it was unpacked to.
        manifest: what is known of it.
        bundles: those of the buckets, in their order.
        notes: sentences on the last call: the bucket, and what was padded.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        runtime: str | None = None,
        timeout: float | None = None,
        memory: float | None = None,
    ) -> None:
        self.path = unpacked(path)
        self.manifest = BucketsManifest.read(manifest_path(self.path))
        self.notes: list[str] = []
        self.bundles = [
            Bundle(self.path / each.folder, runtime=runtime, timeout=timeout, memory=memory)
            for each in self.manifest.buckets
        ]
        for each in self.manifest.buckets:
            if manifest_digest(self.path / each.folder / "manifest.json") != each.manifest:
                what = "the bucket is not the one that the manifest describes"
                raise InputError(what, where=str(self.path / each.folder), hint="convert again")

    @property
    def specs(self) -> list[samplers.TensorSpec]:
        """The inputs, for `onnx_bridge.samples.inputs`."""
        return [samplers.TensorSpec(each.name, _numpy(each), each.axes) for each in self.manifest.inputs]

    @property
    def model_path(self) -> Path:
        return self.path / self.manifest.model

    @property
    def proof(self) -> BundleProof:
        """How far the numbers of all buckets are known."""
        return self.manifest.proof

    def to_json(self) -> dict[str, Any]:
        """As JSON values: the manifest, and the path."""
        return {"kind": "buckets", "path": str(self.path), **self.manifest.to_json()}

    @property
    def most_rows(self) -> int | None:
        """The largest size of the first axis of all inputs; None if they have none in common, or it is not open."""
        first = {each.axes[0] if each.axes else None for each in self.manifest.inputs}
        sizes = [each.dims.get(str(axis)) for axis in first for each in self.manifest.buckets]
        return max(filter(None, sizes)) if len(first) == 1 and all(sizes) else None

    def with_each(self, wrap: Callable[[Bundle], Bundle]) -> Buckets:
        """The same with the bundle of each bucket wrapped, as by `onnx_bridge.as_gpu`."""
        other = copy.copy(self)
        other.bundles = list(map(wrap, self.bundles))
        return other

    def open(self) -> None:
        """Load all programs; raises like `onnx_bridge.load`."""
        for each in self.bundles:
            each.open()

    def bucket(self, dims: Mapping[str, int]) -> BucketInfo:
        """The smallest bucket that holds some sizes, and has the values of selecting inputs.

        Raises:
            InputError: none does; names all of them.
        """
        exact = self.manifest.selecting
        fitting = [
            each
            for each in self.manifest.buckets
            if all(dims[name] == size if name in exact else dims[name] <= size for name, size in each.dims.items())
        ]
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
        padding = Padding(self.manifest.pad, self.manifest.pad_before)
        inputs, padded = dict(sample), []
        for info in self.manifest.inputs:
            if info.name in self.manifest.selecting:
                del inputs[info.name]
                continue
            array = sample[info.name]
            assert isinstance(array, np.ndarray)
            inputs[info.name] = larger = padding.pad(array, info, dims, chosen.dims)
            if larger is not array:
                padded.append(f"{info.name} {list(array.shape)} to {list(larger.shape)}")
        listed = f", padded: {', '.join(padded)}" if padded else ""
        self.notes = [f"run in the bucket {label(chosen.dims)}{listed}"]
        outputs = bundle(inputs)
        for info in self.manifest.outputs if padded else ():
            array = outputs[info.name]
            if isinstance(array, np.ndarray):
                outputs[info.name] = padding.cut(array, info.axes, dims, chosen.dims)
        return outputs

    def close(self) -> None:
        for each in self.bundles:
            each.close()

    def _dims(self, sample: Mapping[str, Value]) -> dict[str, int]:
        """The sizes of the symbols in a sample, and the values of selecting inputs."""
        found: dict[str, int] = {}
        for info in self.manifest.inputs:
            array = sample[info.name]
            assert isinstance(array, np.ndarray)
            found |= {axis: size for axis, size in zip(info.axes, array.shape, strict=True) if isinstance(axis, str)}
            if info.name in self.manifest.selecting:
                found[info.name] = int(array.item())
        return {name: found[name] for name in self.manifest.buckets[0].dims}


def _numpy(info: BucketTensor) -> np.dtype[Any]:
    return np.dtype(getattr(ml_dtypes, info.dtype, info.dtype))
