"""What ONNX infers of If before opset 11."""

from __future__ import annotations

import onnx
import onnx_ir as ir
import pytest

from passes.graphs.scopes import Scope
from passes.shapes.inference import infer_node
from passes.shapes.onnx_inference import infer_shapes

OPSETS = [7, 9, 10, 11, 17]


def shapes(opset: int, inputs: str, nodes: str) -> dict[str, list[int | str] | None]:
    """The inferred shapes of all results; 0 for an unknown size."""
    model = onnx.parser.parse_model(
        f'<ir_version: 8, opset_import: ["": {opset}]> g ({inputs}) => (float[] y) {{{nodes}}}'
    )
    found = infer_shapes(model).graph
    assert [node.op_type for node in found.node] == [node.op_type for node in model.graph.node]
    tensors = {info.name: info.type.tensor_type for info in (*found.value_info, *found.output)}
    return {
        name: [dim.dim_param or dim.dim_value for dim in tensor.shape.dim] if tensor.HasField("shape") else None
        for name, tensor in tensors.items()
    }


def branches(one: str, other: str) -> str:
    return f"""If(c) <then_branch = t () => (float[] a) {{ a = {one} }},
        else_branch = e () => (float[] b) {{ b = {other} }}>"""


@pytest.mark.parametrize("opset", OPSETS)
def test_the_shape_of_one_branch_alone(opset: int) -> None:
    nodes = f"v = {branches('Reshape(x, s)', 'Neg(x)')} y = Abs(v)"
    assert shapes(opset, "float[2,3] x, int64[k] s, bool c", nodes) == {"v": None, "y": None}


@pytest.mark.parametrize("opset", OPSETS)
def test_other_sizes(opset: int) -> None:
    nodes = f"v = {branches('Neg(x)', 'Neg(z)')} y = Abs(v)"
    found = shapes(opset, "float[2,3,n] x, float[2,4,n] z, bool c", nodes)
    assert found["v"] is not None
    assert (found["v"][0], found["v"][2]) == (2, "n")
    assert found["v"][1] not in (3, 4)


@pytest.mark.parametrize("opset", OPSETS)
def test_what_agrees_goes_on(opset: int) -> None:
    """Through several Ifs, one in the branch of another."""
    inner = branches("Neg(v)", "Abs(v)").replace("(float[] a) { a", "(float[] p) { p")
    nodes = f"v = {branches('Neg(x)', 'Abs(x)')} w = Neg(v) y = {branches(inner, 'Neg(w)')}"
    assert shapes(opset, "float[2,n] x, bool c", nodes) == {"v": [2, "n"], "w": [2, "n"], "y": [2, "n"]}


@pytest.mark.parametrize("opset", [9, 17])
@pytest.mark.parametrize("loop", [False, True])
def test_of_a_node(loop: bool, opset: int) -> None:
    """The If itself, or a Loop that has it in its body."""
    body = f"""v = {branches("Reshape(x, s)", "Neg(x)")} y = Identity(v)"""
    if loop:
        body = f"y = Loop(k, c) <body = l (int64 i, bool d) => (bool d, float[] v) {{ {body.split(' y =')[0]} }}>"
    head = f'<ir_version: 8, opset_import: ["": {opset}]>'
    text = f"{head} g (float[2,3] x, int64[4] s, bool c, int64 k) => (float[] y) {{ {body} }}"
    model = ir.from_proto(onnx.parser.parse_model(text))
    infer_node(model.graph[0], Scope(model, model.graph))
    (value,) = model.graph[0].outputs
    assert value.dtype == ir.DataType.FLOAT
    assert value.shape is None
