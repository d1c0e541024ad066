"""Padding inputs up to the sizes of a bucket, and cutting outputs to what is real.

    past: [2, 5]           →  [2, 8]     padded at its end, or at its start
    past + new: [2, 5 + 1] →  [2, 8 + 2] padded at its start for past, and at its end for new

What is padded at its start belongs to dimensions that a model appends to, as the keys and values of a decoder: new
elements then directly follow the old ones.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from onnx_bridge.bundle.manifest.axes import EDGE, Axis, size_of
from onnx_bridge.bundle.manifest.entries import TensorInfo
from onnx_bridge.core.errors import InputError
from onnx_bridge.core.values import Array
from onnx_bridge.samples import inputs as samplers
from onnx_bridge.samples.inputs import Sample, TensorSpec

Sizes = Mapping[str, int]


@dataclass(frozen=True)
class Padding:
    """The way in which inputs are padded.

    Attributes:
        rules: the filler of each input: a number, or ``edge`` for its last element; default: 0.
        before: the dimensions that are padded, and cut, at their start.
    """

    rules: Mapping[str, str] = field(default_factory=dict)
    before: Collection[str] = ()

    def pad(self, array: Array, tensor: TensorInfo, small: Sizes, large: Sizes) -> Array:
        """Return an input padded to large sizes, the array itself if these are the same; raises InputError."""
        widths = [growth(axis, small, large, self.before) for axis in tensor.shape or ()]
        if not any(map(any, widths)):
            return array
        if any(width < 0 for pair in widths for width in pair):
            what = f"the array is {list(array.shape)}, more than its bucket has"
            raise InputError(what, where=f"input {tensor.name!r}", hint="its sizes must not shrink while others grow")
        rule = self.rules.get(tensor.name, "0")
        if rule == EDGE and array.size:
            return np.pad(array, widths, mode="edge")
        filler = 0.0 if rule == EDGE else float(rule)
        shape = [before + size + after for size, (before, after) in zip(array.shape, widths, strict=True)]
        padded = np.full(shape, np.asarray(filler).astype(array.dtype), array.dtype)
        places = zip(array.shape, widths, strict=True)
        padded[tuple(slice(before, before + size) for size, (before, _) in places)] = array
        return padded

    def cut(self, array: Array, axes: Sequence[Axis], small: Sizes, large: Sizes) -> Array:
        """Return an output of large sizes without what padding added; axes whose sizes depend on the data stay."""
        if len(axes) != array.ndim:
            return array
        return array[kept(axes, small, large, self.before)]


def kept(axes: Sequence[Axis], small: Sizes, large: Sizes, before: Collection[str]) -> tuple[slice, ...]:
    """Return what padding from small to large sizes keeps of each axis; all of one whose size depends on the data."""
    places = []
    for axis in axes:
        size, (start, _) = size_of(axis, small), growth(axis, small, large, before)
        places.append(slice(None) if size is None else slice(start, start + size))
    return tuple(places)


def growth(axis: Axis, small: Sizes, large: Sizes, before: Collection[str]) -> tuple[int, int]:
    """Return how much an axis grows at its start, by the dimensions ``before``, and at its end, by the others."""
    sizes = small, {**small, **{name: large[name] for name in before}}, large
    have, at_start, needed = (size_of(axis, size) for size in sizes)
    if have is None or at_start is None or needed is None:
        return 0, 0
    return at_start - have, needed - at_start


def bucket_samples(
    specs: Sequence[TensorSpec], dims: Mapping[str, int], *, seed: int = 0, samples: int = 1
) -> list[Sample]:
    """Generate samples of the sizes of a program, with its values of the inputs that select one."""
    symbols = {dim for spec in specs for dim in spec.shape or ()}
    selecting = {spec.name for spec in specs if spec.dtype.kind in "biu"} & dims.keys() - symbols
    sizes = {name: size for name, size in dims.items() if name not in selecting}
    generated = samplers.generate(specs, seed=seed, samples=samples, dims=sizes)
    for sample in generated:
        sample.update({name: np.full_like(sample[name], dims[name]) for name in selecting})
    return generated
