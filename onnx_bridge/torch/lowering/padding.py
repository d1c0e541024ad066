"""Open dimensions, and the bucket sizes that they are padded to.

A tensor is padded with zeros at the end of each open dimension, or at its start, and each output is cut to the size
that it has without padding. That gives the same numbers only if padding does not affect them (a mask of zeros, a causal
mask, a batch), which is checked with the module itself (`changed_output`). Dimensions that a module appends to are
padded at their start, so that new elements directly follow the old ones.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Mapping, Sequence

import onnx_ir as ir
import torch

from onnx_bridge.core.errors import InputError
from onnx_bridge.reference.compare import compare
from onnx_bridge.torch.export.tensors import to_array

Tensors = Mapping[str, torch.Tensor]
Sizes = Mapping[str, int]
Dims = tuple[int | str | None, ...]
"""A shape: sizes, symbols or expressions of symbols; None is unknown."""
Axes = frozenset[int]


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
    return tuple(_evaluated(dim, sizes) for dim in dims)


def axes_of(dims: Dims, symbols: Collection[str]) -> Axes:
    """The axes of a shape that depend on one of the symbols."""
    return frozenset(axis for axis, dim in enumerate(dims) if isinstance(dim, str) and _symbols(dim) & set(symbols))


def padded(tensor: torch.Tensor, shape: Sequence[int], before: Axes = frozenset()) -> torch.Tensor:
    """Pad a tensor with zeros to ``shape``: at the start of the axes ``before``, and at the end of others."""
    if tuple(tensor.shape) == tuple(shape):
        return tensor
    made = torch.zeros(tuple(shape), dtype=tensor.dtype, device=tensor.device)
    made[_window(shape, tensor.shape, before)] = tensor
    return made


def cut(tensor: torch.Tensor, shape: Sequence[int | None], before: Axes = frozenset()) -> torch.Tensor:
    """A contiguous copy of a tensor without its padding; dimensions of size None are not cut."""
    wanted = [have if size is None else size for have, size in zip(tensor.shape, shape, strict=True)]
    return tensor if list(tensor.shape) == wanted else tensor[_window(tensor.shape, wanted, before)].contiguous()


def _window(large: Sequence[int], small: Sequence[int], before: Axes) -> tuple[slice, ...]:
    """The place of the small shape in the large one."""
    pairs = enumerate(zip(large, small, strict=True))
    return tuple(slice(have - size, have) if axis in before else slice(size) for axis, (have, size) in pairs)


def changed_output(
    run: Callable[[Tensors, Sizes], Tensors],
    tensors: Tensors,
    inputs: Mapping[str, Dims],
    outputs: Mapping[str, Sequence[int | None]],
    small: Sizes,
    large: Sizes,
    before: Mapping[str, Axes] | None = None,
) -> str | None:
    """Check whether padding changes an output.

    Args:
        run: runs the module on tensors of the given sizes.
        tensors: inputs of the small sizes.
        inputs: the dimensions of each input.
        outputs: the shape of each output for the small sizes.
        small: sizes of symbols.
        large: the sizes to pad to.
        before: the axes of inputs and outputs that are padded at their start, by name.

    Returns:
        The first output that differs, and by how much; None if all agree, for the given values and for others (the
        given ones in reverse order, floats negated).
    """
    starts = before or {}

    def axes(name: str) -> Axes:
        return starts.get(name, frozenset())

    for inverted in (False, True):
        given = {name: _inverted(each) if inverted else each for name, each in tensors.items()}
        expected = run(given, small)
        shapes = {name: shape_of(inputs[name], large) for name in given}
        wide = {name: padded(each, [size or 0 for size in shapes[name]], axes(name)) for name, each in given.items()}
        found = {name: cut(each, outputs[name], axes(name)) for name, each in run(wide, large).items()}
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


def _evaluated(dim: int | str | None, sizes: Sizes) -> int | None:
    if not isinstance(dim, str):
        return dim
    if dim in sizes:
        return sizes[dim]
    value = ir.SymbolicDim(dim).evaluate(sizes) if _symbols(dim) <= sizes.keys() else None
    return value if isinstance(value, int) else None


def _symbols(dim: str) -> frozenset[str]:
    try:
        return ir.SymbolicDim(dim).free_symbols()
    except ValueError:  # a name that is not an expression
        return frozenset((dim,))


def _unfit(name: str, shape: Sequence[int], wanted: Dims) -> InputError:
    lowered = ", ".join("?" if dim is None else str(dim) for dim in wanted)
    return InputError(f"its shape is {list(shape)}, but it was lowered for [{lowered}]", where=f"input {name!r}")
