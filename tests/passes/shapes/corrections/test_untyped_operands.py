"""Operators on which ONNX's inference crashes: each test would end the process."""

from __future__ import annotations

import onnx
import onnx_ir as ir
import pytest

from passes.graphs.scopes import Scope
from passes.shapes.inference import infer_node
from passes.shapes.onnx_inference import infer_shapes

CALLS = {
    "EyeLike": (9, "EyeLike<dtype = 1>({})"),
    "EyeLike of today": (22, "EyeLike<dtype = 1>({})"),
    "RegexFullMatch": (20, 'RegexFullMatch<pattern = "a">({})'),
    "LabelEncoder": (17, 'ai.onnx.ml.LabelEncoder<classes_strings = ["a"]>({})'),
    "DictVectorizer": (17, "ai.onnx.ml.DictVectorizer<int64_vocabulary = [1]>({})"),
    "TreeEnsemble": (17, "ai.onnx.ml.TreeEnsemble<n_targets = 1>({})"),
}
PLACES = {
    "graph": "h = own.Thing(x) y = CALL(h)",
    "branch": """y = If(c) <then_branch = t () => (float[a,b] u) { h = own.Thing(x) u = CALL(h) },
        else_branch = e () => (float[d,f] v) { v = Neg(x) }>""",
    "function": "y = local.f(x)",
    "left out": 'y = CALL("")',
    "after another": "g = own.Thing(x) h = EyeLike<dtype = 1>(g) y = CALL(h)",
}


def parsed(name: str, place: str) -> onnx.ModelProto:
    opset, call = CALLS[name]
    before, _, after = call.partition("({})")
    text = PLACES[place].replace("CALL", before) + after
    inner = PLACES["graph"].replace("CALL", before).replace("y =", "r =")
    return onnx.parser.parse_model(
        f"""<ir_version: 10, opset_import: ["": {opset}, "own": 1, "local": 1, "ai.onnx.ml": 5]>
        g (float[2,3] x, bool c) => (y) {{ {text} }}
        <domain: "local", opset_import: ["": {opset}, "own": 1, "ai.onnx.ml": 5]> f (x) => (r) {{ {inner} }}"""
    )


@pytest.mark.parametrize("propagate", [False, True])
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("name", CALLS)
def test_nothing_crashes(name: str, place: str, propagate: bool) -> None:
    model = parsed(name, place)
    found = infer_shapes(model, data_prop=propagate)
    assert found.graph.node == model.graph.node or place == "branch"
    assert found.functions == model.functions
    assert found.opset_import == model.opset_import
    assert b"onnx_bridge" not in found.SerializeToString(), "no stand-in is left"


@pytest.mark.parametrize("opset", [9, 22])
def test_what_is_typed_is_inferred(opset: int) -> None:
    text = "g (float[2,3] x) => (y) { h = Neg(x) e = EyeLike<dtype = 7>(h) f = EyeLike(e) y = Neg(f) }"
    found = infer_shapes(onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["": {opset}]> {text}'))
    (kind,) = [each.type.tensor_type for each in found.graph.value_info if each.name == "f"]
    assert kind.elem_type == onnx.TensorProto.INT64
    assert [dim.dim_value for dim in kind.shape.dim] == [2, 3]


@pytest.mark.parametrize("place", ["graph", "branch", "left out"])
@pytest.mark.parametrize("name", CALLS)
def test_of_a_node(name: str, place: str) -> None:
    model = ir.from_proto(parsed(name, place))
    for node in model.graph:
        infer_node(node, Scope(model, model.graph))
    assert model.graph.outputs[0].shape is None
