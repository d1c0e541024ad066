"""Single nodes of models that find and read text, each of which once cut its model in two."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest

import onnx_bridge
from onnx_bridge.migraphx.runtime import Runtime

HEAD = '<ir_version: 10, opset_import: ["": 13]>'
NODES = {
    "a Resize to a part of the shape of another map": """
        g (float[1,4,6,6] x, float[1,4,12,12] like) => (float[1,4,12,12] y) {
            zero = Constant<value = int64[1] {0}>() two = Constant<value = int64[1] {2}>()
            four = Constant<value = int64[1] {4}>() none = Constant<value = float[0] {}>()
            whole = Shape(like) sides = Slice(whole, two, four, zero)
            own = Shape(x) planes = Slice(own, zero, two, zero)
            sizes = Concat<axis = 0>(planes, sides)
            r = Resize<coordinate_transformation_mode = "asymmetric", mode = "nearest", nearest_mode = "floor">(
                x, none, none, sizes)
            y = Add(r, like)
        }""",
    "a Resize to one element": """
        g (float[1,4,7,7] x) => (float[1,4,1,1] y) {
            none = Constant<value = float[0] {}>() sizes = Constant<value = int64[4] {1, 4, 1, 1}>()
            y = Resize<coordinate_transformation_mode = "half_pixel", mode = "linear">(x, none, none, sizes)
        }""",
    "an AveragePool of one element": """
        g (float[1,4,1,1] x) => (float[1,4,1,1] y) {
            y = AveragePool<kernel_shape = [2, 2], strides = [2, 2], ceil_mode = 1>(x)
        }""",
    "an AveragePool of one row, with padding": """
        g (float[1,4,1,5] x) => (float[1,4,1,5] y) {
            y = AveragePool<kernel_shape = [3, 3], pads = [1, 1, 1, 1], count_include_pad = 1>(x)
        }""",
}


@pytest.mark.parametrize("name", NODES)
def test_it_runs_on_migraphx(runtime: Runtime, tmp_path: Path, name: str) -> None:
    onnx.save(onnx.parser.parse_model(HEAD + NODES[name]), tmp_path / "model.onnx")
    bundle = onnx_bridge.convert(tmp_path / "model.onnx", tmp_path / "out", target="ref", prove="always")
    assert bundle.manifest.host_reasons() == ""
