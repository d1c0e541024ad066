"""Sparse initializers and constants are dense after loading; those that lie about themselves are refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from onnx_bridge.core.errors import InputError
from onnx_bridge.model.io import load
from tests.passes.harness import run

X = np.arange(6, dtype=np.float32).reshape(2, 3)
DENSE = np.array([[0, 2, 0], [0, 0, 3]], np.float32)


def sparse(values: np.ndarray, indices: object, dims: list[int] = [2, 3]) -> onnx.SparseTensorProto:  # noqa: B006
    tensors = onnx.numpy_helper.from_array(values, "w"), onnx.numpy_helper.from_array(np.asarray(indices), "i")
    return onnx.SparseTensorProto(values=tensors[0], indices=tensors[1], dims=dims)


def save(tensor: onnx.SparseTensorProto, path: Path, *, constant: bool = False) -> Path:
    head = '<ir_version: 10, opset_import: ["": 18]> g (float[2,3] x) => (float[2,3] y)'
    proto = onnx.parser.parse_model(f"{head} {{ {'w = Identity(x)' if constant else ''} y = Add(x, w) }}")
    if constant:
        node = proto.graph.node[0]
        node.op_type, node.input[:] = "Constant", []
        node.attribute.append(onnx.helper.make_attribute("sparse_value", tensor))
    else:
        proto.graph.sparse_initializer.append(tensor)
    onnx.save(proto, path)
    return path


VALUES = np.array([2, 3], np.float32)


@pytest.mark.parametrize("constant", [False, True])
@pytest.mark.parametrize("indices", [[1, 5], [[0, 1], [1, 2]]], ids=["linear", "by axis"])
def test_dense_as_in_onnx_runtime(tmp_path: Path, indices: object, constant: bool) -> None:
    path = save(sparse(VALUES, indices), tmp_path / "m.onnx", constant=constant)
    (expected,) = run(onnx.load(path), {"x": X}).values()
    (found,) = run(ir.to_proto(load(path)), {"x": X}).values()
    np.testing.assert_array_equal(found, expected)
    np.testing.assert_array_equal(found, X + DENSE)


@pytest.mark.parametrize("dtype", [np.float16, np.float64, np.int8, np.int64, np.bool_])
def test_dtypes_and_none_at_all(tmp_path: Path, dtype: type) -> None:
    for values, indices in ((np.ones(1, dtype), [2]), (np.ones(0, dtype), np.zeros(0, np.int64))):
        model = load(save(sparse(values, indices), tmp_path / "m.onnx"))
        tensor = model.graph.initializers["w"].const_value.numpy()
        assert tensor.dtype == dtype
        assert tensor.sum() == len(values)


HOSTILE = {
    "an index too large": (sparse(VALUES, [1, 6]), "outside of its shape"),
    "an index too small": (sparse(VALUES, [1, -1]), "outside of its shape"),
    "of an axis": (sparse(VALUES, [[0, 1], [2, 0]]), "outside of its shape"),
    "twice": (sparse(VALUES, [1, 1]), "two values for one element"),
    "too few": (sparse(VALUES, [1]), "indices for"),
    "of other axes": (sparse(VALUES, [[0, 1, 0], [1, 2, 0]]), "indices for"),
    "a matrix of values": (sparse(VALUES.reshape(1, 2), [[1, 5]]), "indices for"),
    "huge": (sparse(VALUES, [1, 5], [2**20, 2**20]), "more than a file"),
    "huger": (sparse(VALUES, [1, 5], [2**62, 2**62]), "more than a file"),
    "negative": (sparse(VALUES, [1, 5], [-2, -3]), "negative dimension"),
    "32 bits": (sparse(VALUES, np.array([1, 5], np.int32)), "INT64"),
    "strings": (sparse(np.array(["a", "b"], object), [1, 5]), "strings"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_ones(tmp_path: Path, name: str) -> None:
    tensor, message = HOSTILE[name]
    for constant in (False, True):
        with pytest.raises(InputError, match=message):
            load(save(tensor, tmp_path / "m.onnx", constant=constant))


def test_elements_in_another_file(tmp_path: Path) -> None:
    tensor = sparse(VALUES, [1, 5])
    (tmp_path / "w.bin").write_bytes(tensor.values.raw_data)
    onnx.external_data_helper.set_external_data(tensor.values, "w.bin")
    tensor.values.ClearField("raw_data")
    with pytest.raises(InputError, match="another file"):
        load(save(tensor, tmp_path / "m.onnx"))
