"""The sizes of outputs for the sizes of inputs: as declared, a sum, or what inference says at many sizes.

y = MaxPool<kernel_shape=[2], strides=[2], ceil_mode=1>(x: [1, 2, n])    →    y: [1, 2, (n + 1)//2]
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial

import onnx_ir as ir

from onnx_bridge.bundle.manifest.axes import Axis, divided, fitted, inside, size_of
from onnx_bridge.conversion.sizes.buckets import BucketSizes, selected
from onnx_bridge.conversion.sizes.freezing import freezing
from onnx_bridge.core.errors import BridgeError
from onnx_bridge.requests.conversion import CleanRequest, ConvertRequest
from passes.rewriting.base import Context
from passes.shapes import inference
from passes.shapes.open_sizes import WINDOWED, is_too_short
from passes.shapes.skeleton import Known

_MOST = 32
"""The number of the smallest, and of the largest sizes of a dimension at which inference is asked."""
Sizes = Mapping[str, int]
Observed = Sequence[tuple[Sizes, Sequence[int | None]]]


def output_axes(claims: Iterable[Sequence[Axis] | None], observed: Observed) -> tuple[Axis, ...]:
    """Return an output's dimensions: the first claims that observed shapes confirm, or what is fitted to these."""
    known = [claim for claim in claims if claim is not None]
    points = list({(*dims.items(), *shape): (dims, shape) for dims, shape in observed}.values())
    ranks = {len(shape) for _, shape in points}
    if len(ranks) != 1:
        return tuple(next(iter(known), ()))
    (rank,) = ranks
    axes: list[Axis] = []
    for index in range(rank):
        candidates = [claim[index] for claim in known if len(claim) == rank]
        sizes = [size for _, shape in points if (size := shape[index]) is not None]
        if len(sizes) == len(points):
            candidates.append(fitted([dims for dims, _ in points], sizes))
        confirmed = (axis for axis in candidates if all(size_of(axis, dims) == shape[index] for dims, shape in points))
        axes.append(next((axis for axis in confirmed if axis is not None), None))
    return tuple(axes)


def inferred_axes(model: ir.Model, sizes: BucketSizes, request: ConvertRequest) -> dict[str, tuple[Axis, ...]]:
    """Return the dimensions of the outputs of a model by name; those without an expression are None."""
    exact = selected(model, sizes.buckets[0])
    points = [*sizes.buckets, *(inside(bucket, sizes.buckets, exact) for bucket in sizes.buckets)]
    observed = _inferred(model, sizes, request, points)
    axes = {name: output_axes((), shapes) for name, shapes in observed.items()}
    if not any(None in known and None not in observed[name][0][1] for name, known in axes.items()):
        return axes
    observed = _inferred(model, sizes, request, [*points, *_many(sizes.buckets[-1], exact)])
    return {name: tuple(_axis(index, observed[name]) for index in range(len(known))) for name, known in axes.items()}


def _axis(index: int, observed: Observed) -> Axis:
    points, sizes = (
        [dims for dims, _ in observed],
        [size for _, shape in observed if (size := shape[index]) is not None],
    )
    if len(sizes) < len(points):
        return None
    axis = fitted(points, sizes)
    return divided(points, sizes) if axis is None else axis


def _many(largest: Sizes, exact: set[str]) -> Iterator[Sizes]:
    """Yield the largest sizes with others for each dimension, but for the values of selecting inputs."""
    for name in sorted(largest.keys() - exact):
        for size in range(1, largest[name]):
            if size <= _MOST or size > largest[name] - _MOST:
                yield {**largest, name: size}


def _inferred(
    model: ir.Model, sizes: BucketSizes, request: ConvertRequest, points: Iterable[Sizes]
) -> dict[str, list[tuple[Sizes, tuple[int | None, ...]]]]:
    """Return the shapes of outputs at several sizes, by name; sizes that do not fit are left out."""
    shapes: dict[str, list[tuple[Sizes, tuple[int | None, ...]]]] = {}
    for point in points:
        sized, alone = model.clone(), sizes.request_of(model, point, request)
        try:
            freezing(CleanRequest(dims=alone.dims, shapes=alone.shapes, freeze=alone.freeze)).run(sized, Context())
            known = inference.run(sized, declared=False, propagate=True)
        except (BridgeError, *inference.FAILURES):
            continue
        if any(node.op_type in WINDOWED and is_too_short(node, partial(_dims, known)) for node in sized.graph):
            continue
        for value in sized.graph.outputs:
            dims = _dims(known, value)
            if dims is not None:
                shapes.setdefault(str(value.name), []).append((point, dims))
    return shapes


def _dims(known: Mapping[ir.Value, Known], value: ir.Value) -> tuple[int | None, ...] | None:
    shape = value.shape if value.producer() is None else known.get(value, (None, None))[1]
    return None if shape is None else tuple(dim if isinstance(dim, int) else None for dim in shape)
