"""A small network in float, and data for it: a convolution with a shortcut, and a matrix product with a constant."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

from onnx_bridge.core.values import Array

GRAPH = """<ir_version: 8, opset_import: ["": 17]> g (float[N,3,8,8] x) => (float[N,32] y) {
    first = Conv <pads = [1, 1, 1, 1]> (x, w1, b1) normal = BatchNormalization (first, gamma, beta, mean, variance)
    a = Relu (normal) second = Conv <pads = [1, 1, 1, 1]> (a, w2) s = Add (second, a) b = Relu (s)
    p = GlobalAveragePool (b) f = Flatten (p) h = MatMul (f, m1) r = Relu (h) y = MatMul (r, m2)
}"""


def network() -> onnx.ModelProto:
    random = np.random.default_rng(0)
    shapes = {"w1": (8, 3, 3, 3), "b1": (8,), "w2": (8, 8, 3, 3), "m1": (8, 64), "m2": (64, 32)}
    arrays = {name: random.standard_normal(shape) / np.sqrt(np.prod(shape[1:])) for name, shape in shapes.items()}
    arrays |= {"gamma": np.full(8, 1.5), "beta": np.zeros(8), "mean": np.full(8, 0.1), "variance": np.ones(8)}
    model = onnx.parser.parse_model(GRAPH)
    for name, array in arrays.items():
        model.graph.initializer.append(onnx.numpy_helper.from_array(array.astype(np.float32), name))
    for node in model.graph.node:
        node.name = node.output[0]
    return model


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The network in a file."""
    path = tmp_path_factory.mktemp("float") / "network.onnx"
    onnx.save(network(), path)
    return path


@pytest.fixture(scope="session")
def data() -> list[dict[str, Array]]:
    """Eight samples of two images each."""
    random = np.random.default_rng(1)
    return [{"x": random.standard_normal((2, 3, 8, 8)).astype(np.float32)} for _ in range(8)]
