"""Samples for export and checks: sizes that exporters do not specialize, and other values of the same kind."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Literal

import numpy as np
import onnx_ir as ir
import torch

from onnx_bridge.core.errors import InputError, nearest
from onnx_bridge.core.values import Array
from onnx_bridge.samples import inputs as samplers
from onnx_bridge.samples.roles import Data
from onnx_bridge.torch.export.exporters import Dims
from onnx_bridge.torch.modules.tensors import to_array, to_tensor

Tensors = Mapping[str, torch.Tensor]


def check_dynamic(tensors: Tensors, dynamic: Mapping[str, Mapping[int, str]]) -> Dims:
    """Return the open dimensions, with non-negative axes; raises InputError for an unknown input, axis or symbol."""
    checked: dict[str, dict[int, str]] = {}
    if not isinstance(dynamic, Mapping):
        hint = "name them by input and axis: {'input_ids': {0: 'batch'}}"
        raise InputError(f"the open dimensions are {dynamic!r}", where="dynamic", hint=hint)
    for name, dims in dynamic.items():
        where = f"dynamic input {name!r}"
        if name not in tensors:
            hint = nearest(name, tensors) or f"the inputs are {', '.join(tensors) or 'none'}"
            raise InputError("the module is not called with a tensor of this name", where=where, hint=hint)
        if not isinstance(dims, Mapping):
            raise InputError(f"the dimensions are {dims!r}", where=where, hint="name them by axis: {0: 'batch'}")
        rank = tensors[name].dim()
        for axis, symbol in dims.items():
            if not isinstance(axis, int) or not -rank <= axis < rank:
                raise InputError(f"the input has {rank} dimensions, so no axis {axis!r}", where=where)
            if not _symbols(symbol):
                what = f"{symbol!r} is not a name of a dimension"
                raise InputError(what, where=where, hint="use a name, or an expression of names: past+seq")
            checked.setdefault(name, {})[axis % rank] = symbol
    return checked


def symbol_sizes(tensors: Tensors, dynamic: Dims) -> dict[str, int]:
    """Return the size of each symbol; raises InputError if one has none (only expressions) or two."""
    sizes: dict[str, int] = {}
    places = [(name, axis, symbol) for name, dims in dynamic.items() for axis, symbol in dims.items()]
    for name, axis, symbol in places:
        if symbol.isidentifier():
            sizes.setdefault(symbol, tensors[name].shape[axis])
    for name, axis, symbol in places:
        where = f"dynamic input {name!r}, axis {axis}"
        if missing := _symbols(symbol) - sizes.keys():
            what = f"no dimension is {min(missing)!r} alone, so its size is unknown"
            raise InputError(what, where=where, hint="give that name to a dimension of an input")
        if (size := _evaluated(symbol, sizes)) != tensors[name].shape[axis]:
            raise InputError(f"the size is {tensors[name].shape[axis]}, but {symbol} is {size}", where=where)
    return sizes


def distinct_sizes(sizes: Mapping[str, int], taken: Sequence[int] = ()) -> dict[str, int]:
    """Return sizes by symbol near the given ones, at least 2, all different and none of them ``taken``.

    Exporters specialize a size of 1 as broadcast, and may unify equal sizes.
    """
    used = set(taken)
    chosen: dict[str, int] = {}
    for symbol, size in sorted(sizes.items(), key=lambda item: item[1] < 2):  # sizes that can stay come first
        # downwards first: a model may have a maximum size
        candidates = itertools.chain(range(size, 1, -1), itertools.count(max(size + 1, 2)))
        chosen[symbol] = next(candidate for candidate in candidates if candidate not in used)
        used.add(chosen[symbol])
    return {symbol: chosen[symbol] for symbol in sizes}


def resized(tensors: Tensors, dynamic: Dims, sizes: Mapping[str, int]) -> dict[str, torch.Tensor]:
    """Return the tensors in other sizes: truncated, or repeated from the start."""
    changed = {}
    for name, tensor in tensors.items():
        for axis, symbol in dynamic.get(name, {}).items():
            size, have = _evaluated(symbol, sizes), tensor.shape[axis]
            if size == have:
                continue
            if not have:  # such as an empty cache
                tensor = tensor.new_zeros([size if place == axis else old for place, old in enumerate(tensor.shape)])
            else:
                tensor = tensor.index_select(axis, torch.arange(size) % have)
        changed[name] = tensor
    return changed


def other_values(model: ir.Model, tensors: Tensors, how: Literal["roles", "shuffled"]) -> dict[str, torch.Tensor]:
    """Return other values in the same shapes, deterministically.

    If ``how`` is ``roles``, an input's role in the graph decides (token ids stay below the number of embeddings, masks
    are ones, then zeros); inputs without a role, or all if it is ``shuffled``, get the given values in another order.
    """
    wanted, sizes = samplers.with_shapes(
        samplers.specs(model), {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    )
    known = [spec for spec in wanted if not isinstance(spec.role, Data)]
    drawn = samplers.generate(known, seed=1, dims=sizes)[0] if how == "roles" and known else {}
    generator = np.random.default_rng(1)
    others = {}
    for name, tensor in tensors.items():
        value = drawn.get(name)
        array = value if isinstance(value, np.ndarray) else _shuffled(to_array(tensor), generator)
        others[name] = to_tensor(array)
    return others


def negated(tensor: torch.Tensor) -> torch.Tensor:
    """Negate floats, invert booleans, and leave integers, which may be indices."""
    if tensor.dtype is torch.bool:
        return ~tensor
    return -tensor if tensor.is_floating_point() and tensor.dtype.itemsize > 1 else tensor


def _shuffled(array: Array, generator: np.random.Generator) -> Array:
    """Permute floats, or draw normal ones if all are equal; permute others along the last axis."""
    floats = "float" in array.dtype.name
    if floats and array.size and (array == array.flat[0]).all():
        return np.asarray(generator.standard_normal(array.shape)).astype(array.dtype)
    if not array.ndim:
        return array
    lines = array.reshape(-1) if floats else array
    mixed = generator.permutation(lines, axis=-1)
    return (np.roll(lines, 1, axis=-1) if np.array_equal(mixed, lines) else mixed).reshape(array.shape)


def _evaluated(symbol: str, sizes: Mapping[str, int]) -> int:
    size = ir.SymbolicDim(symbol).evaluate(sizes)
    if not isinstance(size, int) or size < 0:
        listed = ", ".join(f"{name}={value}" for name, value in sizes.items())
        raise InputError(f"{symbol} is not a size if {listed}", where="a dynamic dimension")
    return size


def _symbols(text: object) -> frozenset[str]:
    try:
        return ir.SymbolicDim(text).free_symbols() if isinstance(text, str) else frozenset()
    except ValueError:
        return frozenset()
