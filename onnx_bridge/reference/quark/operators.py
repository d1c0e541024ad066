"""The custom operators of AMD Quark in numpy: the reference if its library is not installed.

    BFPQuantizeDequantize     a block shares the exponent e of its largest number; each is rounded to a multiple of
                              2^(e − bits + 10) and clipped. ``to_bfp_prime``: parts of a block may be finer by powers
                              of two.
    MXQuantizeDequantize      a block shares a power of two; each number is rounded to an element of the OCP's formats.
    ExtendedQuantizeLinear    saturate(round(x / s) + z) for integers; (x / s + z) rounded to bfloat16; and x, clipped,
                              rounded to float16, without scales.
    ExtendedDequantizeLinear  (q − z)·s; for float16 q.

Written from the definitions of the formats, with `numpy.frexp` instead of comparisons, so that it is independent of the
decomposition that `passes.quantization.to_qdq.decompose_quark` makes. Both agree, and agree with Quark's kernels,
bit for bit.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import ml_dtypes
import numpy as np
import onnx_ir as ir

from onnx_bridge.core.errors import InputError
from onnx_bridge.reference.quark.build import INSTALL, NEEDS

Array = np.ndarray[Any, np.dtype[Any]]

_ELEMENTS = {  # bits of exponent, bits of mantissa, largest exponent, largest number
    "fp8_e5m2": (5, 2, 15, 57344.0),
    "fp8_e4m3": (4, 3, 8, 448.0),
    "fp6_e3m2": (3, 2, 4, 28.0),
    "fp6_e2m3": (2, 3, 2, 7.5),
    "fp4_e2m1": (2, 1, 2, 6.0),
}
_BFLOAT16, _FLOAT16 = np.dtype(ml_dtypes.bfloat16), np.dtype(np.float16)


def compute(node: ir.Node, inputs: Sequence[Array]) -> Array:
    """Return the output of a node of one of Quark's domains; raises InputError for an operator that is not above."""
    name, x = node.op_type, inputs[0]
    if name in ("ExtendedQuantizeLinear", "VitisQuantizeLinear"):
        return quantize(x, *_broadcast_parameters(node, x, inputs))
    if name in ("ExtendedDequantizeLinear", "VitisDequantizeLinear"):
        return dequantize(x, *_broadcast_parameters(node, x, inputs))
    block = name in ("BFPQuantizeDequantize", "BFPFixNeuron")
    if not block and name not in ("MXQuantizeDequantize", "MXFixNeuron"):
        what = f"ONNX Runtime needs AMD Quark's library for {name}, which is not here, and there is no emulation"
        raise InputError(what, where=f"{name} {node.name}", hint=f"{INSTALL}; {NEEDS}")
    if x.size == 1:
        return x
    finite = np.where(np.isfinite(x), x, 0).astype(np.float32)
    axis = node.attributes.get_int("axis", 1) if x.ndim > 1 else 0
    size, mode = node.attributes.get_int("block_size", 8 if block else 32), node.attributes.get_int("rounding_mode", 0)
    if not block:
        rounded = mx(
            finite, axis=axis, element=node.attributes.get_string("element_dtype", "int8"), size=size, mode=mode
        )
    else:
        rounded = _bfp(node, finite, axis, size, mode)
    return np.where(np.isfinite(x), rounded, x).astype(x.dtype)


def _bfp(node: ir.Node, x: Array, axis: int, size: int, mode: int) -> Array:
    integer = node.attributes.get_int
    if integer("convert_to_bfloat_before_bfp", 0):
        x = x.astype(_BFLOAT16).astype(np.float32)
    bits = integer("bit_width", 16)
    if node.attributes.get_string("bfp_method", "to_bfp") == "to_bfp":
        widen = bool(integer("use_compiler_version_cpu_kernel", 0))
        return bfp(x, axis=axis, bits=bits, size=size, mode=mode, widen=widen)
    part, shift = integer("sub_block_size", 2), integer("sub_block_shift_bits", 1)
    return bfp_prime(x, axis=axis, bits=bits, size=size, mode=mode, part=part, shift=shift)


def _broadcast_parameters(node: ir.Node, x: Array, inputs: Sequence[Array]) -> tuple[Array, Array]:
    """Return scale and zero point in a shape that broadcasts with ``x``."""
    scale, zero = inputs[1:3]
    if scale.size == 1:
        return scale.reshape(()), zero.reshape(())
    shape = [1] * x.ndim
    shape[node.attributes.get_int("axis", 0)] = -1
    return scale.reshape(shape), zero.reshape(shape)


def quantize(x: Array, scale: Array, zero: Array) -> Array:
    """Compute ExtendedQuantizeLinear; the dtype is that of the zero point."""
    if zero.dtype == _FLOAT16:
        return np.asarray(np.clip(x, -65504, 65504).astype(_FLOAT16))
    scaled = x / scale.astype(x.dtype)
    if zero.dtype == _BFLOAT16:
        return np.asarray((scaled + zero.astype(x.dtype)).astype(_BFLOAT16))
    info = np.iinfo(zero.dtype)
    integers = np.clip(np.rint(scaled).astype(np.float64) + zero.astype(np.float64), info.min, info.max)
    return np.asarray(integers.astype(zero.dtype))


def dequantize(q: Array, scale: Array, zero: Array) -> Array:
    """Compute ExtendedDequantizeLinear."""
    if zero.dtype == _FLOAT16:
        return q.astype(np.float32)
    if zero.dtype == _BFLOAT16:
        return (q.astype(np.float32) - zero.astype(np.float32)) * scale.astype(np.float32)
    return (q.astype(np.int64) - zero.astype(np.int64)).astype(np.float32) * scale.astype(np.float32)


def round_ties(x: Array, mode: int) -> Array:
    """Return the nearest integers; ties round away from zero (mode 0), up (1) or to even (2)."""
    if mode == 2:
        return np.rint(x)
    if mode == 1:
        return np.where(x - np.floor(x) >= 0.5, np.floor(x) + 1, np.floor(x))
    return np.sign(x) * np.where(np.abs(x) - np.floor(np.abs(x)) >= 0.5, np.floor(np.abs(x)) + 1, np.floor(np.abs(x)))


def exponent(x: Array) -> Array:
    """Return ⌊log₂|x|⌋; −127 for zero."""
    return np.where(x == 0, -127, np.frexp(x)[1] - 1)


def by_blocks(x: Array, axis: int, size: int, compute: Callable[[Array], Array]) -> Array:
    """Apply ``compute`` to blocks of ``size`` numbers along an axis, the last one padded with zeros."""
    moved = np.moveaxis(x.astype(np.float64), axis, -1)
    fill = -moved.shape[-1] % size
    wide = np.pad(moved, [(0, 0)] * (moved.ndim - 1) + [(0, fill)])
    done = compute(wide.reshape(-1, size)).reshape(wide.shape)[..., : moved.shape[-1]]
    return np.moveaxis(done, -1, axis).astype(np.float32)


def bfp(x: Array, *, axis: int, bits: int, size: int, mode: int, widen: bool = False) -> Array:
    """Compute BFPQuantizeDequantize with ``bfp_method`` to_bfp."""

    def compute(rows: Array) -> Array:
        shared = exponent(np.abs(rows).max(axis=1, keepdims=True))
        unit = 2.0 ** (shared - (bits - 10))
        if widen:
            scaled = round_ties(rows / unit, mode)
            over = ((scaled >= 128) | (scaled < -128)).any(axis=1, keepdims=True)
            unit = np.where(over, unit * 2, unit)
            return round_ties(rows / unit, mode) * unit
        most = 2.0 ** (shared + 1) - unit
        return np.clip(round_ties(rows / unit, mode) * unit, -most, most)

    return by_blocks(x, axis, size, compute)


def bfp_prime(x: Array, *, axis: int, bits: int, size: int, mode: int, part: int, shift: int) -> Array:
    """Compute BFPQuantizeDequantize with ``bfp_method`` to_bfp_prime."""

    def compute(rows: Array) -> Array:
        shared = exponent(np.abs(rows).max(axis=1, keepdims=True))[..., None]
        parts = rows.reshape(len(rows), -1, part)
        own = exponent(np.abs(parts).max(axis=2, keepdims=True))
        unit = 2.0 ** (shared - np.minimum(shared - own, 2**shift - 1) + 1 - (bits - 9))
        most = 2 ** (bits - 9) - 1
        return np.asarray((np.clip(round_ties(parts / unit, mode), -most, most) * unit).reshape(rows.shape))

    return by_blocks(x, axis, size, compute)


def mx(x: Array, *, axis: int, element: str, size: int, mode: int) -> Array:
    """Compute MXQuantizeDequantize."""

    def compute(rows: Array) -> Array:
        shared = exponent(np.abs(rows).max(axis=1, keepdims=True))
        if element == "int8":
            scale = 2.0**shared
            return np.clip(round_ties(rows / scale * 64, mode), -128, 127) / 64 * scale
        exponents, mantissa, high, largest = _ELEMENTS[element]
        scale = 2.0 ** (shared - high)
        scaled = rows / scale
        unit = 2.0 ** (np.maximum(exponent(scaled), 2 - 2 ** (exponents - 1)) - mantissa)
        return np.asarray(np.clip(np.rint(scaled / unit) * unit, -largest, largest) * scale)

    return by_blocks(x, axis, size, compute)


def extended(x: Array, scale: Array, dtype: str) -> Array:
    """Quantize and dequantize with a zero point of 0; ``scale`` broadcasts with x."""
    zero = np.zeros(scale.shape, _BFLOAT16 if dtype == "bfloat16" else dtype)
    return dequantize(quantize(x, scale, zero), scale, zero)
