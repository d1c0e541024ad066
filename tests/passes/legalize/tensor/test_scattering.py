"""scatter-tensor, drop-empty-scatter and widen-scatter-reduction."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from passes.legalize.tensor.scattering import drop_empty_scatter, scatter_tensor, widen_scatter_reduction
from passes.rewriting.base import Context
from tests.passes.device import Device
from tests.passes.harness import operators
from tests.passes.legalize.indexing import DTYPES, SOME, declared, left, legal, numbers


@pytest.mark.parametrize("dtype", SOME)
def test_write_positions(device: Device, dtype: str) -> None:
    past, update = numbers((2, 4, 3), dtype), numbers((2, 2, 3), dtype, seed=1)
    inputs = {"p": past, "u": update, "w": np.array([2, 0])}
    result = legal(scatter_tensor, device, "y = TensorScatter(p, u, w)", inputs, declared("y", past), opset=24)
    assert operators(result.model)[-1] == "ScatterElements"


def test_writes_begin_at_the_start_by_default(device: Device) -> None:
    past, update = numbers((2, 3, 4)), numbers((2, 3, 2), seed=1)
    nodes = "y = TensorScatter<axis = 2>(p, u)"
    legal(scatter_tensor, device, nodes, {"p": past, "u": update}, declared("y", past), opset=24)


def test_open_dimensions() -> None:
    text = "(float[b,4,3] p, float[b,2,3] u) => (float[b,4,3] y) { y = TensorScatter(p, u) }"
    (reason,) = left(scatter_tensor, text, opset=24)
    assert "freeze the dimensions" in reason


@pytest.mark.parametrize("operator", ["ScatterElements", "ScatterND"])
def test_no_updates(device: Device, operator: str) -> None:
    x = numbers((3, 4))
    constants = {"i": np.zeros((0, 4), np.int64), "u": np.zeros((0, 4), np.float32)}
    if operator == "ScatterND":
        constants["i"] = np.zeros((0, 1), np.int64)
    result = legal(drop_empty_scatter, device, f"y = {operator}(x, i, u)", {"x": x}, "float[3,4] y", **constants)
    assert operators(result.model) == ["Identity"]


def test_something_to_write() -> None:
    text = "(float[3,4] x, float[1,4] u) => (float[3,4] y) { y = ScatterND(x, i, u) }"
    assert left(drop_empty_scatter, text, i=np.array([[1]])) == []


def test_half_precision_is_added_in_float32() -> None:
    text = '(float16[3] x, float16[2] u) => (float16[3] y) { y = ScatterElements<axis=0, reduction="add"> (x, i, u) }'
    source = onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["": 18]> g {text}')
    source.graph.initializer.append(onnx.numpy_helper.from_array(np.array([1, 1]), "i"))
    model = ir.from_proto(source)
    widen_scatter_reduction.run(model, Context())
    assert operators(model) == ["Cast", "Cast", "ScatterElements", "Cast"]
    session = onnxruntime.InferenceSession(ir.to_proto(model).SerializeToString())
    x, u = np.array([1, 2, 3], np.float16), np.array([2048, 1], np.float16)
    assert session.run(None, {"x": x, "u": u})[0].tolist() == [1, 2052, 3]  # 2051 in float32


@settings(max_examples=25, deadline=None)
@given(st.data())
def test_any_cache(device: Device, data: st.DataObject) -> None:
    shape = tuple(data.draw(st.lists(st.integers(1, 4), min_size=2, max_size=4)))
    axis = data.draw(st.integers(1, len(shape) - 1))
    size = data.draw(st.integers(1, shape[axis]))
    mode = data.draw(st.sampled_from(["linear", "circular"]))
    last = shape[axis] - size if mode == "linear" else shape[axis] - 1
    begin = np.array([data.draw(st.integers(0, last)) for _ in range(shape[0])])
    dtype = data.draw(st.sampled_from(DTYPES))
    past, update = numbers(shape, dtype), numbers((*shape[:axis], size, *shape[axis + 1 :]), dtype, seed=1)
    written = axis - len(shape) * data.draw(st.booleans())
    nodes = f'y = TensorScatter<axis = {written}, mode = "{mode}">(p, u, w)'
    inputs, constants = {"p": past, "u": update, "w": begin}, {}
    if data.draw(st.booleans()):
        constants["w"] = inputs.pop("w")
    legal(scatter_tensor, device, nodes, inputs, declared("y", past), opset=24, **constants)
