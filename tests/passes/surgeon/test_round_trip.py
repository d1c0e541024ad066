"""What graphsurgeon 0.6.1 drops, crashes on or confuses, and must not be lost on a round trip."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_graphsurgeon as gs
import onnx_ir as ir
import pytest

from passes.core.errors import InputError
from tests.passes import harness
from tests.passes.surgeon.scripts import (
    SMALL,
    A,
    Script,
    W,
    build,
    negate,
    outputs,
    rename,
    replace_relu,
    run,
    text,
)


def decorated() -> ir.Model:
    """A model with everything that graphsurgeon drops."""
    model = build(
        """(float[2, 3] x, float[2, 3] d, bool c) => (float[2, 3] y) {
            a = Add(x, d)
            o = Optional<type=float>()
            e = local.f(a)
            y = If(c) <
                then_branch = t () => (float[2, 3] r) { r = Mul(e, w) },
                else_branch = f () => (float[2, 3] r) { r = Sub(e, w) }
            >
        }""",
        functions='<domain: "local", opset_import: ["": 20]> f (a) => (b) { b = Neg(a) }',  # type: ignore[arg-type]
        w=W,
        unused=A([7], np.int64),
    )
    default = model.graph.inputs[1]
    default.const_value = ir.Tensor(W, name="d")
    model.graph.initializers.add(default)
    model.doc_string, model.domain, model.model_version = "doc of model", "org.example", 42
    model.producer_name, model.producer_version = "someone", "1.2"
    model.metadata_props["of"] = "model"
    for graph in (model.graph, *model.graph.subgraphs()):
        graph.doc_string, graph.metadata_props["of"] = f"doc of {graph.name}", "graph"
    for node in harness.all_nodes(model):
        node.doc_string, node.metadata_props["of"] = f"doc of {node.op_type}", node.name or ""
        for value in node.outputs:
            value.doc_string, value.metadata_props["of"] = f"doc of {value.name}", "value"
    model.graph[0].outputs[0].meta["quant_parameter_tensor_names"] = {"SCALE_TENSOR": "unused"}
    model.graph.opset_imports["elsewhere"] = 9
    [function] = model.functions.values()
    model.functions.clear()
    function.overload = "fast"
    model.functions[function.identifier()] = function
    model.graph[2].overload = "fast"
    return model


def test_nothing_is_lost_on_a_round_trip() -> None:
    model = decorated()
    before, [function] = ir.to_proto(model), model.functions.values()
    assert run(rename, model).modified
    after = ir.to_proto(model)
    assert after.graph.name == "renamed"
    after.graph.name = before.graph.name
    assert after == before
    assert [*model.functions.values()] == [function]
    assert [value.name for value in model.graph.inputs] == ["x", "d", "c"]
    assert not model.graph.inputs[0].is_initializer()
    assert model.graph.inputs[1].is_initializer()


def test_nothing_is_lost_when_a_script_changes_something_else() -> None:
    model = decorated()
    run(negate, model)
    after = ir.to_proto(model)
    assert [node.op_type for node in after.graph.node] == ["Add", "Optional", "f", "If", "Neg"]
    assert [node.doc_string for node in after.graph.node[:4]] == [
        f"doc of {op}" for op in ("Add", "Optional", "f", "If")
    ]
    assert after.graph.node[2].overload == "fast"
    assert after.graph.quantization_annotation[0].tensor_name == "a"
    assert {each.domain: each.version for each in after.opset_import} == {"": 20, "local": 1, "elsewhere": 9}
    assert {each.name for each in after.graph.initializer} == {"w", "d", "unused"}


def test_sparse_attributes_are_kept() -> None:
    sparse = onnx.SparseTensorProto(dims=[3])
    model = build("(float[2] x) => (float[2] y) { y = Neg(x) }")
    attribute = ir.Attr("sparse_value", ir.AttributeType.SPARSE_TENSOR, sparse)
    model.graph.append(ir.Node("", "Constant", [], [attribute], name="c"))

    def script(graph: gs.Graph) -> None:
        assert not graph.nodes[1].attrs
        negate(graph)

    run(script, model)
    assert model.graph.node("c").attributes["sparse_value"] is attribute


def test_device_configurations_are_kept() -> None:
    model = build(SMALL, w=W)
    model.ir_version = 11
    two = ir.ModelConfiguration(name="two", num_devices=2, device_names=("a", "b"))
    model.device_configurations = (two,)
    node = model.graph[0]
    spec = ir.ShardingSpec(value=node.outputs[0], device=(0, 1))
    node.device_configurations = (ir.NodeDeviceConfiguration(configuration=two, sharding_specs=(spec,)),)
    run(replace_relu, model)
    [configuration] = model.graph[0].device_configurations
    assert configuration.configuration is two
    assert configuration.sharding_specs[0].value is model.graph[0].outputs[0]
    assert model.graph[0] is not node


def test_before_ir_version_4_new_constants_become_inputs() -> None:
    model = build("(float[2] x, float[2] w) => (float[2] y) { a = Mul(x, w) y = Relu(a) }", 8)
    model.ir_version = 3
    weight = model.graph.inputs[1]
    weight.const_value = ir.Tensor(A([1, 2], np.float32), name="w")
    model.graph.initializers.add(weight)
    run(replace_relu, model)
    assert [value.name for value in model.graph.inputs] == [
        "x",
        "w",
        f"{model.graph[1].name.removesuffix('_max')}_zero",
    ]


# Crashes


def test_empty_lists() -> None:
    model = build('(float[1, 2] x) => (float[1, 2] y) { y = local.Own<axes=[1], names=["a"], scales=[1.0]>(x) }')
    node = model.graph[0]
    kinds = {"axes": ir.AttributeType.INTS, "names": ir.AttributeType.STRINGS, "scales": ir.AttributeType.FLOATS}
    for name, kind in kinds.items():
        node.attributes[name] = ir.Attr(name, kind, [])

    def script(graph: gs.Graph) -> None:
        assert graph.nodes[0].attrs == {"axes": [], "names": [], "scales": []}
        graph.nodes[0].attrs["axes"] = [2]
        negate(graph)

    def empty(graph: gs.Graph) -> None:
        graph.nodes[0].attrs["axes"] = []
        graph.layer(op="MaxPool", inputs=[graph.inputs[0]], outputs=["p"], attrs={"kernel_shape": []})

    run(script, model)
    assert {name: model.graph[0].attributes[name].type for name in kinds} == kinds
    run(empty, model)
    assert model.graph[0].attributes["axes"].type == ir.AttributeType.INTS
    assert model.graph[2].attributes["kernel_shape"].type == ir.AttributeType.INTS
    ir.to_proto(model)
    with pytest.raises(InputError, match=r"the attribute unheard=\[\] of .* has no ONNX attribute type"):
        run(lambda graph: graph.nodes[0].attrs.update(unheard=[]), model)


def test_strings_that_are_not_utf8() -> None:
    model = build('(float[2] x) => (float[2] y) { y = local.Own<blob="b">(x) }')
    model.graph[0].attributes["blob"] = ir.Attr("blob", ir.AttributeType.STRING, b"\xff\x00")
    seen = []

    def script(graph: gs.Graph) -> None:
        seen.append(graph.nodes[0].attrs["blob"])
        graph.nodes[0].attrs["other"] = b"\xfe"

    run(script, model)
    assert seen == [b"\xff\x00"]
    assert ir.to_proto(model).graph.node[0].attribute[0].s == b"\xff\x00"
    assert ir.to_proto(model).graph.node[0].attribute[1].s == b"\xfe"


def test_optional_inputs_and_outputs() -> None:
    model = build(
        "(float[3, 1, 2] x) => (float[1, 1, 2] h) { , h = GRU<hidden_size=2>(x, w, r, , , z) }".replace("{ ,", '{ ""#,')
        .replace('""#', "unused")
        .replace("r, , , z", "r, b, , z"),
        w=np.ones((1, 6, 2), np.float32),
        r=np.ones((1, 6, 2), np.float32),
        b=np.ones((1, 12), np.float32),
        z=np.ones((1, 1, 2), np.float32),
    )
    model.graph[0].outputs[0].name = ""
    before = outputs(model)
    run(negate, model)
    np.testing.assert_array_equal(outputs(model)[0], -before[0])
    gru = ir.to_proto(model).graph.node[0]
    assert (gru.input[4], gru.output[0]) == ("", "")


def test_sequences_and_optionals() -> None:
    model = build(
        """(seq(float[2]) s, optional(float[2]) o) => (seq(float[2]) t, optional(float[2]) p) {
            t = Identity(s) p = Identity(o)
        }"""
    )
    types = [value.type for value in model.graph.outputs]
    run(rename, model)
    assert [value.type for value in model.graph.outputs] == types
    assert [value.type for value in model.graph.inputs] == types


def test_a_changed_opset() -> None:
    model = build(SMALL, 13, w=W)

    def script(graph: gs.Graph) -> None:
        assert graph.opset == 13
        graph.opset = 17

    run(script, model)
    assert model.graph.opset_imports[""] == 17


def test_graphsurgeons_own_export_in_a_script() -> None:
    model = build(SMALL, w=W)
    before, seen = text(model), []

    def script(graph: gs.Graph) -> None:
        graph.tensors()["w"].name = "renamed"
        seen.append(gs.export_onnx(graph))
        graph.tensors()["renamed"].name = "w"

    assert not run(script, model).modified
    assert text(model) == before
    [tensor] = seen[0].graph.initializer
    np.testing.assert_array_equal(onnx.numpy_helper.to_array(tensor), W)


# Subgraphs and equality


OUTER = """(float[2, 3] x, bool c) => (float[2, 3] y) {
    y = If(c) <
        then_branch = t () => (float[2, 3] r) { r = Mul(x, w) },
        else_branch = f () => (float[2, 3] r) <float k = {2}> { s = Sub(x, w) r = Mul(s, k) }
    >
}"""


@pytest.mark.parametrize("script", [rename, negate, lambda graph: negate(copy := graph.copy()) or copy])
def test_outer_constants_are_not_copied_into_subgraphs(script: Script) -> None:
    model = build(OUTER, w=W)
    before = outputs(model)
    weight = model.graph.initializers["w"].const_value
    run(script, model)
    assert set(model.graph.initializers) == {"w"}
    assert model.graph.initializers["w"].const_value is weight
    then, other = (
        model.graph[0].attributes["then_branch"].as_graph(),
        model.graph[0].attributes["else_branch"].as_graph(),
    )
    assert (set(then.initializers), set(other.initializers)) == (set(), {"k"})
    assert then[0].inputs[1] is model.graph.initializers["w"]
    np.testing.assert_array_equal(np.abs(outputs(model)[0]), np.abs(before[0]))


def test_a_changed_subgraph() -> None:
    model = build(OUTER, w=W)

    def script(graph: gs.Graph) -> None:
        branch = graph.nodes[0].attrs["then_branch"]
        zero = gs.Constant("zero", np.zeros((2, 3), np.float32))
        [old] = branch.outputs
        new = gs.Variable("sum", old.dtype, old.shape)
        branch.nodes.append(gs.Node("Add", "add", inputs=[old, zero], outputs=[new]))
        branch.outputs = [new]

    before = outputs(model)
    result = run(script, model)
    np.testing.assert_array_equal(outputs(model)[0], before[0])
    assert result.rewrites[0].after == ("add",)
    assert set(model.graph[0].attributes["then_branch"].as_graph().initializers) == {"zero"}


def test_removing_one_of_two_equal_nodes() -> None:
    model = build("(float[2] x) => (float[2] y, float[2] z) { a = Neg(x) b = Neg(x) y = Abs(a) z = Exp(b) }")
    for node in model.graph:
        node.name = "same"

    def script(graph: gs.Graph) -> None:
        assert len({node.name for node in graph.nodes}) == 4
        first, second, *_ = graph.nodes
        second.outputs[0].outputs[0].inputs[0] = first.outputs[0]
        for node in (first, second):
            assert graph.nodes.index(node) == [each is node for each in graph.nodes].index(True)
        second.outputs.clear()
        graph.nodes.remove(second)

    run(script, model)
    assert harness.operators(model) == ["Neg", "Abs", "Exp"]
    assert model.graph[2].inputs[0] is model.graph[0].outputs[0]
    assert len({node.name for node in model.graph}) == 3


@pytest.mark.slow
def test_replacing_a_constant_of_many_nodes() -> None:
    chain = " ".join(f"c{index + 1} = Add(c{index}, w)" for index in range(3000))
    model = build(f"(float[1] c0) => (float[1] y) {{ {chain} y = Neg(c3000) }}", w=A([1], np.float32))

    def script(graph: gs.Graph) -> None:
        two = gs.Constant("two", A([2], np.float32))
        for node in reversed(graph.nodes[:-1]):
            node.inputs[1] = two

    run(script, model)
    assert set(model.graph.initializers) == {"two"}
    assert len(model.graph.initializers["two"].uses()) == 3000
