"""Open sizes, and the buckets that they are padded to.

A tensor is padded with zeros at the end of each open dimension, or at its start, and an output is cut to the size that
it would have had. That gives the same numbers only for modules that heed it (a mask of zeros, a causal mask, a batch);
which is why it is tried with the module itself (`disturbed`) before anything relies on it. At the start are those to
which a module appends: what it appends must come right behind what is there.
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
"""A shape: sizes, symbols or expressions of them, None where nothing is known."""
Axes = frozenset[int]


def combinations(buckets: Mapping[str, Sequence[int]]) -> list[dict[str, int]]:
    """Each combination of sizes, the smallest first."""
    made = [dict(zip(buckets, each, strict=True)) for each in itertools.product(*map(sorted, buckets.values()))]
    return sorted(made, key=lambda sizes: tuple(sizes.values()))


def smallest(sizes: Sizes, buckets: Mapping[str, Sequence[int]]) -> dict[str, int]:
    """For each size the smallest of its bucket sizes that fits.

    Raises:
        InputError: one is larger than all of them.
    """
    found = {}
    for symbol, size in sizes.items():
        fitting = [each for each in buckets[symbol] if each >= size]
        if not fitting:
            listed = ", ".join(map(str, sorted(buckets[symbol])))
            what = f"its size is {size}, and the buckets are {listed}"
            raise InputError(what, where=f"dimension {symbol!r}", hint="lower it with a larger bucket")
        found[symbol] = min(fitting)
    return found


def solve(shapes: Mapping[str, Sequence[int]], dims: Mapping[str, Dims]) -> dict[str, int]:
    """The size of each symbol that shapes have.

    Raises:
        InputError: a shape does not fit; it names the input.
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
    """A shape for these sizes; None where they do not tell a dimension."""
    return tuple(_evaluated(dim, sizes) for dim in dims)


def axes_of(dims: Dims, symbols: Collection[str]) -> Axes:
    """The axes of a shape whose sizes depend on one of the symbols."""
    return frozenset(axis for axis, dim in enumerate(dims) if isinstance(dim, str) and _symbols(dim) & set(symbols))


def padded(tensor: torch.Tensor, shape: Sequence[int], before: Axes = frozenset()) -> torch.Tensor:
    """The tensor with zeros up to ``shape``: in front of it along the axes ``before``, and behind it along others."""
    if tuple(tensor.shape) == tuple(shape):
        return tensor
    made = torch.zeros(tuple(shape), dtype=tensor.dtype, device=tensor.device)
    made[_window(shape, tensor.shape, before)] = tensor
    return made


def cut(tensor: torch.Tensor, shape: Sequence[int | None], before: Axes = frozenset()) -> torch.Tensor:
    """The tensor without what padding added, in memory of its own; a dimension of None stays."""
    wanted = [have if size is None else size for have, size in zip(tensor.shape, shape, strict=True)]
    return tensor if list(tensor.shape) == wanted else tensor[_window(tensor.shape, wanted, before)].contiguous()


def _window(large: Sequence[int], small: Sequence[int], before: Axes) -> tuple[slice, ...]:
    """Where the small one is in the large one."""
    pairs = enumerate(zip(large, small, strict=True))
    return tuple(slice(have - size, have) if axis in before else slice(size) for axis, (have, size) in pairs)


def disturbed(
    run: Callable[[Tensors, Sizes], Tensors],
    tensors: Tensors,
    inputs: Mapping[str, Dims],
    outputs: Callable[[str], Sequence[int | None]],
    small: Sizes,
    large: Sizes,
    before: Mapping[str, Axes] | None = None,
) -> str | None:
    """What padding changes.

    Args:
        run: the module, on tensors that have the given sizes.
        tensors: of the small sizes.
        inputs: the dims of each.
        outputs: the shape of each output for the small sizes.
        small: sizes of symbols.
        large: those to pad to.
        before: the axes of inputs and outputs that are padded at their start, by name.

    Returns:
        The first output that differs, and how far; None where all agree, for the given values and for others (the
        given ones in reverse, floats with the other sign).
    """
    starts = before or {}

    def axes(name: str) -> Axes:
        return starts.get(name, frozenset())

    for turned in (False, True):
        given = {name: _turned(each) if turned else each for name, each in tensors.items()}
        expected = run(given, small)
        shapes = {name: shape_of(inputs[name], large) for name in given}
        wide = {name: padded(each, [size or 0 for size in shapes[name]], axes(name)) for name, each in given.items()}
        found = {name: cut(each, outputs(name), axes(name)) for name, each in run(wide, large).items()}
        compared = compare(
            {name: to_array(each) for name, each in found.items()},
            {name: to_array(each) for name, each in expected.items()},
        )
        for output in compared.outputs:
            if not output.passed:
                return f"{output.name}: {output.reason}"
    return None


def _turned(tensor: torch.Tensor) -> torch.Tensor:
    turned = tensor.flip(-1) if tensor.dim() else tensor
    return -turned if turned.is_floating_point() and bool(turned.isfinite().all()) else turned


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
    except ValueError:  # a name that is no expression
        return frozenset((dim,))


def _unfit(name: str, shape: Sequence[int], wanted: Dims) -> InputError:
    said = ", ".join("?" if dim is None else str(dim) for dim in wanted)
    return InputError(f"its shape is {list(shape)}, and it was lowered for [{said}]", where=f"input {name!r}")
