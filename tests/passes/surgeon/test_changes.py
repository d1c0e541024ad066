"""Types, shapes and origins after a change; functions; invalid graphs."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx_graphsurgeon as gs
import onnx_ir as ir
import pytest

from passes.core.errors import InputError
from passes.graphs import lineage
from passes.graphs.scopes import DISPUTED
from passes.rewriting.base import Context
from passes.rewriting.pipeline import Pipeline
from passes.surgeon.surgeon import Surgeon
from tests.passes import harness
from tests.passes.surgeon.scripts import (
    SMALL,
    A,
    Script,
    W,
    build,
    outputs,
    replace_relu,
    run,
    text,
)


def test_invalid_shapes_are_inferred_again() -> None:
    model = build("(float[1, 4] x) => (float[1, 4] y, int64[2] s) { a = Relu(x) y = Neg(a) s = Shape(a) }")

    def script(graph: gs.Graph) -> None:
        graph.inputs[0].shape = ["batch", 4]

    run(script, model)
    assert str(model.graph[0].outputs[0].shape) == "[batch,4]"
    assert str(model.graph.outputs[0].shape) == "[batch,4]"
    Pipeline.parse("fold-constants,remove-dead").run(model)
    assert "Shape" in harness.operators(model)  # folding it would freeze the batch


def test_invalid_types_are_inferred_again() -> None:
    model = build("(float[2] x) => (float[2] y) { a = Relu(x) y = Neg(a) }")

    def script(graph: gs.Graph) -> None:
        graph.inputs[0].dtype = np.float16

    run(script, model)
    assert [value.dtype for node in model.graph for value in node.outputs] == [ir.DataType.FLOAT16] * 2
    assert outputs(model)[0].dtype == np.float16


def test_what_cannot_be_inferred_is_disputed() -> None:
    model = build("(float[2, 2] x) => (float[2, 2] y) { a = Relu(x) y = Neg(a) }")

    def script(graph: gs.Graph) -> None:
        graph.nodes[0].op, graph.nodes[0].domain = "Own", "plugin"

    result = run(script, model)
    value = model.graph[0].outputs[0]
    assert (str(value.shape), value.dtype) == ("[2,2]", ir.DataType.FLOAT)
    assert DISPUTED in value.meta
    assert "cannot be confirmed by inference" in result.skips[0].reason
    assert model.graph.opset_imports["plugin"] == 1
    assert lineage.origin(model.graph[0]) == [model.graph[0].name]


def test_an_output_in_the_middle() -> None:
    model = build(SMALL, w=W)

    def script(graph: gs.Graph) -> None:
        middle = graph.tensors()["a"]
        middle.dtype = None
        graph.outputs = [middle]
        graph.cleanup()

    run(script, model)
    assert harness.operators(model) == ["Mul"]
    assert model.graph.outputs[0].dtype == ir.DataType.FLOAT
    outputs(model)


def test_origins_of_new_nodes() -> None:
    model = build("(float[2] x) => (float[2] y) { a = Neg(x) b = Exp(a) c = Abs(b) d = Sin(c) y = Cos(d) }")
    names = [node.name for node in model.graph]

    def script(graph: gs.Graph) -> None:
        x, c, y = (graph.tensors()[name] for name in "xcy")
        c.inputs.clear()
        y.inputs.clear()
        [inner] = graph.layer(op="Tanh", name="first", inputs=[x], outputs=["inner"])
        graph.layer(op="Relu", name="second", inputs=[inner], outputs=[c])
        graph.layer(op="Erf", name="third", inputs=[c], outputs=[y])
        graph.cleanup().toposort()

    run(script, model)
    assert [node.name for node in model.graph] == ["first", "second", "third"]
    first, second, third = map(lineage.origin, model.graph)
    assert set(first) == set(second) == set(names[:3])
    assert set(third) == set(names[3:])
    assert json.loads(model.graph[0].metadata_props[lineage.ORIGIN]) == first


# Functions


LOCAL = '<domain: "local", opset_import: ["": 20]>'


def test_changed_functions() -> None:
    model = build(
        "(float[2] x) => (float[2] y) { y = local.f(x) }",
        functions=f"{LOCAL} f (a) => (b) {{ b = Relu(a) }}",  # type: ignore[arg-type]
    )

    def script(graph: gs.Graph) -> None:
        [function] = graph.functions
        replace_relu(function)

    before = outputs(model)
    run(script, model)
    np.testing.assert_array_equal(outputs(model)[0], before[0])
    [function] = model.functions.values()
    assert [node.op_type for node in function] == ["Constant", "Max"]
    assert not function.graph.initializers


def test_references_to_attributes_of_functions() -> None:
    model = build(
        "(float[2, 2] x) => (float[2, 2] y) { y = local.f<axis=0>(x) }",
        functions=f"{LOCAL} f <axis> (a) => (b) {{ c = Neg(a) b = Softmax<axis: int = @axis>(c) }}",  # type: ignore[arg-type]
    )
    before = outputs(model)

    def script(graph: gs.Graph) -> None:
        neg, _ = graph.functions[0].nodes
        neg.op = "Identity"

    run(script, model)
    assert not np.array_equal(outputs(model)[0], before[0])
    [function] = model.functions.values()
    assert function[1].attributes["axis"].is_ref()
    assert "axis" in function.attributes


# Invalid graphs


def dangling(graph: gs.Graph) -> None:
    graph.nodes[0].inputs[0] = gs.Variable("nowhere")


def twice(graph: gs.Graph) -> None:
    graph.layer(op="Neg", name="second", inputs=[graph.inputs[0]], outputs=[graph.outputs[0]])


def cycle(graph: gs.Graph) -> None:
    graph.nodes[0].inputs[0] = graph.outputs[0]


def namesakes(graph: gs.Graph) -> None:
    for node, number in zip(graph.nodes[::2], (1, 2), strict=True):
        node.inputs[1] = gs.Constant("k", A([number], np.float32))


def no_output(graph: gs.Graph) -> None:
    graph.outputs = [gs.Variable("nothing", np.float32)]


def bad_dtype(graph: gs.Graph) -> None:
    graph.nodes[0].inputs[1] = gs.Constant("k", A([0], "datetime64[s]"))


def bad_dimension(graph: gs.Graph) -> None:
    graph.inputs[0].shape = [1.5]


def no_dtype(graph: gs.Graph) -> None:
    made = gs.Variable("made")
    graph.nodes.append(gs.Node("Own", domain="plugin", inputs=[graph.inputs[0]], outputs=[made]))
    graph.outputs.append(made)


def not_a_graph(graph: gs.Graph) -> gs.Graph:
    return gs.export_onnx(graph)


def fails(graph: gs.Graph) -> None:
    raise KeyError("oh")


@pytest.mark.parametrize(
    ("script", "message"),
    [
        (dangling, "no node computes tensor nowhere, which Mul"),
        (
            twice,
            "tensor y is computed by second and by another node (clear tensor.inputs of the tensor that it replaces)",
        ),
        (cycle, "form a cycle"),
        (namesakes, "two different constants have the name k"),
        (no_output, "no node computes tensor nothing, which is a graph output"),
        (bad_dtype, "constant k has the dtype datetime64[s], which ONNX does not have"),
        (bad_dimension, "1.5 is not a dimension"),
        (no_dtype, "the dtype of the output made is unknown (set it in the script)"),
        (not_a_graph, "the script returned ModelProto, not a graphsurgeon graph or None"),
        (fails, "KeyError: 'oh'"),
    ],
)
def test_invalid_graphs_change_nothing(script: Script, message: str, tmp_path: Path) -> None:
    model = build(SMALL, w=W)
    before = text(model)
    with pytest.raises(InputError) as caught:
        Surgeon(f"{__file__}:{script.__name__}").run(model, Context())
    assert message in str(caught.value)
    assert f"test_changes.py:{script.__name__}" in str(caught.value)
    assert text(model) == before


def test_equal_constants_with_the_same_name_are_merged() -> None:
    model = build(SMALL, w=W)

    def script(graph: gs.Graph) -> None:
        for node in graph.nodes[::2]:
            node.inputs[1] = gs.Constant("k", A([3], np.float32))

    run(script, model)
    assert set(model.graph.initializers) == {"k"}
    outputs(model)


def test_disconnected_nodes_are_dropped() -> None:
    model = build(SMALL, w=W)

    def script(graph: gs.Graph) -> None:
        relu = graph.nodes[1]
        graph.nodes[2].inputs[0] = relu.inputs[0]
        relu.outputs.clear()

    run(script, model)
    assert harness.operators(model) == ["Mul", "Add"]
    outputs(model)
