"""What the custom operators of AMD Quark compute, in numpy: the reference where its library is not installed.

Written from the definitions of the formats, with `numpy.frexp` instead of comparisons, so that it shares nothing with
the decomposition, which agrees with both: with this on the numbers drawn in the tests.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]

_ELEMENTS = {  # bits of exponent, bits of mantissa, largest exponent, largest number
    "fp8_e5m2": (5, 2, 15, 57344.0),
    "fp8_e4m3": (4, 3, 8, 448.0),
    "fp6_e3m2": (3, 2, 4, 28.0),
    "fp6_e2m3": (2, 3, 2, 7.5),
    "fp4_e2m1": (2, 1, 2, 6.0),
}


def halves(x: Array, mode: int) -> Array:
    """The nearest integers; halves go away from zero (0), up (1) or to even numbers (2)."""
    if mode == 2:
        return np.rint(x)
    if mode == 1:
        return np.where(x - np.floor(x) >= 0.5, np.floor(x) + 1, np.floor(x))
    return np.sign(x) * np.where(np.abs(x) - np.floor(np.abs(x)) >= 0.5, np.floor(np.abs(x)) + 1, np.floor(np.abs(x)))


def exponent(x: Array) -> Array:
    """⌊log₂|x|⌋; −127 for zero."""
    return np.where(x == 0, -127, np.frexp(x)[1] - 1)


def blocks(x: Array, axis: int, size: int, compute: Callable[[Array], Array]) -> Array:
    """Apply ``compute`` to rows of ``size`` numbers along an axis, zeros after the last."""
    moved = np.moveaxis(x.astype(np.float64), axis, -1)
    fill = -moved.shape[-1] % size
    wide = np.pad(moved, [(0, 0)] * (moved.ndim - 1) + [(0, fill)])
    done = compute(wide.reshape(-1, size)).reshape(wide.shape)[..., : moved.shape[-1]]
    return np.moveaxis(done, -1, axis).astype(np.float32)


def bfp(x: Array, *, axis: int, bits: int, size: int, mode: int, widen: bool = False) -> Array:
    """BFPQuantizeDequantize with the method to_bfp."""

    def compute(rows: Array) -> Array:
        shared = exponent(np.abs(rows).max(axis=1, keepdims=True))
        unit = 2.0 ** (shared - (bits - 10))
        if widen:
            scaled = halves(rows / unit, mode)
            over = ((scaled >= 128) | (scaled < -128)).any(axis=1, keepdims=True)
            unit = np.where(over, unit * 2, unit)
            return halves(rows / unit, mode) * unit
        most = 2.0 ** (shared + 1) - unit
        return np.clip(halves(rows / unit, mode) * unit, -most, most)

    return blocks(x, axis, size, compute)


def bfp_prime(x: Array, *, axis: int, bits: int, size: int, mode: int, part: int, shift: int) -> Array:
    """BFPQuantizeDequantize with the method to_bfp_prime."""

    def compute(rows: Array) -> Array:
        shared = exponent(np.abs(rows).max(axis=1, keepdims=True))[..., None]
        parts = rows.reshape(len(rows), -1, part)
        own = exponent(np.abs(parts).max(axis=2, keepdims=True))
        unit = 2.0 ** (shared - np.minimum(shared - own, 2**shift - 1) + 1 - (bits - 9))
        most = 2 ** (bits - 9) - 1
        return (np.clip(halves(parts / unit, mode), -most, most) * unit).reshape(rows.shape)

    return blocks(x, axis, size, compute)


def mx(x: Array, *, axis: int, element: str, size: int, mode: int) -> Array:
    """MXQuantizeDequantize."""

    def compute(rows: Array) -> Array:
        shared = exponent(np.abs(rows).max(axis=1, keepdims=True))
        if element == "int8":
            scale = 2.0**shared
            return np.clip(halves(rows / scale * 64, mode), -128, 127) / 64 * scale
        exponents, mantissa, high, largest = _ELEMENTS[element]
        scale = 2.0 ** (shared - high)
        scaled = rows / scale
        unit = 2.0 ** (np.maximum(exponent(scaled), 2 - 2 ** (exponents - 1)) - mantissa)
        return np.clip(np.rint(scaled / unit) * unit, -largest, largest) * scale

    return blocks(x, axis, size, compute)


def extended(x: Array, scale: Array, dtype: str) -> Array:
    """ExtendedQuantizeLinear and ExtendedDequantizeLinear without zero points; ``scale`` broadcasts with x."""
    if dtype == "float16":
        return np.clip(x, -65504, 65504).astype(np.float16).astype(np.float32)
    if dtype == "bfloat16":
        return (x / scale).astype(ml_dtypes.bfloat16).astype(np.float32) * scale
    info = np.iinfo(dtype)
    integers = np.clip(np.rint(x / scale).astype(np.float64), info.min, info.max)
    return np.asarray(integers.astype(np.float32) * scale)
