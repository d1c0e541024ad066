"""Scripts of graphsurgeon as passes: each trap of graphsurgeon 0.6.1 that the boundary must keep a model from."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
import onnx_graphsurgeon as gs
import onnx_ir as ir
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import passes
from passes.core import graphs
from passes.core.base import Budget, Context, Exactness, Result
from passes.core.errors import InputError
from passes.core.pipeline import Pipeline
from passes.surgeon.run_script import operate
from passes.surgeon.surgeon import Surgeon, surgeon_pass
from tests.passes import rewriting

A = np.array
Script = Callable[[gs.Graph], gs.Graph | None]


def run(script: Script, model: ir.Model, budget: int | None = None) -> Result:
    return operate(script, model, Context(budget=Budget(budget)), maker="surgeon", where="script")


def text(model: ir.Model) -> bytes:
    return ir.to_proto(model).SerializeToString(deterministic=True)


def outputs(model: ir.Model, seed: int = 0) -> list[rewriting.Array]:
    proto = ir.to_proto(model)
    onnx.checker.check_model(proto, full_check=True)
    return list(rewriting.run(proto, rewriting.feeds(proto, seed)).values())


def build(graph: str, opset: int = 20, **constants: rewriting.Array) -> ir.Model:
    model = rewriting.model(graph, opset=opset, **constants)
    for scope in graphs.scopes(model):
        graphs.name_nodes(scope)
    return model


def nothing(graph: gs.Graph) -> None:
    """Change nothing."""


def touch(graph: gs.Graph) -> None:
    """Read all constants, also those of subgraphs and attributes."""
    for part in (graph, *graph.subgraphs(recursive=True)):
        for tensor in part.tensors().values():
            if isinstance(tensor, gs.Constant):
                assert isinstance(tensor.values, np.ndarray)
        for node in part.nodes:
            for value in node.attrs.values():
                if isinstance(value, gs.Constant):
                    assert isinstance(value.values, np.ndarray)


def rename(graph: gs.Graph) -> None:
    """Change something, so that all is written anew."""
    graph.name = "renamed"


def negate(graph: gs.Graph) -> None:
    """Put a Neg behind every output."""
    for index, output in enumerate(list(graph.outputs)):
        made = gs.Variable(f"negated_{index}", output.dtype, output.shape)
        graph.nodes.append(gs.Node("Neg", f"negate_{index}", inputs=[output], outputs=[made]))
        graph.outputs[index] = made


def replace_relu(graph: gs.Graph) -> None:
    """What most scripts do: take nodes out and put others in."""
    for node in [node for node in graph.nodes if node.op == "Relu"]:
        inputs, results = list(node.inputs), list(node.outputs)
        node.outputs.clear()
        zero = gs.Constant(f"{node.name}_zero", A(0, np.float32))
        graph.layer(op="Max", name=f"{node.name}_max", inputs=[*inputs, zero], outputs=results)
    graph.cleanup().toposort()


SMALL = "(float[2, 3] x) => (float[2, 3] y) { a = Mul(x, w) b = Relu(a) y = Add(b, w) }"
W = A([[1, 2, 3], [4, 5, 6]], np.float32)


@pytest.mark.parametrize(
    "script", [nothing, touch, lambda graph: graph.copy(), lambda graph: graph.cleanup().toposort()]
)
def test_a_script_that_changes_nothing_leaves_the_very_model(script: Script) -> None:
    model = build(SMALL, w=W)
    before, graph = text(model), model.graph
    assert not run(script, model).modified
    assert model.graph is graph
    assert text(model) == before


def test_numbers_names_and_makers_after_a_surgery() -> None:
    model = build(SMALL, w=W)
    before = outputs(model)
    relu, names = model.graph[1], [node.name for node in model.graph]
    weight = model.graph.initializers["w"].const_value
    result = run(replace_relu, model)
    np.testing.assert_array_equal(outputs(model)[0], before[0])
    assert [node.op_type for node in model.graph] == ["Mul", "Max", "Add"]
    assert model.graph.initializers["w"].const_value is weight
    assert [value.name for node in model.graph for value in node.outputs] == ["a", "b", "y"]
    new = model.graph[1]
    assert new.metadata_props[graphs.PASS] == "surgeon"
    assert graphs.origin(new) == [relu.name]
    assert [model.graph[0].name, model.graph[2].name] == [names[0], names[2]]
    assert not model.graph[0].metadata_props
    [rewrite] = result.rewrites
    assert (rewrite.before, rewrite.after, rewrite.note) == ((relu.name,), (new.name,), "script")
    assert not run(replace_relu, model).modified


def test_the_budget_ends_it() -> None:
    model = build(SMALL, w=W)
    before = text(model)
    assert not run(replace_relu, model, budget=0).modified
    assert text(model) == before


# The traps: memory


class Untouchable(ir.Tensor):
    """A weight that is larger than any file may be, and that nobody may read."""

    def __init__(self) -> None:
        super().__init__(np.broadcast_to(np.float32(0), (30_000, 30_000)), name="w")

    def numpy(self) -> np.ndarray:
        raise AssertionError

    def tobytes(self) -> bytes:
        raise AssertionError


def test_weights_are_not_read_and_may_be_larger_than_2_gb() -> None:
    model = build("(float[2, 30000] x) => (float[2, 30000] y) { a = MatMul(x, v) y = Relu(a) }")
    weight = Untouchable()
    assert weight.nbytes > 2**31
    kind, shape = ir.TensorType(ir.DataType.FLOAT), ir.Shape(weight.shape)
    value = ir.Value(name="w", type=kind, shape=shape, const_value=weight)
    model.graph.initializers.add(value)
    model.graph[0].replace_input_with(1, value)

    def script(graph: gs.Graph) -> None:
        constant = graph.tensors()["w"]
        assert (constant.shape, constant.dtype) == ([30_000, 30_000], np.float32)
        replace_relu(graph)

    assert run(script, model).modified
    assert model.graph.initializers["w"].const_value is weight


def test_external_weights_are_found_from_any_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ir.save(build(SMALL, w=W), tmp_path / "m.onnx", external_data="m.data", size_threshold_bytes=0)
    model = ir.load(tmp_path / "m.onnx")
    tensor = model.graph.initializers["w"].const_value
    assert isinstance(tensor, ir.ExternalTensor)
    monkeypatch.chdir("/")
    seen = []

    def script(graph: gs.Graph) -> None:
        seen.append(graph.tensors()["w"].values.copy())
        rename(graph)

    run(script, model)
    np.testing.assert_array_equal(seen[0], W)
    assert model.graph.initializers["w"].const_value is tensor
    ir.save(model, tmp_path / "again.onnx")


def test_constants_that_were_read_are_the_same_tensors_and_those_that_were_changed_are_not() -> None:
    model = build("(float[2, 3] x) => (float[2, 3] y) { a = Mul(x, w) b = Add(a, v) y = Sub(b, u) }", w=W, v=W, u=W)
    before = {name: value.const_value for name, value in model.graph.initializers.items()}

    def script(graph: gs.Graph) -> None:
        touch(graph)
        tensors = graph.tensors()
        tensors["v"].values *= 2
        tensors["u"].values = tensors["u"].values.astype(np.float32).copy()

    result = run(script, model)
    assert result.rewrites[0].before == ()
    after = {name: value.const_value for name, value in model.graph.initializers.items()}
    assert after["w"] is before["w"]
    np.testing.assert_array_equal(after["v"].numpy(), W * 2)
    np.testing.assert_array_equal(before["v"].numpy(), W)


# The traps: fold_constants


def fold(graph: gs.Graph) -> None:
    graph.fold_constants().cleanup().toposort()


def folded(graph: str, opset: int = 20, **constants: rewriting.Array) -> tuple[ir.Model, list[rewriting.Array]]:
    """A model after graphsurgeon's way of folding, which must compute the same."""
    model = build(graph, opset, **constants)
    before = outputs(model)
    run(fold, model)
    after = outputs(model)
    for old, new in zip(before, after, strict=True):
        assert old.dtype == new.dtype
        np.testing.assert_array_equal(old, new)
    return model, after


def test_folding_a_part_of_a_shape() -> None:
    model, [y] = folded(
        "(float[2, 3, 5] x) => (int64[1] y) { s = Shape<start=1, end=2>(x) y = Add(s, one) }", one=A([1])
    )
    assert y.tolist() == [4]
    assert [node.op_type for node in model.graph] == ["Identity"]


def test_folding_a_cast_to_float_and_back() -> None:
    _, [y] = folded(
        "(float[5, 3] x) => (int64[2] y) { s = Shape(x) f = Cast<to=1>(s) h = Mul(f, half) y = Cast<to=7>(h) }",
        half=A(0.5, np.float32),
    )
    assert y.tolist() == [2, 1]


def test_folding_a_constant_that_is_a_float() -> None:
    model, _ = folded("(float[2] x) => (float[2] y) { c = Constant<value_float=0.5>() y = Mul(x, c) }")
    assert model.graph.initializers["c"].dtype == ir.DataType.FLOAT


def test_folding_leaves_random_and_quantized_constants_alone() -> None:
    model = build(
        """(float[2] x) => (float[2] y) {
            r = RandomNormal<shape=[2], seed=1.0>() d = DequantizeLinear(q, s) a = Add(x, r) y = Add(a, d)
        }""",
        q=A([1, 2], np.int8),
        s=A(0.5, np.float32),
    )
    assert not run(fold, model).modified


def test_one_node_that_cannot_be_computed_keeps_none_from_being_folded() -> None:
    model = build(
        "(float[2] x) => (float[2] y, int64 z) { z = Div(one, zero) c = Mul(w, w) y = Mul(x, c) }",
        one=A(1),
        zero=A(0),
        w=A([2, 3], np.float32),
    )
    run(fold, model)
    assert sorted(rewriting.operators(model)) == ["Div", "Mul"]
    np.testing.assert_array_equal(model.graph.initializers["c"].const_value.numpy(), [4, 9])


def test_folding_a_long_chain() -> None:
    chain = " ".join(f"c{index + 1} = Neg(c{index})" for index in range(1500))
    model = build(f"(float[2] x) => (float[2] y) {{ {chain} y = Mul(x, c1500) }}", c0=A([2, 3], np.float32))
    run(fold, model)
    assert rewriting.operators(model) == ["Mul"]


def test_options_of_folding() -> None:
    graph = "(float[2] x) => (float[2] y) { a = Neg(w) b = Exp(w) c = Add(a, b) d = Mul(x, c) y = Mul(d, a) }"
    model = build(graph, w=A([2, 3], np.float32))
    run(lambda each: each.fold_constants(should_exclude_node=lambda node: node.op == "Exp").cleanup(), model)
    assert rewriting.operators(model) == ["Exp", "Add", "Mul", "Mul"]
    assert not any(node.domain for node in model.graph)
    large = build("(float[4] x) => (float[4] y) { c = Expand(w, s) y = Mul(x, c) }", w=A(2, np.float32), s=A([4]))
    assert not run(lambda each: each.fold_constants(size_threshold=8).cleanup(), large).modified


# The traps: dtypes


@pytest.mark.parametrize(
    "dtype",
    [
        ml_dtypes.float8_e4m3fnuz,
        ml_dtypes.float8_e5m2fnuz,
        ml_dtypes.float8_e4m3fn,
        ml_dtypes.float8_e5m2,
        ml_dtypes.float8_e8m0fnu,
        ml_dtypes.bfloat16,
        ml_dtypes.int4,
        ml_dtypes.uint4,
        ml_dtypes.float4_e2m1fn,
        ml_dtypes.int2,
        np.float16,
        np.complex64,
    ],
)
def test_constants_of_any_dtype_survive_being_read_and_changed(dtype: type) -> None:
    other = 2 if dtype is ml_dtypes.float8_e8m0fnu else 0  # which has no zero
    array = A([1, other, 1, 1, 1]).astype(dtype)
    tensor = ir.Tensor(array, name="w")
    model = build("(float[2] x) => (float[2] y) { c = Identity(w) y = Neg(x) }")
    kind = ir.TensorType(tensor.dtype)
    value = ir.Value(name="w", type=kind, shape=ir.Shape([5]), const_value=tensor)
    model.graph.initializers.add(value)
    model.graph[0].replace_input_with(0, value)

    def read(graph: gs.Graph) -> None:
        touch(graph)
        rename(graph)

    def change(graph: gs.Graph) -> None:
        constant = graph.tensors()["w"]
        constant.values[0] = other

    run(read, model)
    assert model.graph.initializers["w"].const_value is tensor
    run(change, model)
    after = model.graph.initializers["w"].const_value
    assert after.dtype == tensor.dtype
    assert after.numpy().astype(np.complex64).tolist() == [other, other, 1, 1, 1]
    ir.to_proto(model).SerializeToString()


def test_a_wanted_dtype_is_converted_to() -> None:
    model = build("(float[2] x) => (float[2] y) { y = Neg(x) }")

    def script(graph: gs.Graph) -> None:
        made = gs.Constant("k", A([1.5, 2], np.float32))
        made._export_dtype = onnx.TensorProto.BFLOAT16
        graph.nodes.append(gs.Node("Cast", "c", {"to": np.float32}, [made], [gs.Variable("unused")]))

    run(script, model)
    assert model.graph.initializers["k"].const_value.dtype == ir.DataType.BFLOAT16
    assert model.graph.node("c").attributes["to"].as_int() == 1


# The traps: what is lost


def decorated() -> ir.Model:
    """A model with all that graphsurgeon does not carry."""
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
    for node in rewriting.all_nodes(model):
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


def test_nothing_is_lost_where_a_script_changes_something_else() -> None:
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


def test_sparse_attributes_are_carried_unseen() -> None:
    sparse = onnx.SparseTensorProto(dims=[3])
    model = build("(float[2] x) => (float[2] y) { y = Neg(x) }")
    attribute = ir.Attr("sparse_value", ir.AttributeType.SPARSE_TENSOR, sparse)
    model.graph.append(ir.Node("", "Constant", [], [attribute], name="c"))

    def script(graph: gs.Graph) -> None:
        assert not graph.nodes[1].attrs
        negate(graph)

    run(script, model)
    assert model.graph.node("c").attributes["sparse_value"] is attribute


def test_devices_are_carried() -> None:
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


# The traps: crashes


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
    with pytest.raises(InputError, match=r"the attribute unheard=\[\] of .* has no type"):
        run(lambda graph: graph.nodes[0].attrs.update(unheard=[]), model)


def test_strings_that_are_no_utf8() -> None:
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


def test_types_that_are_no_tensors() -> None:
    model = build(
        """(seq(float[2]) s, optional(float[2]) o) => (seq(float[2]) t, optional(float[2]) p) {
            t = Identity(s) p = Identity(o)
        }"""
    )
    types = [value.type for value in model.graph.outputs]
    run(rename, model)
    assert [value.type for value in model.graph.outputs] == types
    assert [value.type for value in model.graph.inputs] == types


def test_an_opset_that_a_script_sets_is_set() -> None:
    model = build(SMALL, 13, w=W)

    def script(graph: gs.Graph) -> None:
        assert graph.opset == 13
        graph.opset = 17

    run(script, model)
    assert model.graph.opset_imports[""] == 17


def test_graphsurgeons_own_export_gets_weights_and_changes_nothing() -> None:
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


# The traps: subgraphs, equality


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


def test_a_subgraph_that_a_script_changes() -> None:
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


def test_removing_a_node_removes_no_other_that_looks_the_same() -> None:
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
    assert rewriting.operators(model) == ["Neg", "Abs", "Exp"]
    assert model.graph[2].inputs[0] is model.graph[0].outputs[0]
    assert [node.name for node in model.graph] == ["same"] * 3


def test_one_constant_is_rewired_away_from_many_nodes() -> None:
    chain = " ".join(f"c{index + 1} = Add(c{index}, w)" for index in range(3000))
    model = build(f"(float[1] c0) => (float[1] y) {{ {chain} y = Neg(c3000) }}", w=A([1], np.float32))

    def script(graph: gs.Graph) -> None:
        two = gs.Constant("two", A([2], np.float32))
        for node in reversed(graph.nodes[:-1]):
            node.inputs[1] = two

    run(script, model)
    assert set(model.graph.initializers) == {"two"}
    assert len(model.graph.initializers["two"].uses()) == 3000


# What depends on what was changed is known anew


def test_shapes_that_are_no_longer_true_are_inferred_anew() -> None:
    model = build("(float[1, 4] x) => (float[1, 4] y, int64[2] s) { a = Relu(x) y = Neg(a) s = Shape(a) }")

    def script(graph: gs.Graph) -> None:
        graph.inputs[0].shape = ["batch", 4]

    run(script, model)
    assert str(model.graph[0].outputs[0].shape) == "[batch,4]"
    assert str(model.graph.outputs[0].shape) == "[batch,4]"
    Pipeline.parse("fold-constants,remove-dead").run(model)
    assert "Shape" in rewriting.operators(model)  # folding it would freeze the batch


def test_types_that_are_no_longer_true_are_inferred_anew() -> None:
    model = build("(float[2] x) => (float[2] y) { a = Relu(x) y = Neg(a) }")

    def script(graph: gs.Graph) -> None:
        graph.inputs[0].dtype = np.float16

    run(script, model)
    assert [value.dtype for node in model.graph for value in node.outputs] == [ir.DataType.FLOAT16] * 2
    assert outputs(model)[0].dtype == np.float16


def test_what_cannot_be_inferred_is_kept_but_not_relied_on() -> None:
    model = build("(float[2, 2] x) => (float[2, 2] y) { a = Relu(x) y = Neg(a) }")

    def script(graph: gs.Graph) -> None:
        graph.nodes[0].op, graph.nodes[0].domain = "Own", "plugin"

    result = run(script, model)
    value = model.graph[0].outputs[0]
    assert (str(value.shape), value.dtype) == ("[2,2]", ir.DataType.FLOAT)
    assert graphs.DISPUTED in value.meta
    assert "may not be those that the model says" in result.skips[0].reason
    assert model.graph.opset_imports["plugin"] == 1
    assert graphs.origin(model.graph[0]) == [model.graph[0].name]


def test_an_output_in_the_middle() -> None:
    model = build(SMALL, w=W)

    def script(graph: gs.Graph) -> None:
        middle = graph.tensors()["a"]
        middle.dtype = None
        graph.outputs = [middle]
        graph.cleanup()

    run(script, model)
    assert rewriting.operators(model) == ["Mul"]
    assert model.graph.outputs[0].dtype == ir.DataType.FLOAT
    outputs(model)


def test_who_new_nodes_stand_for() -> None:
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
    first, second, third = map(graphs.origin, model.graph)
    assert set(first) == set(second) == set(names[:3])
    assert set(third) == set(names[3:])
    assert json.loads(model.graph[0].metadata_props[graphs.ORIGIN]) == first


# Functions


LOCAL = '<domain: "local", opset_import: ["": 20]>'


def test_functions_that_a_script_changes() -> None:
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


# What is no graph


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
        (dangling, "nothing makes tensor nowhere, which Mul"),
        (twice, "tensor y is made by second, and by something else (clear tensor.inputs of what it replaces)"),
        (cycle, "form a cycle"),
        (namesakes, "two different constants are called k"),
        (no_output, "nothing makes tensor nothing, which is an output of the graph"),
        (bad_dtype, "constant k is of datetime64[s], which ONNX does not have"),
        (bad_dimension, "1.5 is no dimension"),
        (no_dtype, "the dtype of the output made is not known (set it in the script)"),
        (not_a_graph, "it returned ModelProto, not a graph of graphsurgeon or None"),
        (fails, "KeyError: 'oh'"),
    ],
)
def test_what_is_no_graph_changes_nothing(script: Script, message: str, tmp_path: Path) -> None:
    model = build(SMALL, w=W)
    before = text(model)
    with pytest.raises(InputError) as caught:
        Surgeon(f"{__file__}:{script.__name__}").run(model, Context())
    assert message in str(caught.value)
    assert f"test_surgeon.py:{script.__name__}" in str(caught.value)
    assert text(model) == before


def test_constants_of_one_name_with_the_same_elements_are_one() -> None:
    model = build(SMALL, w=W)

    def script(graph: gs.Graph) -> None:
        for node in graph.nodes[::2]:
            node.inputs[1] = gs.Constant("k", A([3], np.float32))

    run(script, model)
    assert set(model.graph.initializers) == {"k"}
    outputs(model)


def test_nodes_that_were_disconnected_are_dropped() -> None:
    model = build(SMALL, w=W)

    def script(graph: gs.Graph) -> None:
        relu = graph.nodes[1]
        graph.nodes[2].inputs[0] = relu.inputs[0]
        relu.outputs.clear()

    run(script, model)
    assert rewriting.operators(model) == ["Mul", "Add"]
    outputs(model)


# Scripts


SCRIPT = '''
"""A script, with a helper beside it."""
import onnx_graphsurgeon as gs
import surgeon_test_helper

def neg(graph: gs.Graph) -> None:
    for node in graph.nodes:
        if node.op == "Relu":
            node.op = surgeon_test_helper.OP

def fail(graph):
    return graph.no_such_thing
'''


def test_a_script_in_a_pipeline(tmp_path: Path) -> None:
    (tmp_path / "my.py").write_text(SCRIPT)
    (tmp_path / "surgeon_test_helper.py").write_text('OP = "Neg"')
    model = build(SMALL, w=W)
    step = Surgeon(f"{tmp_path}/my.py:neg")
    path = list(sys.path)
    assert step.run(model, Context()).rewrites[0].note == f"{tmp_path}/my.py:neg"
    assert sys.path == path
    assert rewriting.operators(model) == ["Mul", "Neg", "Add"]
    assert step.exactness is Exactness.QUANTIZATION_STEP


def test_a_script_that_registers_passes_is_loaded_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(passes, "_registered", {})
    (tmp_path / "registers.py").write_text(
        "from __future__ import annotations\n"
        "from dataclasses import dataclass\n"
        "from passes.surgeon.surgeon import surgeon_pass\n"
        "@dataclass\nclass Options:\n    name: str = 'renamed'\n"
        "@surgeon_pass\ndef rename_graph(graph):\n    graph.name = Options().name\n"
    )
    for _ in range(2):
        model = build(SMALL, w=W)
        assert Surgeon(f"{tmp_path}/registers.py:rename_graph").run(model, Context()).modified
        assert model.graph.name == "renamed"
    assert not Pipeline.parse("rename-graph").run(model)[0].result.modified


@pytest.mark.parametrize(
    ("script", "message"),
    [
        ("", "must be told a file and a function in it (as in surgeon{script=my.py:function})"),
        ("{}/my.py", "must be told a file and a function in it"),
        ("{}/none.py:neg", "none.py: there is no such file"),
        ("{}/my.py:negg", "it has no function negg (did you mean neg?)"),
        ("{}/my.py:fail", "my.py:fail, line 12: AttributeError"),
        ("{}/broken.py:f", "broken.py: cannot be loaded: ZeroDivisionError: division by zero"),
    ],
)
def test_scripts_that_cannot_run(script: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "my.py").write_text(SCRIPT)
    (tmp_path / "surgeon_test_helper.py").write_text('OP = "Neg"')
    (tmp_path / "broken.py").write_text("1 / 0")
    with pytest.raises(InputError) as caught:
        Surgeon(script.format(tmp_path)).run(build(SMALL, w=W), Context())
    assert message in str(caught.value)


def test_without_graphsurgeon(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "plain.py").write_text("def f(graph): pass")
    (tmp_path / "imports.py").write_text("import onnx_graphsurgeon\ndef f(graph): pass")
    monkeypatch.setitem(sys.modules, "onnx_graphsurgeon", None)
    for name in ("plain", "imports"):
        with pytest.raises(InputError, match=r"graphsurgeon is not installed \(pip install onnx-bridge\[surgeon\]\)"):
            Surgeon(f"{tmp_path}/{name}.py:f").run(build(SMALL, w=W), Context())


def test_the_decorator(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(passes, "_registered", {})

    @surgeon_pass
    def relu_to_max(graph: gs.Graph) -> None:
        """Write Relu as Max."""
        replace_relu(graph)

    @surgeon_pass(name="negate-all", exactness=Exactness.ROUNDING)
    def other(graph: gs.Graph) -> None:
        negate(graph)

    assert passes.describe("relu-to-max") == "Write Relu as Max."
    assert "onnx" not in passes.describe("negate-all")
    model = build(SMALL, w=W)
    pipeline = Pipeline.parse("relu-to-max,negate-all,remove-dead")
    assert str(pipeline) == "relu-to-max,negate-all,remove-dead"
    steps = pipeline.run(model)
    assert [step.exactness for step in steps[:2]] == [Exactness.QUANTIZATION_STEP, Exactness.ROUNDING]
    assert rewriting.operators(model) == ["Mul", "Max", "Add", "Neg"]
    assert [node.metadata_props.get(graphs.PASS) for node in model.graph] == [None, "relu-to-max", None, "negate-all"]
    with pytest.raises(InputError, match="there is already a pass or a pipeline relu-to-max"):
        surgeon_pass(lambda graph: None, name="relu-to-max")  # type: ignore[call-overload]
    relu_to_max(gs.Graph())


# Any surgery does what it does in graphsurgeon


@st.composite
def surgeries(draw: st.DrawFn) -> tuple[str, list[tuple[str, int]]]:
    count = draw(st.integers(2, 6))
    lines, known = [], ["x", "w"]
    for index in range(count):
        one, other = (draw(st.sampled_from(known)) for _ in range(2))
        lines.append(f"v{index} = {draw(st.sampled_from(['Add', 'Sub', 'Max']))}({one}, {other})")
        known.append(f"v{index}")
    steps = st.tuples(st.sampled_from(["bypass", "double", "swap", "constant", "rename"]), st.integers(0, count - 1))
    return f"(float[2, 3] x) => (float[2, 3] v{count - 1}) {{ {' '.join(lines)} }}", draw(st.lists(steps, max_size=4))


def perform(graph: gs.Graph, steps: list[tuple[str, int]]) -> None:
    for number, (what, index) in enumerate(steps):
        node = graph.nodes[index % len(graph.nodes)]
        match what:
            case "bypass" if node.outputs[0] not in graph.outputs:
                for consumer in list(node.outputs[0].outputs):
                    for place, tensor in enumerate(consumer.inputs):
                        if tensor is node.outputs[0]:
                            consumer.inputs[place] = node.inputs[0]
            case "double":
                made = gs.Variable(f"d{number}", np.float32, [2, 3])
                graph.nodes.append(gs.Node("Add", f"d{number}", inputs=[node.inputs[0]] * 2, outputs=[made]))
                node.inputs[0] = made
            case "swap":
                node.inputs = [node.inputs[1], node.inputs[0]]
            case "constant":
                node.inputs[1] = gs.Constant(f"k{number}", np.full((2, 3), number, np.float32))
            case "rename":
                node.name = f"n{number}"
    graph.cleanup().toposort()


@settings(max_examples=60, deadline=None)
@given(surgeries())
def test_any_surgery_does_what_it_does_in_graphsurgeon(surgery: tuple[str, list[tuple[str, int]]]) -> None:
    source, steps = surgery
    model = build(source, w=W)
    own = gs.import_onnx(ir.to_proto(model))
    perform(own, steps)
    expected = rewriting.run(gs.export_onnx(own), rewriting.feeds(ir.to_proto(model)))
    run(lambda graph: perform(graph, steps), model)
    found = rewriting.run(ir.to_proto(model), rewriting.feeds(ir.to_proto(model)))
    assert found.keys() == expected.keys()
    for name, array in expected.items():
        np.testing.assert_array_equal(found[name], array)
