"""Smaller input shapes for a witness of a whole model.

Sizes that are equal stay equal. A size keeps its remainder by the strides that it may meet (32, or 8 if it is small), a
size of 1 stays, and no other becomes 1, since both would select other behaviour.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence

import onnx_ir as ir

from onnx_bridge.bundle.buckets_manifest import symbols_of
from onnx_bridge.samples.roles import dims_of

Shapes = Mapping[str, tuple[int, ...]]
Classes = Mapping[tuple[str, int], object]
"""Which axes, by input and index, are to have the same size."""

_STRIDES = ((64, 32), (16, 8))
"""The remainder that a size from the first number on keeps."""
_FACTORS = tuple(2.0**-power for power in range(1, 12))


def open_axes(model: ir.Model, shapes: Shapes) -> dict[tuple[str, int], object]:
    """The axes of inputs whose sizes a model leaves open, by symbol; without those of size 1, and expressions."""
    found: dict[tuple[str, int], object] = {}
    for value in model.graph.inputs:
        name = str(value.name)
        for axis, dim in enumerate(dims_of(value) or [None] * len(shapes.get(name, ()))):
            if isinstance(dim, int) or name not in shapes or shapes[name][axis] == 1:
                continue
            if dim is None or symbols_of(dim) == {dim}:
                found[name, axis] = (axis == 0, shapes[name][axis]) if dim is None else dim
    return found


def as_sizes(model: ir.Model, shapes: Shapes) -> tuple[dict[str, int], dict[str, tuple[int, ...]]]:
    """Shapes as sizes by symbol, and as whole shapes of inputs with open dimensions that have no name."""
    dims: dict[str, int] = {}
    whole: dict[str, tuple[int, ...]] = {}
    for value in model.graph.inputs:
        name, declared = str(value.name), dims_of(value)
        if name not in shapes:
            continue
        if declared is None or None in declared:
            whole[name] = shapes[name]
        for dim, size in zip(declared or (), shapes[name], strict=False):
            if isinstance(dim, str) and symbols_of(dim) == {dim}:
                dims[dim] = size
    return dims, whole


def fixed_axes(shapes: Shapes, runs: Callable[[Shapes], bool]) -> dict[tuple[str, int], object]:
    """The axes of inputs that can be smaller though the model fixes them: spatial sizes, batches, lengths.

    Args:
        shapes: of its inputs.
        runs: whether the model runs with other shapes; inference alone does not notice a wrong number of channels.
    """
    classes: dict[object, list[tuple[str, int]]] = {}
    for name, shape in shapes.items():
        for axis, size in enumerate(shape):
            if _smaller(size, 0.0, axis) < size:
                classes.setdefault((axis == 0, size), []).append((name, axis))
    found: dict[tuple[str, int], object] = {}
    for key, axes in classes.items():
        wider = {**found, **dict.fromkeys(axes, key)}
        if runs(next(iter(_scaled(shapes, wider, [0.0])))):
            found = wider
    return found


def smaller_shapes(shapes: Shapes, axes: Classes) -> Iterator[Shapes]:
    """Smaller and smaller shapes, each about half of the one before along the axes."""
    return _scaled(shapes, axes, _FACTORS)


def share(small: Shapes, shapes: Shapes) -> float:
    """The elements of all inputs, as a share of those of larger ones."""
    return _elements(small) / max(1, _elements(shapes))


def _elements(shapes: Shapes) -> int:
    return sum(map(math.prod, shapes.values()))


def _scaled(shapes: Shapes, axes: Classes, factors: Sequence[float]) -> Iterator[Shapes]:
    last = dict(shapes)
    for factor in factors:
        sizes: dict[object, int] = {}
        for (name, axis), key in axes.items():
            size = _smaller(shapes[name][axis], factor, axis)
            sizes[key] = max(sizes.get(key, 0), size)
        found = {
            name: tuple(sizes[axes[name, axis]] if (name, axis) in axes else size for axis, size in enumerate(shape))
            for name, shape in shapes.items()
        }
        if found != last:
            yield found
        last = found


def _smaller(size: int, factor: float, axis: int) -> int:
    """A size about ``factor`` times as large."""
    wanted = math.ceil(size * factor)
    if axis == 0 or size < _STRIDES[-1][0]:
        return min(size, max(2, wanted)) if axis == 0 else size
    stride = next(stride for least, stride in _STRIDES if size >= least)
    rest = size % stride
    return min(size, rest + stride * max(1, math.ceil((wanted - rest) / stride)))
