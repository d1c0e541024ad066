"""Matrix products and convolutions that the host computes instead of AMD's libraries."""

from __future__ import annotations

import itertools
from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
import onnxruntime
import pytest

from onnx_bridge.core.errors import NotEmulated
from onnx_bridge.migraphx.architectures import ARCHITECTURES
from onnx_bridge.migraphx.gpu.compiler import gpu_compiler
from onnx_bridge.migraphx.gpu.host_libraries import Matrix, Product, multiply
from onnx_bridge.migraphx.program import Tensor
from onnx_bridge.migraphx.runtime import find

HIP_TYPES = {"float32": 0, "float64": 1, "float16": 2, "int8": 3, "int32": 10, "bfloat16": 14}
HIP_TYPES |= {"float8_e4m3fn": 28, "float8_e5m2": 29, "float8_e4m3fnuz": 1000, "float8_e5m2fnuz": 1001}


def product(a: np.ndarray, b: np.ndarray, d: np.ndarray, compute: str, scale: np.ndarray, **changed: int) -> Product:
    """A batch of products of matrices column by column: each array is batch × columns × rows."""

    def matrix(array: np.ndarray) -> Matrix:
        _, columns, rows = array.shape
        return Matrix(array.ctypes.data, HIP_TYPES[array.dtype.name], rows, columns * rows)

    transpose_a, transpose_b = changed.get("transpose_a", 0), changed.get("transpose_b", 0)
    batch, n, m = d.shape
    k = a.shape[2 if transpose_a else 1]
    types = HIP_TYPES[compute], HIP_TYPES[scale.dtype.name]
    addresses = (scale.ctypes.data, scale.ctypes.data + scale.itemsize)
    return Product(transpose_a, transpose_b, m, n, k, batch, *types, *addresses, *map(matrix, (a, b, d, d)))


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


@pytest.mark.parametrize("dtype", [name for name in HIP_TYPES if name.startswith("float8")])
def test_products_of_float8_are_summed_in_float32(dtype: str) -> None:
    rng, kind = np.random.default_rng(0), np.dtype(getattr(ml_dtypes, dtype))
    a, b = rng.normal(size=(1, 4, 3)).astype(kind), rng.normal(size=(1, 5, 4)).astype(kind)
    d = np.zeros((1, 5, 3), np.float32)
    multiply(product(a, b, d, "float32", np.array([1, 0], np.float32)))
    assert np.allclose(d, b.astype(np.float32) @ a.astype(np.float32), rtol=1e-6)


def test_unknown_types_are_not_emulated() -> None:
    a = np.zeros((1, 2, 2), np.float32)
    wrong = product(a, a, a, "float32", np.array([1, 0], np.float32))
    wrong.a.type = 99
    with pytest.raises(NotEmulated, match="99"):
        multiply(wrong)


CONVOLUTIONS = {
    "grouped, strided": ("x float[2,4,9], w float[6,2,3]", "Conv <group=2, strides=[2], pads=[1,1]> (x, w)"),
    "dilated": ("x float[1,2,9,8], w float[2,2,3,3]", "Conv <dilations=[2,1], pads=[1,1,1,1]> (x, w)"),
    "three axes": ("x float[1,2,4,5,6], w float[3,2,2,2,2]", "Conv (x, w)"),
    "half precision": ("x float16[2,4,5,5], w float16[4,4,3,3]", "Conv (x, w)"),
    "transposed": (
        "x float[1,4,5,5], w float[4,2,3,3]",
        "ConvTranspose <group=2, strides=[2,2]> (x, w)",
    ),
    "maximum": ("x float[2,4,9,8]", "MaxPool <kernel_shape=[3,3], strides=[2,2], pads=[1,1,1,1]> (x)"),
    "average": ("x float[1,4,9,8]", "AveragePool <kernel_shape=[3,3], pads=[1,1,1,1]> (x)"),
    "normalized": ("x float[2,5,3,4]", "LRN <size=3, alpha=0.5, beta=0.6, bias=1.5> (x)"),
    "normalized over more than there are": ("x float16[1,3,2,2]", "LRN <size=9, alpha=2.0> (x)"),
}


@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_convolutions_and_pools(name: str, tmp_path: Path) -> None:
    """Compiled for the GPU, and computed in its program."""
    given, node = CONVOLUTIONS[name]
    inputs = ", ".join(f"{kind} {value}" for value, kind in (pair.split() for pair in given.split(", ")))
    text = f'<ir_version: 10, opset_import: ["": 21]> g ({inputs}) => (float y) {{ y = {node} }}'
    path = tmp_path / "model.onnx"
    model = onnx.parser.parse_model(text)
    model.graph.output[0].type.tensor_type.elem_type = model.graph.input[0].type.tensor_type.elem_type
    onnx.save(model, path)
    session = onnxruntime.InferenceSession(path)
    rng = np.random.default_rng(0)
    kinds = {"tensor(float)": np.float32, "tensor(float16)": np.float16}
    feed = {value.name: rng.normal(size=value.shape).astype(kinds[value.type]) for value in session.get_inputs()}
    program = gpu_compiler(find("private"), ARCHITECTURES["gfx942"]).worker().parse_onnx(path)
    program.compile("gpu")
    (output,) = program.run({name: Tensor.of(array) for name, array in feed.items()})
    assert np.allclose(output.numpy(), session.run(None, feed)[0], atol=1e-2 if "16" in given else 1e-5)
