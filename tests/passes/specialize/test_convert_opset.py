"""convert-opset: the same results and names, and a clear error where conversion is impossible."""

from __future__ import annotations

import itertools
import json

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from passes.core.errors import InputError
from passes.graphs import lineage
from passes.graphs.scopes import name_nodes, scopes
from passes.rewriting.base import Budget, Context
from passes.specialize.convert_opset import ConvertOpset
from tests.passes import harness

A = np.array


def build(text: str, opset: int, **constants: harness.Array) -> ir.Model:
    """A model of IR version 8, with names for all nodes."""
    model = harness.model(text, opset=opset, **constants)
    for scope in scopes(model):
        name_nodes(scope)
    return model


def check(model: ir.Model, to: int) -> list[str]:
    """Convert, compare results, names and metadata, and return the operators."""
    before = ir.to_proto(model)
    given = harness.feeds(before)
    expected = harness.run(before, given)
    values = {value.name for node in harness.all_nodes(model) for value in node.outputs}
    old = set(harness.all_nodes(model))
    result = ConvertOpset(to).run(model, Context())
    after = ir.to_proto(model)
    onnx.checker.check_model(after, full_check=True)
    assert [(each.domain, each.version) for each in after.opset_import if not each.domain] == [("", to)]
    for name, array in harness.run(after, given).items():
        assert array.dtype == expected[name].dtype
        np.testing.assert_allclose(array, expected[name], 1e-6, 1e-6)
    assert harness.interface(after) == harness.interface(before)
    assert values <= {value.name for node in harness.all_nodes(model) for value in node.outputs}
    new = [node for node in harness.all_nodes(model) if node not in old]
    assert {node.name for node in new} == set(result.rewrites[0].after)
    for node in new:
        assert node.metadata_props[lineage.PASS] == "convert-opset"
        assert set(json.loads(node.metadata_props[lineage.ORIGIN])) <= {each.name for each in old}
        assert all(value.dtype is not None for value in node.outputs)
    assert not ConvertOpset(to).run(model, Context()).modified
    return harness.operators(model)


X = "(float[2, 3, 4] x) => (float%s y) { %s }"
IMAGE = "(float[1, 2, 4, 4] x) => (float[%s] y) { %s }"


@pytest.mark.parametrize(
    ("text", "constants", "opset", "to", "operators"),
    [
        (X % ("[3, 2, 4]", "y = Transpose<perm=[1, 0, 2]>(x)"), {}, 12, 20, ["Transpose"]),
        (
            X % ("[2, 3, 4]", "a = Unsqueeze<axes=[0]>(x) y = Squeeze<axes=[0]>(a)"),
            {},
            11,
            13,
            ["Unsqueeze", "Squeeze"],
        ),
        (X % ("[2, 3, 4]", "y = Softmax<axis=1>(x)"), {}, 12, 13, ["Shape", "Flatten", "Softmax", "Reshape"]),
        (X % ("[2, 3, 4]", "y = Softmax<axis=-1>(x)"), {}, 12, 17, ["Softmax"]),
        (X % ("[2, 3, 4]", "y = Softmax(x)"), {}, 13, 11, ["Softmax"]),
        (X % ("[2, 3, 4]", "y = LogSoftmax<axis=2>(x)"), {}, 17, 9, ["LogSoftmax"]),
        (X % ("[2, 3, 4]", "y = Hardmax<axis=2>(x)"), {}, 12, 13, ["Hardmax"]),
        (X % ("[2, 1, 4]", "y = ReduceMean<axes=[1]>(x)"), {}, 17, 18, ["ReduceMean"]),
        (X % ("[2, 1, 4]", "y = ReduceMean<noop_with_empty_axes=0>(x, a)"), {"a": A([1])}, 20, 17, ["ReduceMean"]),
        (X % ("[2, 3]", "y = ReduceSum<axes=[-1], keepdims=0>(x)"), {}, 11, 21, ["ReduceSum"]),
        (X % ("[2, 3, 4]", "y = Clip<min=-0.5, max=0.5>(x)"), {}, 10, 13, ["Clip"]),
        (X % ("[2, 3, 4]", "y = Dropout<ratio=0.3>(x)"), {}, 10, 13, ["Dropout"]),
        (X % ("[2, 2, 4]", "y = Slice<axes=[1], starts=[1], ends=[3]>(x)"), {}, 9, 11, ["Slice"]),
        (X % ("[2, 5, 4]", "y = Pad<pads=[0, 1, 0, 0, 1, 0], value=7.0>(x)"), {}, 10, 21, ["Pad"]),
        (X % ("[2, 1, 4]", "y, b = Split<axis=1, split=[1, 2]>(x)"), {}, 12, 18, ["Split"]),
        (X % ("[1, 3, 4]", "y, b = Split<axis=0>(x)"), {}, 13, 18, ["Split"]),
        (X % ("[2, 3, 2]", "y, i = TopK<axis=-1, k=2>(x)"), {}, 9, 13, ["TopK"]),
        (X % ("[4, 6]", "y = Reshape(x, s)"), {"s": A([4, 6])}, 20, 11, ["Reshape"]),
        (X % ("[2, 3, 4]", "s = Shape(x) y = Expand(x, s)"), {}, 21, 13, ["Shape", "Expand"]),
        (IMAGE % ("1, 2, 8, 8", "y = Upsample(x, s)"), {"s": A([1, 1, 2, 2], np.float32)}, 9, 13, ["Resize"]),
        (IMAGE % ("1, 2, 10, 6", "y = Resize(x, s)"), {"s": A([1, 1, 2.5, 1.5], np.float32)}, 10, 11, ["Resize"]),
        (
            IMAGE % ("1, 2, 10, 6", 'y = Resize<mode="linear">(x, s)'),
            {"s": A([1, 1, 2.5, 1.5], np.float32)},
            10,
            19,
            ["Resize"],
        ),
        (IMAGE % ("1, 2, 2, 2", "y = MaxPool<kernel_shape=[2, 2], strides=[2, 2]>(x)"), {}, 8, 22, ["MaxPool"]),
        (
            IMAGE % ("1, 2, 2, 2", "y = AveragePool<kernel_shape=[2, 2], strides=[2, 2]>(x)"),
            {},
            22,
            11,
            ["AveragePool"],
        ),
        (
            IMAGE % ("1, 2, 4, 4", "y = BatchNormalization(x, s, b, m, v)"),
            {name: A([1, 2], np.float32) for name in "sbmv"},
            15,
            9,
            ["BatchNormalization"],
        ),
        (
            "(float[1, 1, 4, 4] x, float[1, 3, 3, 2] g) => (float[1, 1, 3, 3] y) "
            '{ y = GridSample<mode="bilinear">(x, g) }',
            {},
            16,
            20,
            ["GridSample"],
        ),
        ("(float[1] x) => (float[1] y) { c = Constant<value_float=2.0>() y = Mul(x, c) }", {}, 13, 11, ["Mul"]),
        ("(float[1] x) => (float[1] y) { c = Constant<value_float=2.0>() y = Mul(x, c) }", {}, 13, 24, ["Mul"]),
    ],
)
def test_operators(text: str, constants: dict[str, harness.Array], opset: int, to: int, operators: list[str]) -> None:
    found = check(build(text, opset, **constants), to)
    assert sorted(found) == sorted(operators)


def test_unchanged_nodes_and_tensors_are_kept() -> None:
    model = build(
        "(float[2] x) => (float[2] y) { a = Add(x, w) b = Cast<to=1>(a) y = local.Own(b) }", 13, w=A([1, 2], np.float32)
    )
    nodes, tensor = list(model.graph), model.graph.initializers["w"].const_value
    ConvertOpset(21).run(model, Context())
    assert list(model.graph) == nodes
    assert model.graph.initializers["w"].const_value is tensor
    assert model.graph.opset_imports == {"": 21, "local": 1}


def test_weights_are_not_read() -> None:
    class Untouchable(ir.Tensor):
        def numpy(self) -> np.ndarray:
            raise AssertionError

        def tobytes(self) -> bytes:
            raise AssertionError

    model = build("(float[1, 600] x) => (float[1, 600] y) { a = Squeeze<axes=[0]>(w) y = Mul(x, a) }", 12)
    weight = ir.Value(
        name="w",
        type=ir.TensorType(ir.DataType.FLOAT),
        shape=ir.Shape([1, 600]),
        const_value=Untouchable(np.ones((1, 600), np.float32), name="w"),
    )
    model.graph.initializers.add(weight)
    model.graph[0].replace_input_with(0, weight)
    ConvertOpset(13).run(model, Context())
    assert [node.op_type for node in model.graph] == ["Constant", "Squeeze", "Mul"]


def test_names_and_metadata_are_kept() -> None:
    model = build("(float[2, 3] x) => (float[1, 2, 3] y) { y = Unsqueeze<axes=[0]>(x) }", 12)
    node = model.graph[0]
    node.name, node.doc_string = "lift", "why"
    node.metadata_props["pkg"] = "torch"
    model.metadata_props["source"] = "somewhere"
    model.doc_string, model.graph.doc_string, model.domain, model.model_version = "m", "g", "d", 7
    model.graph.outputs[0].doc_string = "the result"
    model.graph.outputs[0].metadata_props["kind"] = "raised"
    result = ConvertOpset(13).run(model, Context())
    made = model.graph.node("lift")
    assert made is not node
    assert result.rewrites[0].before == ("lift",)
    assert (made.doc_string, made.metadata_props["pkg"], lineage.origin(made)) == ("why", "torch", ["lift"])
    assert model.metadata_props == {"source": "somewhere"}
    assert (model.doc_string, model.graph.doc_string, model.domain, model.model_version) == ("m", "g", "d", 7)
    [output] = model.graph.outputs
    assert (output.name, output.doc_string, output.metadata_props) == ("y", "the result", {"kind": "raised"})


def test_subgraphs_are_converted_and_control_flow_is_not() -> None:
    model = build(
        """(float[2, 3] x, bool c) => (float[1, 2, 3] y) {
            y = If(c) <
                then_branch = a () => (float[1, 2, 3] t) { t = Unsqueeze<axes=[0]>(x) },
                else_branch = b () => (float[1, 2, 3] t) { u = Neg(x) t = Unsqueeze<axes=[0]>(u) }
            >
        }""",
        12,
    )
    outer = model.graph[0]
    check(model, 18)
    assert model.graph[0] is outer
    assert all("axes" not in node.attributes for node in harness.all_nodes(model))


def test_a_model_that_imports_ai_onnx() -> None:
    model = build("(float[2] x) => (float[2] y) { y = Add(x, x) }", 13)
    del model.graph.opset_imports[""]
    model.graph.opset_imports["ai.onnx"] = 13
    check(model, 14)


def test_an_unknown_operator_is_unchanged() -> None:
    model = build("(float[2] x) => (float[2] y) { a = Relu(x) y = EfficientNMS_TRT(a) }", 13)
    ConvertOpset(17).run(model, Context())
    assert harness.operators(model) == ["Relu", "EfficientNMS_TRT"]


def test_functions_without_changed_operators() -> None:
    text = "(float[2] x) => (float[2] y) { y = local.f(x) }"
    body = '<domain: "local", opset_import: ["": 13]> f (a) => (b) { %s }'
    model = build(text, 13, functions=body % "b = Relu(a)")  # type: ignore[arg-type]
    check(model, 21)
    [function] = model.functions.values()
    assert function.opset_imports[""] == 21
    other = build(text, 12, functions=(body % "b = Softmax(a)").replace("13", "12"))  # type: ignore[arg-type]
    with pytest.raises(
        InputError, match=r"Softmax in the function local::f .* \(put inline-functions before this pass\)"
    ):
        ConvertOpset(13).run(other, Context())
    assert other.graph.opset_imports[""] == 12


@pytest.mark.parametrize("operator", ["Max", "Mean", "Min", "Sum"])
def test_a_function_that_broadcasts_is_not_converted_to_opset_7(operator: str) -> None:
    body = f'<domain: "local", opset_import: ["": 8]> f (a, c) => (b) {{ b = {operator}(a, c) }}'
    text = "(float[2] x, float[1] z) => (float[2] y) { y = local.f(x, z) }"
    with pytest.raises(InputError, match=f"{operator} in the function local::f differs between opsets 8 and 7"):
        ConvertOpset(7).run(build(text, 8, functions=body), Context())  # type: ignore[arg-type]
    forth = build(text, 7, functions=body.replace("8", "7"))  # type: ignore[arg-type]
    assert ConvertOpset(8).run(forth, Context()).rewrites


@pytest.mark.parametrize(
    ("text", "opset", "to", "message"),
    [
        (
            "(float[2] x) => (float[2] y) { y = Gelu(x) }",
            20,
            17,
            "Gelu cannot be converted to opset 17: there is Gelu only",
        ),
        (X % ("[2, 3, 4]", "y = Softmax<axis=1>(x)"), 13, 12, "before opset 13 Softmax went over all axes"),
        (X % ("[2, 3, 4]", "y = Hardmax<axis=1>(x)"), 12, 13, "before opset 13 Hardmax went over all axes"),
        (
            "(float[2, 4, 3] x, float[2] s) => (float[2, 4, 3] y) { y = GroupNormalization<num_groups=2>(x, s, s) }",
            20,
            21,
            "those of groups, not of channels",
        ),
        ("(int64[2] x) => (int64[2] y) { y = Max(x, x) }", 13, 11, "it would not be valid there"),
        (
            X % ("[1]", "s = Shape<start=1, end=2>(x) y = Cast<to=1>(s)"),
            17,
            14,
            "Shape cannot be converted to opset 14",
        ),
        (
            IMAGE % ("1, 2, 6, 6", 'p = Constant<value_ints=[0, 0, 1, 1, 0, 0, 1, 1]>() y = Pad<mode="wrap">(x, p)'),
            20,
            17,
            "opset 18 does not know the value of its mode",
        ),
        (IMAGE % ("1, 2, 1, 1", "y = RoiAlign(x, r, b)"), 16, 15, "RoiAlign cannot be converted to opset 15"),
        ('(float[2] x) => (float[2] y) { c = Constant<value_string="a">() y = Neg(x) }', 13, 8, "no such constants"),
    ],
)
def test_unconvertible_models_are_unchanged(text: str, opset: int, to: int, message: str) -> None:
    constants = {"r": A([[0, 0, 1, 1]], np.float32), "b": A([0])} if "Roi" in text else {}
    model = build(text, opset, **constants)
    before = ir.to_proto(model).SerializeToString(deterministic=True)
    with pytest.raises(InputError) as caught:
        ConvertOpset(to).run(model, Context())
    assert message in str(caught.value)
    assert "node " in str(caught.value)
    assert ir.to_proto(model).SerializeToString(deterministic=True) == before


def test_a_failure_discards_earlier_conversions() -> None:
    model = build("(float[2, 3] x) => (float[1, 2, 3] y) { a = Unsqueeze<axes=[0]>(x) y = Hardmax<axis=1>(a) }", 12)
    with pytest.raises(InputError):
        ConvertOpset(13).run(model, Context())
    assert [use.node.op_type for use in model.graph.inputs[0].uses()] == ["Unsqueeze"]


def test_unknown_types_that_do_not_matter() -> None:
    model = build("(float[2, 3] x) => (float[2, 3] y) { a = local.Own(x) b = Cast<to=1>(a) y = Abs(b) }", 13)
    ConvertOpset(21).run(model, Context())
    assert model.graph.opset_imports[""] == 21
    model = build("(float[2, 3] x) => (float[2] y) { a = local.Own(x) y = ReduceMean<axes=[1], keepdims=0>(a) }", 13)
    with pytest.raises(InputError, match="the types of its inputs are not known, which infer-shapes might find"):
        ConvertOpset(18).run(model, Context())


@pytest.mark.parametrize(
    ("step", "message"),
    [
        (ConvertOpset(), "its option to is missing"),
        (ConvertOpset(6), "conversion to opset 6 is not possible"),
        (ConvertOpset(999), "there are 7 to"),
    ],
)
def test_invalid_versions(step: ConvertOpset, message: str) -> None:
    with pytest.raises(InputError, match=message):
        step.run(build("(float[2] x) => (float[2] y) { y = Neg(x) }", 13), Context())
    old = build("(float[2] x) => (float[2] y) { y = Neg(x) }", 13)
    old.graph.opset_imports[""] = 6
    with pytest.raises(InputError, match="the model has opset 6"):
        ConvertOpset(13).run(old, Context())


def test_budget() -> None:
    model = build("(float[2] x) => (float[1, 2] y) { y = Unsqueeze<axes=[0]>(x) }", 12)
    assert not ConvertOpset(13).run(model, Context(budget=Budget(0))).modified
    assert model.graph.opset_imports[""] == 12
    assert len(model.graph.inputs[0].uses()) == 1


def test_round_trip() -> None:
    text = """(float[2, 3] x) => (float[2, 1] y) {
        a = Unsqueeze(x, zero) b = Squeeze(a, zero) c = Softmax(b) d = ReduceSum(c, one) y = Mul(d, d)
    }"""
    model = build(text, 13, zero=A([0]), one=A([1]))
    given = {"x": np.arange(6, dtype=np.float32).reshape(2, 3)}
    expected = harness.run(ir.to_proto(model), given)["y"]
    for to in itertools.chain(range(12, 7, -1), range(8, 25)):
        ConvertOpset(to).run(model, Context())
        onnx.checker.check_model(ir.to_proto(model), full_check=True)
        np.testing.assert_allclose(harness.run(ir.to_proto(model), given)["y"], expected, 1e-6)
    assert harness.operators(model) == ["Unsqueeze", "Squeeze", "Softmax", "ReduceSum", "Mul"]
