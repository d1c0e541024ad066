"""Smaller input shapes for a witness of a whole model.

Sizes that are equal stay equal, and the levels of a pyramid (80, 40, 20) keep their proportions. A size keeps its
remainder by the strides that it may meet (32, or 8 if it is small), a size of 1 stays, and no other becomes 1, since
both would select other behaviour.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

import onnx_ir as ir

from onnx_bridge.samples.dimensions import dims_of
from passes.shapes.open_sizes import OpenDims
from passes.shapes.size_expressions import by_place, symbols

Shapes = Mapping[str, tuple[int, ...]]

_STRIDES = ((64, 32), (16, 8))
"""The remainder that a size from the first number on keeps."""
_STRIDES_OF_LEVELS = (*_STRIDES, (4, 2))
_FACTORS = tuple(2.0**-power for power in range(1, 12))


@dataclass(frozen=True)
class Part:
    """The unit that the size of an axis is a multiple of.

    Attributes:
        key: equal for the axes that are made smaller together.
        unit: the unit of all of them; sizes are multiples of it.
        levels: whether the sizes are different multiples.
    """

    key: object
    unit: int
    levels: bool = False

    def smaller(self, factor: float, axis: int) -> int:
        """Return a unit about ``factor`` times as large; a batch, at axis 0, keeps no remainder."""
        wanted = math.ceil(self.unit * factor)
        if axis == 0:
            return min(self.unit, max(2, wanted))
        strides = _STRIDES_OF_LEVELS if self.levels else _STRIDES
        stride = next((stride for least, stride in strides if self.unit >= least), self.unit)
        rest = self.unit % stride
        return min(self.unit, rest + stride * max(1, math.ceil((wanted - rest) / stride)))


Axes = Mapping[tuple[str, int], Part]
"""The parts of axes by input and index."""


def open_axes(model: ir.Model, shapes: Shapes, frozen: Collection[str]) -> dict[tuple[str, int], Part]:
    """Return the axes of inputs whose sizes a model leaves open, by symbol.

    Sizes of 1, expressions, and sizes that follow from the model are left out.

    Args:
        model: as the user gave it.
        shapes: the real sizes of its inputs.
        frozen: inputs that are constants.
    """
    determined = OpenDims(model, {}, {}, frozen).determined()
    axes: dict[tuple[str, int], Part] = {}
    for value in model.graph.inputs:
        name = str(value.name)
        for axis, dim in enumerate(dims_of(value) or [None] * len(shapes.get(name, ()))):
            if isinstance(dim, int) or name not in shapes or shapes[name][axis] == 1:
                continue
            if (dim or by_place(name, axis)) in determined:
                continue
            if dim is None or symbols(dim) == {dim}:
                size = shapes[name][axis]
                axes[name, axis] = Part((axis == 0, size) if dim is None else dim, size)
    return axes


def as_sizes(model: ir.Model, shapes: Shapes) -> tuple[dict[str, int], dict[str, tuple[int, ...]]]:
    """Return sizes by symbol, and the whole shapes of inputs with open dimensions that have no name."""
    dims: dict[str, int] = {}
    whole: dict[str, tuple[int, ...]] = {}
    for value in model.graph.inputs:
        name, declared = str(value.name), dims_of(value)
        if name not in shapes:
            continue
        if declared is None or None in declared:
            whole[name] = shapes[name]
        for dim, size in zip(declared or (), shapes[name], strict=False):
            if isinstance(dim, str) and symbols(dim) == {dim}:
                dims[dim] = size
    return dims, whole


def fixed_axes(shapes: Shapes, runs: Callable[[Shapes], bool]) -> dict[tuple[str, int], Part]:
    """Return the axes of inputs that can be smaller though the model fixes them: spatial sizes, batches, lengths."""
    accepted: dict[tuple[str, int], Part] = {}
    for axes in (*_equal(shapes), *_levels(shapes)):
        wider = {**axes, **accepted}
        smallest = _smallest(shapes, wider)
        if smallest != _smallest(shapes, accepted) and runs(smallest):
            accepted = wider
    return accepted


def _equal(shapes: Shapes) -> Iterator[Axes]:
    """Yield the axes of each size; batches apart."""
    classes: dict[object, dict[tuple[str, int], Part]] = {}
    for name, shape in shapes.items():
        for axis, size in enumerate(shape):
            part = Part((axis == 0, size), size)
            classes.setdefault(part.key, {})[name, axis] = part
    yield from classes.values()


def _levels(shapes: Shapes) -> Iterator[Axes]:
    """Yield axes at the same index that are multiples of one size: the levels of a pyramid."""
    for axis in range(1, max(map(len, shapes.values()), default=0)):
        sizes = {name: shape[axis] for name, shape in shapes.items() if axis < len(shape) and shape[axis] > 1}
        unit = math.gcd(*sizes.values())
        if len({*sizes.values()}) > 1:
            yield {(name, axis): Part(("levels", axis), unit, levels=True) for name in sizes}


def smaller_shapes(shapes: Shapes, axes: Axes) -> Iterator[Shapes]:
    """Yield smaller and smaller shapes, each about half of the previous ones along the axes."""
    return _scaled(shapes, axes, _FACTORS)


def share(small: Shapes, shapes: Shapes) -> float:
    """Return the number of elements of all inputs, as a share of their number in larger shapes."""
    return _elements(small) / max(1, _elements(shapes))


def _smallest(shapes: Shapes, axes: Axes) -> Shapes:
    return next(_scaled(shapes, axes, [0.0]), shapes)


def _elements(shapes: Shapes) -> int:
    return sum(map(math.prod, shapes.values()))


def _scaled(shapes: Shapes, axes: Axes, factors: Sequence[float]) -> Iterator[Shapes]:
    last: Shapes = shapes
    for factor in factors:
        units: dict[object, int] = {}
        for (_, axis), part in axes.items():
            units[part.key] = max(units.get(part.key, 0), part.smaller(factor, axis))
        scaled = {
            name: tuple(
                size // its.unit * units[its.key] if (its := axes.get((name, axis))) else size
                for axis, size in enumerate(shape)
            )
            for name, shape in shapes.items()
        }
        if scaled != last:
            yield scaled
        last = scaled
