"""Sizes that a model leaves open, as old Paddle exports write them: -1, ``?``, or nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest

import onnx_bridge
from onnx_bridge.batch.model_info import read_model_info
from onnx_bridge.core.errors import InputError
from onnx_bridge.migraphx.runtime import Runtime
from onnx_bridge.model import io
from onnx_bridge.samples import inputs as samplers
from tests.passes.rewriting import run

RNG = np.random.default_rng(0)


def paddle(path: Path, kernel: int = 3) -> onnx.ModelProto:
    """A convolution of images, and a copy of their sizes, with the dimensions that old Paddle exports have."""

    def typed(name: str, shape: list[Any]) -> onnx.ValueInfoProto:
        return onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, shape)

    weight = onnx.numpy_helper.from_array(RNG.standard_normal((4, 3, kernel, kernel), np.float32), "w")
    nodes = [
        onnx.helper.make_node("Conv", ["image", "w"], ["c"], pads=[1, 1, 1, 1]),
        onnx.helper.make_node("Relu", ["c"], ["y"]),
        onnx.helper.make_node("Neg", ["size"], ["z"]),
    ]
    inputs = [typed("image", [-1, 3, "?", "?"]), typed("size", ["?", 2])]
    outputs = [typed("y", [-1, 4, "?", -1]), typed("z", ["?", "?"])]
    graph = onnx.helper.make_graph(nodes, "g", inputs, outputs, [weight])
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 11)], ir_version=7)
    onnx.save(model, path)
    return model


def test_each_is_a_size_of_its_own(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    paddle(path)
    assert [each.shape for each in samplers.specs(io.load(path))] == [(None, 3, None, None), (None, 2)]
    sample = {"image": np.zeros((2, 3, 4, 5), np.float32), "size": np.zeros((7, 2), np.float32)}
    samplers.validate(sample, io.load(path))
    assert read_model_info(path).symbols == ()


@pytest.mark.parametrize("in_memory", [False, True])
def test_conversion(runtime: Runtime, tmp_path: Path, in_memory: bool) -> None:
    path = tmp_path / "m.onnx"
    proto = paddle(path)
    source = ir.from_proto(proto) if in_memory else path
    shapes = {"image": [2, 3, 5, 8], "size": [7, 2]}
    bundle = onnx_bridge.convert(source, tmp_path / "out", shapes=shapes)
    assert bundle.wholly_on_migraphx
    assert [each.shape for each in bundle.outputs] == [(2, 4, 5, 8), (7, 2)]
    sample = {name: RNG.standard_normal(shape, np.float32) for name, shape in shapes.items()}
    expected, actual = run(proto, sample), bundle(sample)
    for name, array in expected.items():
        np.testing.assert_allclose(actual[name], array, rtol=1e-4, atol=1e-5)


def test_without_sizes_everything_still_runs(runtime: Runtime, tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    paddle(path)
    bundle = onnx_bridge.convert(path, tmp_path / "out")
    assert bundle.wholly_on_migraphx
    assert [each.shape for each in bundle.inputs] == [(1, 3, 1, 1), (1, 2)]
    (note,) = [each for each in bundle.manifest.notes if "open dimensions" in each]
    assert all(name in note for name in ("image[0]", "image[2]", "image[3]", "size[0]"))


@pytest.mark.parametrize("verb", ["convert", "doctor"])
def test_inputs_that_are_too_small(runtime: Runtime, tmp_path: Path, verb: str) -> None:
    """A kernel of 7 does not fit into an image of 1: the error names every size that is open."""
    path = tmp_path / "m.onnx"
    paddle(path, kernel=7)
    with pytest.raises(InputError) as error:
        getattr(onnx_bridge, verb)(path, tmp_path / "out")
    assert all(name in error.value.what for name in ("image[0]", "image[2]", "image[3]", "size[0]"))
