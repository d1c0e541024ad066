"""The calls of AMD's libraries, carried out by numpy: products, convolutions, pooling and normalization.

Each is computed in the type that the call names, also if that is the wrong one.
"""

from __future__ import annotations

import ctypes
import itertools
from ctypes import POINTER, c_double, c_int64, c_void_p
from typing import Any

import ml_dtypes
import numpy as np

from onnx_bridge.core.errors import NotEmulated

_Array = np.ndarray[Any, np.dtype[Any]]
_TYPES: dict[int, Any] = {
    0: np.float32,
    1: np.float64,
    2: np.float16,
    3: np.int8,
    8: np.uint8,
    10: np.int32,
    12: np.uint32,
    14: ml_dtypes.bfloat16,
    28: ml_dtypes.float8_e4m3fn,
    29: ml_dtypes.float8_e5m2,
    1000: ml_dtypes.float8_e4m3fnuz,
    1001: ml_dtypes.float8_e5m2fnuz,
}
"""Types as HIP numbers them."""
_OF_MIOPEN = {0: 2, 1: 0, 2: 10, 3: 3, 5: 14, 6: 1}
"""Types as HIP numbers them, by MIOpen's numbers."""
_AXES, _IMAGE_RANK = 8, 4
_WITHOUT_PADS = 1
"""MIOpen's mode of an average over what is not padding; 0 is the maximum, 2 the average with padding."""
_ACROSS_CHANNELS = 1
"""MIOpen's mode of a normalization over channels."""


class Matrix(ctypes.Structure):
    """A batch of matrices, column by column; types as HIP numbers them."""

    _fields_ = (("data", c_void_p), ("type", c_int64), ("leading", c_int64), ("stride", c_int64))


class Product(ctypes.Structure):
    """A call of rocBLAS or hipBLASLt, as ``libraries.cpp`` describes it."""

    _fields_ = (
        *((name, c_int64) for name in ("transpose_a", "transpose_b", "m", "n", "k", "batch", "compute", "scale")),
        *(("alpha", c_void_p), ("beta", c_void_p)),
        *((name, Matrix) for name in "abcd"),
    )


class Tensor(ctypes.Structure):
    """A tensor as MIOpen describes it."""

    _fields_ = (("type", c_int64), ("rank", c_int64), ("lengths", c_int64 * _AXES), ("strides", c_int64 * _AXES))


class _How(ctypes.Structure):
    _fields_ = (
        ("rank", c_int64),
        *((name, c_int64 * _AXES) for name in ("pads", "strides", "dilations")),
        *(("groups", c_int64), ("transposed", c_int64)),
    )


class _Problem(ctypes.Structure):
    _fields_ = (("how", _How), ("tensors", Tensor * 4))


class _PoolingHow(ctypes.Structure):
    _fields_ = (
        *(("rank", c_int64), ("mode", c_int64)),
        *((name, c_int64 * _AXES) for name in ("windows", "pads", "strides")),
    )


class _NormalizationHow(ctypes.Structure):
    _fields_ = (
        *(("mode", c_int64), ("size", c_int64)),
        *((name, c_double) for name in ("alpha", "beta", "bias")),
    )


_LAYER = (
    *(("about_input", POINTER(Tensor)), ("input", c_void_p)),
    *(("about_output", POINTER(Tensor)), ("output", c_void_p)),
)


class Pooling(ctypes.Structure):
    """A call of MIOpen's pooling."""

    _fields_ = (("how", POINTER(_PoolingHow)), *_LAYER)


class Normalization(ctypes.Structure):
    """A call of MIOpen's local response normalization."""

    _fields_ = (("how", POINTER(_NormalizationHow)), *_LAYER)


class Convolution(ctypes.Structure):
    """A call of MIOpen."""

    _fields_ = (("what", POINTER(_Problem)), ("input", c_void_p), ("weights", c_void_p), ("output", c_void_p))


def multiply(product: Product) -> None:
    """Compute d = alpha · op(a) · op(b) + beta · c in the type that the product names."""
    compute = _dtype(product.compute)
    # half precision accumulates in float32, as the matrix units do
    accumulate = np.dtype(np.float32) if compute.itemsize == 2 else compute
    a = _values(product.a, product.m, product.k, product.batch, product.transpose_a)
    b = _values(product.b, product.k, product.n, product.batch, product.transpose_b)
    alpha, beta = (_scalar(address, product.scale) for address in (product.alpha, product.beta))
    with np.errstate(all="ignore"):
        result = np.matmul(a.astype(accumulate), b.astype(accumulate)) * alpha.astype(accumulate)
        if beta:
            c = _values(product.c, product.m, product.n, product.batch, 0)
            result = result + beta.astype(accumulate) * c.astype(accumulate)
        d = _view(product.d, product.m, product.n, product.batch)
        d[...] = result.astype(accumulate).astype(d.dtype)


def _scalar(address: int, type_: int) -> _Array:
    dtype = _dtype(type_)
    return np.frombuffer(ctypes.string_at(address, dtype.itemsize), dtype)


def _dtype(type_: int) -> np.dtype[Any]:
    """Return the numpy dtype of a type as HIP numbers it; raises NotEmulated."""
    if type_ not in _TYPES:
        raise NotEmulated(f"not emulated: a matrix product of HIP's type {type_}")
    dtype: np.dtype[Any] = np.dtype(_TYPES[type_])
    return dtype


def _view(matrix: Matrix, rows: int, columns: int, batch: int) -> _Array:
    """Return a batch of matrices in memory, which lie column by column."""
    dtype = _dtype(matrix.type)
    stride = matrix.stride if batch > 1 else 0
    elements = (batch - 1) * stride + (columns - 1) * matrix.leading + rows
    memory = (ctypes.c_uint8 * (elements * dtype.itemsize)).from_address(matrix.data)
    strides = (stride * dtype.itemsize, dtype.itemsize, matrix.leading * dtype.itemsize)
    return np.ndarray((batch, rows, columns), dtype, memory, strides=strides)


def _values(matrix: Matrix, rows: int, columns: int, batch: int, transposed: int) -> _Array:
    shape = (columns, rows) if transposed else (rows, columns)
    values = _view(matrix, *shape, batch)
    return values.swapaxes(1, 2) if transposed else values


def convolve(convolution: Convolution) -> None:
    """Compute a convolution, or its transpose, one place of the kernel after the other, in float32 at least."""
    problem = convolution.what.contents
    how, (_, about_x, about_w, about_y) = problem.how, problem.tensors
    x, w = (_elements(*pair) for pair in ((convolution.input, about_x), (convolution.weights, about_w)))
    y = _elements(convolution.output, about_y)
    axes, groups = range(how.rank), how.groups
    wide = np.dtype(np.int32) if x.dtype.kind in "iu" else np.result_type(x.dtype, np.float32)
    # the large side is what a kernel's places are offsets in: the input, or the output if it is transposed
    small, large = (x, y) if how.transposed else (y, x)
    sizes = [large.shape[2 + axis] + 2 * how.pads[axis] for axis in axes]
    reach = [(w.shape[2 + a] - 1) * how.dilations[a] + (small.shape[2 + a] - 1) * how.strides[a] + 1 for a in axes]
    padded = np.zeros((*large.shape[:2], *map(max, sizes, reach)), wide)
    inner: tuple[Any, ...] = (..., *(slice(how.pads[a], how.pads[a] + large.shape[2 + a]) for a in axes))
    result = np.zeros(small.shape, wide)
    grouped_w = w.astype(wide).reshape(groups, w.shape[0] // groups, *w.shape[1:])
    if not how.transposed:
        padded[inner] = large
    for place in itertools.product(*(range(w.shape[2 + axis]) for axis in axes)):
        starts = [place[axis] * how.dilations[axis] for axis in axes]
        ends = [start + (small.shape[2 + axis] - 1) * how.strides[axis] + 1 for axis, start in enumerate(starts)]
        where: tuple[Any, ...] = (..., *map(slice, starts, ends, how.strides))
        at: tuple[Any, ...] = (..., *place)
        factor = grouped_w[at]
        if how.transposed:
            part = factor.swapaxes(1, 2) @ _grouped(x.astype(wide), groups)
            padded[where] += part.reshape(x.shape[0], -1, *x.shape[2:])
        else:
            result += (factor @ _grouped(padded[where], groups)).reshape(result.shape)
    y[...] = (padded[inner] if how.transposed else result).astype(y.dtype)


def pool(pooling: Pooling) -> None:
    """Compute a maximum or an average over windows, one place of the window after the other, in float32 at least.

    MIOpen's maximum ignores NaN.
    """
    how, about = pooling.how.contents, pooling.about_output.contents
    x, y = _elements(pooling.input, pooling.about_input.contents), _elements(pooling.output, about)
    axes, largest = range(how.rank), how.mode == 0
    wide = np.result_type(x.dtype, np.float32)
    reach = [how.windows[a] + (y.shape[2 + a] - 1) * how.strides[a] for a in axes]
    sizes = [max(reach[a], x.shape[2 + a] + 2 * how.pads[a]) for a in axes]
    inner: tuple[Any, ...] = (..., *(slice(how.pads[a], how.pads[a] + x.shape[2 + a]) for a in axes))
    padded = np.full((*x.shape[:2], *sizes), -np.inf if largest else 0, wide)
    padded[inner] = x
    real = np.zeros(sizes, wide)
    real[inner] = 1
    result = np.full(y.shape, -np.inf if largest else 0, wide)
    count = np.zeros(y.shape[2:], wide)
    for place in itertools.product(*(range(how.windows[axis]) for axis in axes)):
        ends = [start + (y.shape[2 + axis] - 1) * how.strides[axis] + 1 for axis, start in enumerate(place)]
        where: tuple[Any, ...] = (..., *map(slice, place, ends, how.strides))
        result = np.fmax(result, padded[where]) if largest else result + padded[where]
        count += real[where] if how.mode == _WITHOUT_PADS else 1
    y[...] = (result if largest else result / count).astype(y.dtype)


def normalize(normalization: Normalization) -> None:
    """Compute a local response normalization over channels, in float32 at least.

    Raises:
        NotEmulated: it is within channels, or not of images.
    """
    how, about = normalization.how.contents, normalization.about_output.contents
    if how.mode != _ACROSS_CHANNELS or about.rank != _IMAGE_RANK:
        raise NotEmulated(f"not emulated: miopenLRNForward over {about.rank} axes, mode {how.mode}")
    x = _elements(normalization.input, normalization.about_input.contents)
    before, channels = (how.size - 1) // 2, x.shape[1]
    squares = np.square(x, dtype=np.result_type(x.dtype, np.float32))
    padded = np.pad(squares, ((0, 0), (before, how.size - 1 - before), (0, 0), (0, 0)))
    sums = sum(padded[:, first : first + channels] for first in range(how.size))
    result = x / (how.bias + how.alpha / how.size * sums) ** how.beta
    y = _elements(normalization.output, about)
    y[...] = result.astype(y.dtype)


def _grouped(array: _Array, groups: int) -> _Array:
    """Return an image as a matrix for each group: channels by places."""
    return array.reshape(array.shape[0], groups, array.shape[1] // groups, -1)


def _elements(address: int, about: Tensor) -> _Array:
    """Return a tensor in memory; raises NotEmulated for other types."""
    dtype = _dtype(_OF_MIOPEN.get(about.type, -about.type))
    shape, strides = about.lengths[: about.rank], about.strides[: about.rank]
    size = sum((length - 1) * stride for length, stride in zip(shape, strides, strict=True)) + 1
    memory = (ctypes.c_uint8 * (size * dtype.itemsize)).from_address(address)
    return np.ndarray(shape, dtype, memory, strides=[stride * dtype.itemsize for stride in strides])
