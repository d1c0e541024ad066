"""Random values that suit the role of an input.

They are computed from the raw bits of a PCG64 generator, whose stream numpy guarantees, by integer arithmetic and exact
scaling: the same seed gives the same bytes with every version of numpy and on every machine.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np

from onnx_bridge.samples.dimensions import Dim
from onnx_bridge.samples.roles import (
    Bound,
    Choice,
    Columns,
    Constant,
    Data,
    IntegerRange,
    Lengths,
    Mask,
    Parts,
    Positions,
    Role,
    Sizes,
    Uniform,
)

Array = np.ndarray[Any, np.dtype[Any]]
Shape = tuple[int, ...]
Size = Callable[[Dim], int]

PIECE = 1 << 14
"""The numbers that are made at a time: what is computed on the way to them stays in the cache of a processor."""
_WORDS = ("amber", "brook", "cedar", "delta", "ember", "fjord", "grove", "haven")


def generate_array(role: Role, key: list[int], shape: Shape, dtype: np.dtype[Any], size: Size) -> Array:
    """Generate one array.

    Values of `Data`: floats are approximately normal with mean 0 and variance 1, within ±3.47, like normalized pixels
    and activations; integers of up to 8 bits cover their range (pixels, quantized tensors), others 0 to 7; bools are
    uniform; strings are short words.

    Args:
        role: the role of the input.
        key: the seed: integers of zero or more.
        dtype: the dtype of the array; object for strings.
        size: returns the size of a dimension that bounds a role.
    """
    bits = np.random.PCG64(np.random.SeedSequence(key))
    match role:
        case IntegerRange(low, highs):
            limits = _limits(dtype)
            high = min([_least(highs, size), *([limits[1] + 1] if limits else [])])
            values = _integers(bits, shape, low, max(high, low + 1))
        case Positions(highs):
            steps = np.arange(shape[-1] if shape else 1)
            wrap = _least(highs, size) if highs else len(steps)
            values = np.broadcast_to((steps % max(1, wrap)).reshape(shape[-1:]), shape)
        case Mask(least):
            steps = np.arange(shape[-1] if shape else 1)
            entries = shape[:1] if len(shape) > 1 else ()
            low = min(size(least), max(1, len(steps)))
            valid = _integers(bits, entries, low, max(low, len(steps)) + 1)
            valid = valid.reshape(entries + (1,) * (len(shape) - len(entries)))
            values = np.broadcast_to(steps.reshape(shape[-1:]) < valid, shape)
        case Uniform(lowest, highest):
            width = highest - lowest
            values = _made(bits, shape, dtype, lambda raw: lowest + (raw >> np.uint64(11)) * 2.0**-53 * width)
        case Constant(value, first):
            values = np.full(math.prod(shape), value)
            values[:1] = value if first is None else first
        case Choice(numbers):
            values = np.full(shape, numbers[sum(key[:2]) % len(numbers)])
        case Sizes(sizes):
            values = np.resize([size(dim) for dim in sizes] or [1], shape)
        case Parts(whole):
            count = math.prod(shape)
            values = np.full(count, size(whole) // max(count, 1))
            values[-1:] += size(whole) - values.sum()
        case Lengths(low, terms, offset):
            most = sum(map(size, terms)) + offset
            values = _integers(bits, (math.prod(shape),), min(low, most), most + 1)
            values[:1] = most
        case Columns(numbers):
            drawn = _integers(bits, shape, 0, 1 << 32)
            values = (drawn % 2).astype(np.float64)
            for column, choices in numbers.items() if shape else ():
                values[..., column : column + 1] = np.take(choices, drawn[..., column : column + 1] % len(choices))
            if dtype.kind in "fiu":
                info = np.finfo(dtype) if dtype.kind == "f" else np.iinfo(dtype)
                values = np.clip(values, float(info.min) / 2, float(info.max) / 2)
        case Data():
            values = _data(bits, shape, dtype)
    return np.require(values.reshape(shape), dtype, "W")


def _data(bits: np.random.PCG64, shape: Shape, dtype: np.dtype[Any]) -> Array:
    if dtype == np.dtype(object):
        return np.array(_WORDS, dtype=object)[_integers(bits, shape, 0, len(_WORDS)).reshape(-1)]
    if dtype == np.dtype(bool):
        return _integers(bits, shape, 0, 2)
    if dtype == np.dtype(ml_dtypes.float8_e8m0fnu):  # powers of two without a sign
        return 2.0 ** _integers(bits, (math.prod(shape),), -3, 4)
    if limits := _limits(dtype):
        small = limits[1] < 256
        return _integers(bits, shape, limits[0] if small else 0, limits[1] + 1 if small else 8)
    return _made(bits, shape, dtype, _normal)


def _least(highs: tuple[Bound, ...], size: Size) -> int:
    return min(size(dim) + more for dim, more in highs)


def _limits(dtype: np.dtype[Any]) -> tuple[int, int] | None:
    """Return the smallest and largest value of an integer dtype; None for other dtypes."""
    try:
        limits: Any = ml_dtypes.iinfo(dtype)  # type: ignore[no-untyped-call]
    except ValueError:
        return None
    return int(limits.min), int(limits.max)


def _made(bits: np.random.PCG64, shape: Shape, dtype: Any, numbers: Callable[[Array], Array]) -> Array:
    """Return an array of a dtype, whose elements ``numbers`` makes of random 64-bit words."""
    values = np.empty(math.prod(shape), dtype)
    for start in range(0, values.size, PIECE):
        piece = values[start : start + PIECE]
        piece[:] = numbers(bits.random_raw(piece.size))
    return values.reshape(shape)


def _integers(bits: np.random.PCG64, shape: Shape, low: int, high: int) -> Array:
    """Return integers in [low, high), int64."""
    return _made(bits, shape, np.int64, lambda raw: (raw % np.uint64(high - low)).astype(np.int64) + low)


def _normal(raw: Array) -> Array:
    """Return sums of four uniform integers, scaled to mean 0 and variance 1: nearly normal, and exact everywhere."""
    first, *others = raw.view(np.uint16).reshape(-1, 4).T  # a sum along the axis takes four times as long
    total = sum(others, first.astype(np.int64))
    return np.asarray((total - 2 * 0xFFFF) * (math.sqrt(3) / 2**16))
