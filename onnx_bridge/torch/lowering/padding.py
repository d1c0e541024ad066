"""Open dimensions, and the bucket sizes that they are padded to.

A tensor is padded with zeros where `onnx_bridge.bundle.padding` says, and each output is cut to the size that it has
without padding. That gives the same numbers only if padding does not affect them (a mask of zeros, a causal
mask, a batch), which is checked with the module itself (`changed_output`).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Mapping, Sequence

import torch

from onnx_bridge.bundle.manifest.axes import size_of
from onnx_bridge.bundle.padding import growth
from onnx_bridge.core.errors import InputError
from onnx_bridge.reference.comparison.compare import compare
from onnx_bridge.torch.modules.tensors import to_array

Tensors = Mapping[str, torch.Tensor]
Sizes = Mapping[str, int]
Dims = tuple[int | str | None, ...]
"""A shape: sizes, symbols or expressions of symbols; None is unknown."""
Widths = Sequence[tuple[int, int]]
"""How much each axis grows at its start and at its end."""


def combinations(buckets: Mapping[str, Sequence[int]]) -> list[dict[str, int]]:
    """All combinations of sizes, the smallest first."""
    combined = [dict(zip(buckets, each, strict=True)) for each in itertools.product(*map(sorted, buckets.values()))]
    return sorted(combined, key=lambda sizes: tuple(sizes.values()))


def smallest(sizes: Sizes, buckets: Mapping[str, Sequence[int]]) -> dict[str, int]:
    """For each size the smallest bucket size that fits.

    Raises:
        InputError: a size is larger than all its buckets.
    """
    found = {}
    for symbol, size in sizes.items():
        fitting = [each for each in buckets[symbol] if each >= size]
        if not fitting:
            listed = ", ".join(map(str, sorted(buckets[symbol])))
            what = f"its size is {size}, but the buckets are {listed}"
            raise InputError(what, where=f"dimension {symbol!r}", hint="lower it with a larger bucket")
        found[symbol] = min(fitting)
    return found


def solve(shapes: Mapping[str, Sequence[int]], dims: Mapping[str, Dims]) -> dict[str, int]:
    """The size of each symbol, from the shapes of inputs.

    Raises:
        InputError: a shape does not fit; the error names the input.
    """
    sizes: dict[str, int] = {}
    for name, wanted in dims.items():
        shape = shapes[name]
        if len(shape) != len(wanted):
            raise _unfit(name, shape, wanted)
        for size, dim in zip(shape, wanted, strict=True):
            if isinstance(dim, str) and dim.isidentifier():
                sizes.setdefault(dim, size)
    for name, wanted in dims.items():
        if tuple(shapes[name]) != shape_of(wanted, sizes):
            raise _unfit(name, shapes[name], wanted)
    return sizes


def shape_of(dims: Dims, sizes: Sizes) -> tuple[int | None, ...]:
    """A shape for these sizes; None for unknown dimensions."""
    return tuple(size_of(dim, sizes) for dim in dims)


def widths_of(dims: Dims, small: Sizes, large: Sizes, before: Collection[str] = ()) -> Widths:
    """How much a tensor grows; the dimensions ``before`` grow at their start."""
    return [growth(dim, small, large, before) for dim in dims]


def widths_to(shape: Sequence[int], tensor: torch.Tensor) -> Widths:
    """How much a tensor grows at its ends, up to a shape."""
    return [(0, size - have) for have, size in zip(tensor.shape, shape, strict=True)]


def padded(tensor: torch.Tensor, widths: Widths) -> torch.Tensor:
    """Pad a tensor with zeros."""
    if not any(map(any, widths)):
        return tensor
    pairs = list(zip(tensor.shape, widths, strict=True))
    made = torch.zeros([start + size + end for size, (start, end) in pairs], dtype=tensor.dtype, device=tensor.device)
    made[tuple(slice(start, start + size) for size, (start, _) in pairs)] = tensor
    return made


def cut(tensor: torch.Tensor, shape: Sequence[int | None], widths: Widths = ()) -> torch.Tensor:
    """A contiguous copy of a tensor without its padding; dimensions of size None are not cut."""
    wanted = [have if size is None else size for have, size in zip(tensor.shape, shape, strict=True)]
    if list(tensor.shape) == wanted:
        return tensor
    starts = [start for start, _ in widths] or [0] * len(wanted)
    places = zip(starts, wanted, strict=True)
    return tensor[tuple(slice(start, start + size) for start, size in places)].contiguous()


def changed_output(
    run: Callable[[Tensors, Sizes], Tensors],
    tensors: Tensors,
    inputs: Mapping[str, Dims],
    outputs: Mapping[str, Dims],
    small: Sizes,
    large: Sizes,
    before: Collection[str] = (),
) -> str | None:
    """Check whether padding changes an output.

    Args:
        run: runs the module on tensors of the given sizes.
        tensors: inputs of the small sizes.
        inputs: the dimensions of each input.
        outputs: the dimensions of each output.
        small: sizes of symbols.
        large: the sizes to pad to.
        before: the symbols that are padded at their start.

    Returns:
        The first output that differs, and by how much; None if all agree, for the given values and for others (the
        given ones in reverse order, floats negated).
    """
    widths = {name: widths_of(dims, small, large, before) for name, dims in (*inputs.items(), *outputs.items())}
    shapes = {name: shape_of(dims, small) for name, dims in outputs.items()}
    for inverted in (False, True):
        given = {name: _inverted(each) if inverted else each for name, each in tensors.items()}
        expected = run(given, small)
        wide = {name: padded(each, widths[name]) for name, each in given.items()}
        found = {name: cut(each, shapes[name], widths[name]) for name, each in run(wide, large).items()}
        compared = compare(
            {name: to_array(each) for name, each in found.items()},
            {name: to_array(each) for name, each in expected.items()},
        )
        for output in compared.outputs:
            if not output.passed:
                return f"{output.name}: {output.reason}"
    return None


def _inverted(tensor: torch.Tensor) -> torch.Tensor:
    flipped = tensor.flip(-1) if tensor.dim() else tensor
    return -flipped if flipped.is_floating_point() and bool(flipped.isfinite().all()) else flipped


def _unfit(name: str, shape: Sequence[int], wanted: Dims) -> InputError:
    lowered = ", ".join("?" if dim is None else str(dim) for dim in wanted)
    return InputError(f"its shape is {list(shape)}, but it was lowered for [{lowered}]", where=f"input {name!r}")
