"""What ONNX infers of Slice in opset 10."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from passes.graphs.scopes import Scope
from passes.rewriting.pipeline import Pipeline
from passes.shapes.inference import infer_node
from passes.shapes.onnx_inference import infer_shapes
from tests.passes.harness import run

OPSETS = [10, 11, 17]
CONSTANTS = "int64[1] s = {1}, int64[1] e = {3}, int64[1] rows = {0}, int64[1] columns = {1}"


def parsed(opset: int, inputs: str, nodes: str, functions: str = "") -> onnx.ModelProto:
    head = f'<ir_version: 8, opset_import: ["": {opset}, "local": 1]> g ({inputs}) => (float[] y) <{CONSTANTS}>'
    return onnx.parser.parse_model(f"{head} {{{nodes}}} {functions}")


def shapes(model: onnx.ModelProto) -> dict[str, list[int | str]]:
    """The inferred shapes of all results; a size that is known by no name of the model is 0."""
    found = infer_shapes(model)
    assert found.graph.node == model.graph.node or any(node.op_type == "If" for node in model.graph.node)
    assert b"onnx_bridge" not in found.SerializeToString(), "no stand-in is left"
    assert found.functions == model.functions
    assert found.opset_import == model.opset_import

    def size(dim: onnx.TensorShapeProto.Dimension) -> int | str:
        return 0 if dim.dim_param.startswith("unk__") else dim.dim_param or dim.dim_value

    infos = (*found.graph.value_info, *found.graph.output)
    return {info.name: list(map(size, info.type.tensor_type.shape.dim)) for info in infos}


@pytest.mark.parametrize("opset", OPSETS)
def test_a_size_with_a_name_is_not_kept(opset: int) -> None:
    model = parsed(opset, "float[n,m] x", "v = Slice(x, s, e, rows) y = Neg(v)")
    assert shapes(model) == {"v": [0, "m"], "y": [0, "m"]}


@pytest.mark.parametrize("opset", OPSETS)
def test_known_sizes_are_computed(opset: int) -> None:
    model = parsed(opset, "float[n,7] x", "v = Slice(x, s, e, columns) y = Slice(v, s, e, columns)")
    assert shapes(model) == {"v": ["n", 2], "y": ["n", 1]}


@pytest.mark.parametrize("opset", OPSETS)
def test_bounds_that_are_computed(opset: int) -> None:
    model = parsed(opset, "float[n,7] x, int64[1] a", "v = Slice(x, a, e, columns) y = Neg(v)")
    assert shapes(model)["y"] in ([0, 0], ["n", 0])


@pytest.mark.parametrize("opset", OPSETS)
def test_in_branches_and_functions(opset: int) -> None:
    def sliced(prefix: str) -> str:
        operands = {"s": 1, "e": 3, "a": 0}
        nodes = [f"{prefix}{name} = Constant<value = int64[1] {{{each}}}>()" for name, each in operands.items()]
        return f"{' '.join(nodes)} {prefix} = Slice(x, {', '.join(prefix + name for name in operands)})"

    branches = f"""If(c) <then_branch = t () => (float[] p) {{ {sliced("p")} }},
        else_branch = o () => (float[] q) {{ {sliced("q")} }}>"""
    function = f'<domain: "local", opset_import: ["": {opset}]> f (x) => (r) {{ {sliced("r")} }}'
    assert shapes(parsed(opset, "float[n,4] x, bool c", f"v = {branches} y = Neg(v)"))["y"] == [0, 4]
    assert shapes(parsed(opset, "float[n,4] x", "v = local.f(x) y = Neg(v)", function))["y"] == [0, 4]


@pytest.mark.parametrize("opset", OPSETS)
def test_of_a_node(opset: int) -> None:
    model = ir.from_proto(parsed(opset, "float[n,7] x", "v = Slice(x, s, e, rows) y = Slice(x, s, e, columns)"))
    for node in model.graph:
        node.outputs[0].shape = None
        infer_node(node, Scope(model, model.graph))
    rows, columns = (node.outputs[0].shape for node in model.graph)
    assert (rows[0], rows[1]) == (None, 7)
    assert columns == ir.Shape(["n", 2])


@pytest.mark.parametrize("opset", OPSETS)
def test_within_a_node(opset: int) -> None:
    body = "y = Loop(k, c) <body = l (int64 i, bool d) => (bool d, float[] v) { v = Slice(x, s, e, rows) }>"
    model = ir.from_proto(parsed(opset, "float[n,4] x, bool c, int64 k", body))
    infer_node(model.graph[0], Scope(model, model.graph))
    (value,) = model.graph[0].outputs
    assert value.dtype == ir.DataType.FLOAT
    assert value.shape is None or "n" not in [str(dim) for dim in value.shape]


@pytest.mark.parametrize("opset", OPSETS)
def test_cleaning_keeps_the_slice(opset: int) -> None:
    """Which `remove-identity` took for one that keeps everything."""
    model = ir.from_proto(parsed(opset, "float[n] x", "v = Slice(x, s, e, rows) y = Neg(v)"))
    (*_, step) = Pipeline.parse("default").run(model)
    found = run(ir.to_proto(step.result.model), {"x": np.arange(5, dtype=np.float32)})
    assert found["y"].tolist() == [-1, -2]
