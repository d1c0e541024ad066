"""Models that violate ONNX's definitions of operators are refused when they are read, in one line with the node."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import onnx
import pytest
from onnx import AttributeProto, TensorProto, helper, parser

import onnx_bridge
from onnx_bridge.core.errors import InputError
from onnx_bridge.migraphx.runtime import Runtime
from onnx_bridge.model import io as models
from passes.graphs.byte_strings import from_proto

Change = Callable[[onnx.ModelProto], object]


def text(body: str, inputs: str = "float[2, 4] x", outputs: str = "float[2, 4] y", opset: int = 18) -> onnx.ModelProto:
    header = f'<ir_version: 8, opset_import: ["": {opset}, "ai.onnx.ml": 3]>'
    return parser.parse_model(f"{header} g ({inputs}) => ({outputs}) {{ {body} }}")


SIX_BITS = TensorProto.FLOAT6E2M3
RELU = "y = Relu(x)"
IF = (
    "c = Constant<value = bool {1}>() "
    "y = If(c) <then_branch = t () => (a) { a = Relu(x) }, else_branch = e () => (b) { b = Abs(x) }>"
)
LOOP = "y = Loop(, , x) <body = b (i, c, v) => (d, w) { d = Identity(c) w = Relu(v) }>"


def attribute(index: int, name: str, value: object) -> Change:
    def change(model: onnx.ModelProto) -> None:
        node = model.graph.node[index]
        kept = [each for each in node.attribute if each.name != name]
        del node.attribute[:]
        node.attribute.extend([*kept, helper.make_attribute(name, value)])

    return change


def without_attribute(index: int, name: str) -> Change:
    def change(model: onnx.ModelProto) -> None:
        kept = [each for each in model.graph.node[index].attribute if each.name != name]
        del model.graph.node[index].attribute[:]
        model.graph.node[index].attribute.extend(kept)

    return change


def size(number: int) -> Change:
    return lambda model: setattr(model.graph.input[0].type.tensor_type.shape.dim[0], "dim_value", number)


DEFECTS: dict[str, tuple[onnx.ModelProto, Change, str]] = {
    "no outputs": (text(RELU), lambda model: model.graph.ClearField("output"), "no outputs"),
    "a subgraph that is given elsewhere": (
        text(IF),
        lambda model: setattr(model.graph.node[1].attribute[0], "ref_attr_name", "body"),
        "a subgraph that is an attribute of a function",
    ),
    "elements in another field": (
        text("c = Constant<value = float[2] {1, 2}>() y = Mul(x, c)", "float[2, 2] x", "float[2, 2] y"),
        lambda model: model.graph.node[0].attribute[0].t.int32_data.append(1),
        "elements as int32_data",
    ),
    "no operator": (text(RELU), lambda model: setattr(model.graph.node[0], "op_type", ""), "no operator"),
    "too few inputs": (text(RELU), lambda model: model.graph.node[0].ClearField("input"), "Relu .*0 inputs"),
    "too many inputs": (text(RELU), lambda model: model.graph.node[0].input.append("x"), "Relu .*2 inputs"),
    "no results": (text(f"{RELU} z = Abs(x)"), lambda model: model.graph.node[1].ClearField("output"), "0 outputs"),
    "an empty input": (text("y = Add(x, x)"), lambda model: model.graph.node[0].input.__setitem__(0, ""), "input 0"),
    "one of many inputs left out": (
        text("y = Max(x, x)"),
        lambda model: model.graph.node[0].input.__setitem__(1, ""),
        "input 1",
    ),
    "the name of a type since opset 6": (text("y = Cast<to = 1>(x)"), attribute(0, "to", "FLOAT"), "STRING.*INT"),
    "no type of elements": (
        text("q = QuantizeLinear<output_dtype = 2>(x, s) y = Cast<to = 1>(q)", "float[2, 4] x, float s", opset=22),
        attribute(0, "output_dtype", 999),
        "999",
    ),
    "an attribute of another type": (text("y = Softmax(x)"), attribute(0, "axis", [1]), "INTS.*INT"),
    "an attribute of another opset": (text("y = DequantizeLinear(x, x)", opset=10), attribute(0, "axis", "a"), "INT"),
    "an attribute twice": (
        text("y = Softmax<axis = 1>(x)"),
        lambda model: model.graph.node[0].attribute.append(model.graph.node[0].attribute[0]),
        "two attributes 'axis'",
    ),
    "a lacking attribute": (
        text('y = Einsum<equation = "ij->ij">(x)'),
        without_attribute(0, "equation"),
        "'equation'",
    ),
    "Constant without a value": (text("y = Constant<value_int = 1>()"), without_attribute(0, "value_int"), "0 values"),
    "Constant of another type": (text("y = Constant<value_int = 1>()"), attribute(0, "value", 1), "TENSOR"),
    "If without a branch": (text(IF), without_attribute(1, "else_branch"), "else_branch"),
    "If with an empty branch": (text(IF), attribute(1, "else_branch", onnx.GraphProto(name="e")), "0 outputs"),
    "Loop with other inputs": (text(LOOP), lambda model: model.graph.node[0].input.append("x"), "3 inputs"),
    "an input without a type": (text(RELU), lambda model: model.graph.input[0].ClearField("type"), "'x' has no type"),
    "elements without a type": (
        text(RELU),
        lambda model: setattr(model.graph.input[0].type.tensor_type, "elem_type", 0),
        "'x' have no type",
    ),
    "a huge size": (text(RELU), size(2**63 - 1), "memory of any machine"),
    "a huge product": (text(RELU), size(2**39), "memory of any machine"),
    "a huge IR version": (text(RELU), lambda model: setattr(model, "ir_version", 2**31), "IR version"),
    "a negative opset": (text(RELU), lambda model: setattr(model.opset_import[0], "version", -1), "opset"),
    "six bits": (
        text(RELU),
        lambda model: model.graph.initializer.add(
            name="w", data_type=TensorProto.FLOAT6E2M3, dims=[1], raw_data=b"\xff"
        ),
        "FLOAT6E2M3",
    ),
}


@pytest.mark.parametrize("defect", DEFECTS)
def test_invalid_models_are_refused(tmp_path: Path, defect: str) -> None:
    model, change, message = DEFECTS[defect]
    onnx.save(model, tmp_path / "m.onnx")
    models.load(tmp_path / "m.onnx")
    model = onnx.ModelProto.FromString(model.SerializeToString())
    change(model)
    (tmp_path / "m.onnx").write_bytes(model.SerializeToString())
    with pytest.raises(InputError, match=message) as caught:
        models.load(tmp_path / "m.onnx")
    assert "\n" not in str(caught.value)


def test_functions_may_have_the_names_of_operators(tmp_path: Path) -> None:
    """Their inputs and attributes are those of the function."""
    model = parser.parse_model(
        """<ir_version: 8, opset_import: ["": 18, "ai.onnx.ml": 3]>
        g (float[2] x) => (float[2] y) { y = ai.onnx.ml.Scaler<scale = "a">(x, x) }
        <opset_import: ["": 18], domain: "ai.onnx.ml"> Scaler<scale>(a, b) => (c) { c = Add(a, b) }"""
    )
    onnx.save(model, tmp_path / "m.onnx")
    assert len(models.load(tmp_path / "m.onnx").functions) == 1


def test_attributes_of_the_caller_have_the_types_that_it_gives(tmp_path: Path) -> None:
    model = parser.parse_model(
        """<ir_version: 8, opset_import: ["": 18, "f": 1]> g (float[2] x) => (float[2] y) { y = f.soft<a = 0>(x) }
        <opset_import: ["": 18], domain: "f"> soft<a>(x) => (y) { y = Softmax<axis: int = @a>(x) }"""
    )
    onnx.save(model, tmp_path / "m.onnx")
    assert len(models.load(tmp_path / "m.onnx").functions) == 1


def test_declared_types_that_say_nothing_are_forgotten(tmp_path: Path) -> None:
    model = text("z = Relu(x) y = Abs(z)")
    model.graph.value_info.add(name="z").type.tensor_type.shape.dim.add(dim_value=2**62)
    onnx.save(model, tmp_path / "m.onnx")
    value = models.load(tmp_path / "m.onnx").graph.node(0).outputs[0]
    assert value.type is None
    assert value.shape is not None
    assert not isinstance(value.shape[0], int)


def test_strings_of_any_bytes() -> None:
    model = text("y = Relu(x)")
    model.graph.node[0].attribute.append(helper.make_attribute("note", [b"\xff\xfe", b"a"]))
    model.graph.node[0].attribute.append(AttributeProto(name="one", s=b"\xff", type=AttributeProto.STRING))
    read = from_proto(onnx.ModelProto.FromString(model.SerializeToString()))
    node = read.graph.node(0)
    assert [each.encode() for each in node.attributes["note"].as_strings()] == [b"\xff\xfe", b"a"]
    assert node.attributes["one"].as_string().encode() == b"\xff"


def test_probes_of_strings_of_any_bytes(runtime: Runtime, tmp_path: Path) -> None:
    """What is not UTF-8 reaches the runtime, and its verdict the user."""
    model = text(RELU)
    model.graph.node[0].domain = "custom"  # whose attributes are not known
    model.opset_import.add(domain="custom", version=1)
    model.graph.node[0].attribute.append(helper.make_attribute("note", [b"\xff\xfe", b"a"]))
    (tmp_path / "m.onnx").write_bytes(model.SerializeToString())
    (node,) = onnx_bridge.doctor(tmp_path / "m.onnx").nodes
    assert node.operator == "custom::Relu"
