"""Tiny models that used to be converted without a word and computed wrongly, by storage or by dtype."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto as T
from onnx import helper

import onnx_bridge
from onnx_bridge.migraphx.runtime import Runtime
from onnx_bridge.reference.reference import Reference
from passes.core import graphs

Array = np.ndarray[Any, np.dtype[Any]]
FLOAT8 = ("float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz")


def network(
    nodes: list[onnx.NodeProto], inputs: Mapping[str, Array], outputs: Mapping[str, int], *weights: onnx.TensorProto
) -> onnx.ModelProto:
    """A model, whose outputs have the dtypes given."""
    given = [helper.make_tensor_value_info(name, kind(each), each.shape) for name, each in inputs.items()]
    wanted = [helper.make_tensor_value_info(name, dtype, None) for name, dtype in outputs.items()]
    graph = helper.make_graph(nodes, "g", given, wanted, list(weights))
    return helper.make_model(graph, ir_version=10, opset_imports=[helper.make_opsetid("", 21)])


def kind(array: Array) -> int:
    return int(ir.DataType.from_numpy(array.dtype))


def stored(name: str, array: Array, *, numbers: bool = False) -> onnx.TensorProto:
    """A tensor with its elements as bytes, or as numbers in ``int32_data``."""
    if numbers:
        tensor = onnx.TensorProto(name=name, dims=array.shape, data_type=kind(array))
        tensor.int32_data.extend(array.view(f"u{array.itemsize}").reshape(-1).tolist())
        return tensor
    return graphs.tensor_proto(ir.tensor(array), name)


def converted(
    model: onnx.ModelProto, inputs: Mapping[str, Array], folder: Path
) -> tuple[dict[str, Array], dict[str, Array]]:
    """What the model computes on MIGraphX, and what it should."""
    onnx.save(model, folder / "model.onnx")
    bundle = onnx_bridge.convert(folder / "model.onnx", folder / "bundle", target="ref")
    assert bundle.wholly_on_migraphx
    return dict(bundle(dict(inputs))), dict(Reference(model.SerializeToString()).run(dict(inputs)))  # type: ignore[arg-type]


@pytest.mark.parametrize("numbers", [False, True], ids=["bytes", "int32_data"])
@pytest.mark.parametrize("name", [*FLOAT8, "bfloat16"])
def test_weights_by_their_storage(runtime: Runtime, tmp_path: Path, name: str, numbers: bool) -> None:
    draw = np.random.default_rng(0)
    weights = (50 * draw.standard_normal((8, 16))).astype(np.dtype(getattr(ml_dtypes, name)))
    inputs = {"x": draw.standard_normal((4, 8)).astype(np.float32)}
    if name == "bfloat16":
        widen = helper.make_node("Cast", ["w"], ["wide"], to=T.FLOAT)
    else:
        widen = helper.make_node("DequantizeLinear", ["w", "s"], ["wide"])
    nodes = [widen, helper.make_node("MatMul", ["x", "wide"], ["y"])]
    given = [stored("w", weights, numbers=numbers), stored("s", np.array(0.5, np.float32))]
    actual, expected = converted(network(nodes, inputs, {"y": T.FLOAT}, *given), inputs, tmp_path)
    np.testing.assert_allclose(actual["y"], expected["y"], rtol=1e-5, atol=1e-4)
