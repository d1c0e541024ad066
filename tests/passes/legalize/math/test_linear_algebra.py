"""Determinants and inverses by elimination, compared with LAPACK; Gemm of integers."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from passes.legalize.math.linear_algebra import decompose_integer_gemm, eliminate_matrix
from tests.passes.device import Device
from tests.passes.legalize.one_node import Case, case, declare, legalized, normal, skipped


def determinant(matrix: np.ndarray) -> tuple[Case, list[np.ndarray]]:
    return case("Det", [matrix], opset=22), [np.asarray(np.linalg.det(matrix), matrix.dtype)]


def inverse(matrix: np.ndarray) -> tuple[Case, list[np.ndarray]]:
    expected = [np.linalg.inv(matrix)]
    return declare(case("Inverse", [matrix], domain="com.microsoft", opset=17), expected), expected


@pytest.mark.parametrize("shape", [(1, 1), (2, 2), (3, 3), (2, 4, 4), (2, 2, 5, 5)])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_against_lapack(shape: tuple[int, ...], dtype: type, device: Device) -> None:
    matrix = normal(*shape, dtype=dtype)
    legalized(eliminate_matrix, *determinant(matrix), device=device, rtol=1e-3, atol=1e-4)
    legalized(eliminate_matrix, *inverse(matrix), device=device, rtol=1e-3, atol=1e-4)


def test_against_onnx_runtime() -> None:
    legalized(eliminate_matrix, case("Det", [normal(2, 3, 3)], opset=11), rtol=1e-4, atol=1e-5)
    legalized(eliminate_matrix, inverse(normal(2, 3, 3))[0], rtol=1e-3, atol=1e-4)


def test_zeros_on_the_diagonal(device: Device) -> None:
    matrix = np.array([[0, 1, 0, 0], [0, 0, 2, 0], [3, 0, 0, 1], [0, 0, 0, 4]], np.float32)
    legalized(eliminate_matrix, *determinant(matrix), device=device)
    legalized(eliminate_matrix, *inverse(matrix), device=device)


def test_singular_matrices(device: Device) -> None:
    for matrix in (np.zeros((3, 3), np.float32), np.ones((4, 4), np.float32)):
        legalized(eliminate_matrix, *determinant(matrix), device=device)


def test_two_rows_need_no_elimination() -> None:
    assert "ArgMax" not in legalized(eliminate_matrix, *determinant(normal(2, 2)))


def test_skips() -> None:
    assert skipped(eliminate_matrix, case("Det", [normal(65, 65)], opset=22)) == [
        "matrices of 65 rows are too large to unroll; the limit is 64"
    ]


@pytest.mark.parametrize("dtype", [np.int32, np.int64, np.uint32])
def test_integer_gemm(dtype: type, device: Device) -> None:
    a, b, c = normal(2, 3, dtype=dtype), normal(4, 3, dtype=dtype, seed=1), normal(4, dtype=dtype, seed=2)
    for inputs, total in (([a, b, c], 0.5 * (a @ b.T) + 0.25 * c), ([a, b], 0.5 * (a @ b.T))):
        source = case("Gemm", inputs, {"alpha": 0.5, "beta": 0.25, "transB": 1}, opset=13)
        legalized(decompose_integer_gemm, source, [total.astype(dtype)], device=device)


def test_gemm_unchanged() -> None:
    assert skipped(decompose_integer_gemm, case("Gemm", [normal(2, 3), normal(3, 4)], {"alpha": 0.5})) == []
    integers = [normal(2, 3, dtype=np.int32), normal(3, 4, dtype=np.int32)]
    assert skipped(decompose_integer_gemm, case("Gemm", integers, {"alpha": 2.0})) == []


@pytest.mark.slow
@settings(max_examples=20, deadline=None)
@given(data=st.data())
def test_any_matrix(data: st.DataObject) -> None:
    size = data.draw(st.integers(1, 5))
    numbers = st.lists(st.integers(-3, 3), min_size=size * size, max_size=size * size)
    matrix = np.array(data.draw(numbers), np.float64).reshape(size, size)
    source, expected = determinant(matrix)
    legalized(eliminate_matrix, source, expected, atol=1e-9)
    if abs(expected[0]) > 0.5:
        legalized(eliminate_matrix, *inverse(matrix), atol=1e-9)
