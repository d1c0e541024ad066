"""Values of shapes do not pass Casts to types that do not hold them."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from passes.shapes.onnx_inference import infer_shapes
from tests.passes.harness import run

FUNCTION = """<domain: "local", opset_import: ["": 17]> f<to: int = {to}>(a) => (b) {{
    n = Cast<to: int = @to>(a) b = Cast<to = 7>(n) }}"""


def parsed(to: int, *, by_function: bool = False) -> onnx.ModelProto:
    """A tensor with as many elements as an axis of the input has, after a Cast to a type and back."""
    nodes = f"w = local.f<to = {to}>(s)" if by_function else f"n = Cast<to = {to}>(s) w = Cast<to = 7>(n)"
    return onnx.parser.parse_model(
        f"""<ir_version: 8, opset_import: ["": 17, "local": 1]> g (float[2,300] x) => (float[m] y)
        <int64[1] one = {{1}}> {{ s = Shape(x) {nodes} k = Gather(w, one) y = ConstantOfShape(k) }}
        {FUNCTION.format(to=to)}"""
    )


def size(model: onnx.ModelProto) -> int:
    found = infer_shapes(model, data_prop=True)
    assert found.graph.node == model.graph.node
    assert found.functions == model.functions
    (dim,) = found.graph.output[0].type.tensor_type.shape.dim
    return int(dim.dim_value)


@pytest.mark.parametrize("by_function", [False, True])
@pytest.mark.parametrize("to", ["UINT8", "INT8", "BOOL", "FLOAT16"])
def test_types_that_do_not_hold_all_numbers(to: str, by_function: bool) -> None:
    model = parsed(getattr(onnx.TensorProto, to), by_function=by_function)
    (result,) = run(model, {"x": np.zeros((2, 300), np.float32)}).values()
    assert size(model) in (0, result.size)


@pytest.mark.parametrize("to", ["INT32", "INT64"])
def test_types_that_do(to: str) -> None:
    assert size(parsed(getattr(onnx.TensorProto, to))) == 300
