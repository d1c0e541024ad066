"""Matrix products that the host computes instead of rocBLAS and hipBLASLt."""

from __future__ import annotations

import itertools

import ml_dtypes
import numpy as np
import pytest

from onnx_bridge.core.errors import NotEmulated
from onnx_bridge.migraphx.gpu.emulation import _Matrix, _Product, multiply

HIP_TYPES = {"float32": 0, "float64": 1, "float16": 2, "int8": 3, "int32": 10, "bfloat16": 14}


def product(a: np.ndarray, b: np.ndarray, d: np.ndarray, compute: str, scale: np.ndarray, **changed: int) -> _Product:
    """A batch of products of matrices column by column: each array is batch × columns × rows."""

    def matrix(array: np.ndarray) -> _Matrix:
        _, columns, rows = array.shape
        return _Matrix(array.ctypes.data, HIP_TYPES[array.dtype.name], rows, columns * rows)

    transpose_a, transpose_b = changed.get("transpose_a", 0), changed.get("transpose_b", 0)
    batch, n, m = d.shape
    k = a.shape[2 if transpose_a else 1]
    types = HIP_TYPES[compute], HIP_TYPES[scale.dtype.name]
    addresses = (scale.ctypes.data, scale.ctypes.data + scale.itemsize)
    return _Product(transpose_a, transpose_b, m, n, k, batch, *types, *addresses, *map(matrix, (a, b, d, d)))


@pytest.mark.parametrize(("transpose_a", "transpose_b"), [*itertools.product((0, 1), repeat=2)])
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16"])
def test_products(dtype: str, transpose_a: int, transpose_b: int) -> None:
    rng, kind = np.random.default_rng(0), np.dtype(getattr(ml_dtypes, dtype, dtype))
    a, b = rng.normal(size=(2, 4, 3)).astype(kind), rng.normal(size=(2, 5, 4)).astype(kind)
    given_a = np.ascontiguousarray(a.swapaxes(1, 2)) if transpose_a else a
    given_b = np.ascontiguousarray(b.swapaxes(1, 2)) if transpose_b else b
    d = rng.normal(size=(2, 5, 3)).astype(kind)
    compute = "float64" if dtype == "float64" else "float32"
    expected = 0.5 * (b.astype(compute) @ a.astype(compute)) + 2 * d.astype(compute)
    scale = np.array([0.5, 2], compute)
    multiply(product(given_a, given_b, d, compute, scale, transpose_a=transpose_a, transpose_b=transpose_b))
    assert np.allclose(d.astype(compute), expected, rtol=2e-2 if kind.itemsize == 2 else 1e-5)


def test_integers_wrap_and_a_scale_of_the_wrong_type_shows() -> None:
    a, b = np.full((1, 2, 3), 100, np.int8), np.full((1, 5, 2), 2, np.int8)
    d = np.zeros((1, 5, 3), np.int32)
    multiply(product(a, b, d, "int32", np.array([1, 0], np.int32)))
    assert (d == 400).all()
    multiply(product(a, b, d, "int32", np.array([1, 0], np.float32).view(np.int32)))
    assert (d == np.full(1, 400, np.int32) * np.float32(1).view(np.int32)).all()


def test_unknown_types_are_not_emulated() -> None:
    a = np.zeros((1, 2, 2), np.float32)
    wrong = product(a, a, a, "float32", np.array([1, 0], np.float32))
    wrong.a.type = 28
    with pytest.raises(NotEmulated, match="28"):
        multiply(wrong)
