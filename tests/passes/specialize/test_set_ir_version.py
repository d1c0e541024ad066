"""The IR version goes up, and goes down where the model has nothing that the older version lacks."""

from __future__ import annotations

from collections.abc import Callable

import ml_dtypes
import numpy as np
import onnx
import onnx_ir as ir
import pytest

from passes.core.errors import InputError
from passes.graphs import lineage
from passes.graphs.scopes import Scope
from passes.rewriting.base import Budget, Context
from passes.specialize.set_ir_version import SetIrVersion
from tests.passes import harness

X = np.array([1, -2], np.float32)


def plain() -> ir.Model:
    return harness.model("(float[2] x) => (float[2] y) { h = Mul(x, w) y = Neg(h) }", opset=13, w=X)


@pytest.mark.parametrize("version", [4, 5, 8, 9, 10, 11, 13])
def test_a_model_without_new_features_has_any_version(version: int) -> None:
    model = plain()
    before = harness.run(ir.to_proto(model), {"x": X})
    result = SetIrVersion(version).run(model, Context())
    assert model.ir_version == version
    assert [rewrite.note for rewrite in result.rewrites] == ([f"IR version 10 → {version}"] if version != 10 else [])
    proto = ir.to_proto(model)
    onnx.checker.check_model(proto, full_check=True)
    np.testing.assert_array_equal(harness.run(proto, {"x": X})["y"], before["y"])
    assert not SetIrVersion(version).run(model, Context()).modified


def test_initializers_stay_constant_when_raising_from_below_4() -> None:
    model = plain()
    model.ir_version = 3
    model.graph.inputs.append(model.graph.initializers["w"])
    scope = Scope(model, model.graph)
    assert scope.is_parameter(model.graph.initializers["w"])
    result = SetIrVersion(8).run(model, Context())
    assert result.rewrites[0].note == "IR version 3 → 8, 1 initializer removed from the inputs"
    assert [value.name for value in model.graph.inputs] == ["x"]
    assert scope.is_parameter(model.graph.initializers["w"])
    onnx.checker.check_model(ir.to_proto(model), full_check=True)


def test_invalid_versions() -> None:
    with pytest.raises(InputError, match="ONNX has no IR version 99"):
        SetIrVersion(99).run(plain(), Context())
    with pytest.raises(InputError, match="its option version is missing"):
        SetIrVersion().run(plain(), Context())


def test_budget() -> None:
    model = plain()
    assert not SetIrVersion(8).run(model, Context(budget=Budget(0))).modified
    assert model.ir_version == 10


def test_own_metadata_is_allowed() -> None:
    model = plain()
    lineage.stamp(list(model.graph), "some-pass", list(model.graph))
    assert SetIrVersion(9).run(model, Context()).modified


def function(model: ir.Model, **options: object) -> None:
    x = ir.Value(name="a")
    node = ir.node("Neg", [x], overload=str(options.pop("inner", "")))
    body = ir.Graph([x], node.outputs, nodes=[node], opset_imports={"": 13}, name="f")
    made = ir.Function("my", "f", graph=body, **{"attributes": [], **options})  # type: ignore[arg-type]
    model.functions[made.identifier()] = made


def constant(dtype: object) -> Callable[[ir.Model], None]:
    def change(model: ir.Model) -> None:
        tensor = ir.Tensor(np.array([1, 0]).astype(dtype), name="k")  # type: ignore[call-overload]
        value = ir.Value(name="k", type=ir.TensorType(tensor.dtype), shape=ir.Shape([2]), const_value=tensor)
        model.graph.initializers.add(value)

    return change


def attribute(model: ir.Model) -> None:
    tensor = ir.Tensor(np.array([1], ml_dtypes.float8_e5m2))
    model.graph.append(ir.node("Constant", [], {"value": tensor}, name="c"))


def output_type(kind: ir.TypeProtocol) -> Callable[[ir.Model], None]:
    def change(model: ir.Model) -> None:
        model.graph[0].outputs[0].type = kind

    return change


def node_metadata(model: ir.Model) -> None:
    model.graph[0].metadata_props["pkg"] = "1"


def value_metadata(model: ir.Model) -> None:
    model.graph.inputs[0].metadata_props["pkg"] = "1"


def graph_metadata(model: ir.Model) -> None:
    model.graph.metadata_props["pkg"] = "1"


def annotation(model: ir.Model) -> None:
    model.graph[0].outputs[0].meta["quant_parameter_tensor_names"] = {"SCALE_TENSOR": "w"}


def devices(model: ir.Model) -> None:
    model.device_configurations = (ir.ModelConfiguration(name="two", num_devices=2, device_names=("a", "b")),)


def in_a_subgraph(model: ir.Model) -> None:
    inner = ir.node("Neg", [model.graph.inputs[0]], name="inner")
    inner.metadata_props["pkg"] = "1"
    body = ir.Graph([], inner.outputs, nodes=[inner], name="body")
    model.graph.append(ir.node("If", [model.graph.inputs[0]], {"then_branch": body, "else_branch": body.clone(True)}))


@pytest.mark.parametrize(
    ("change", "needed", "named"),
    [
        (lambda model: None, 4, "initializers that are not inputs, as w"),
        (constant(ml_dtypes.bfloat16), 4, ""),
        (annotation, 5, "quantization annotations, as value "),
        (function, 8, "functions, as my::f"),
        (output_type(ir.OptionalType(ir.TensorType(ir.DataType.FLOAT))), 8, "optional types, as value "),
        (output_type(ir.SparseTensorType(ir.DataType.FLOAT)), 8, "types of sparse tensors, as value "),
        (lambda model: function(model, attributes=[ir.AttrInt64("k", 1)]), 9, "defaults of a function's attributes"),
        (constant(ml_dtypes.float8_e4m3fn), 9, "FLOAT8E4M3FN, as initializer k"),
        (attribute, 9, "FLOAT8E5M2, as node c (value)"),
        (output_type(ir.SequenceType(ir.TensorType(ir.DataType.FLOAT8E4M3FNUZ))), 9, "FLOAT8E4M3FNUZ, as value "),
        (lambda model: function(model, overload="v2"), 10, "overloads, as my::f::v2"),
        (lambda model: function(model, inner="v2"), 10, "overloads, as node"),
        (constant(ml_dtypes.int4), 10, "INT4, as initializer k"),
        (node_metadata, 10, "as pkg of node "),
        (value_metadata, 10, "as pkg of value x"),
        (graph_metadata, 10, "as pkg of graph g"),
        (in_a_subgraph, 10, "as pkg of node inner"),
        (devices, 11, "device configurations, as two"),
        (constant(ml_dtypes.float4_e2m1fn), 11, "FLOAT4E2M1, as initializer k"),
        (constant(ml_dtypes.float8_e8m0fnu), 12, "FLOAT8E8M0, as initializer k"),
        (constant(ml_dtypes.int2), 13, "INT2, as initializer k"),
        (output_type(ir.TensorType(ir.DataType.FLOAT6E2M3)), 14, "FLOAT6E2M3, as value "),
    ],
)
def test_features_of_later_versions(change: Callable[[ir.Model], None], needed: int, named: str) -> None:
    model = plain()
    model.ir_version = 14
    change(model)
    with pytest.raises(InputError) as caught:
        SetIrVersion(needed - 1).run(model, Context())
    assert f"IR version {needed - 1} has no " in str(caught.value)
    assert named in str(caught.value)
    assert f"version {needed} is the first" in str(caught.value)
    assert model.ir_version == 14
    if needed < 14:
        assert SetIrVersion(needed).run(model, Context()).modified


def test_below_3_there_are_no_opset_imports() -> None:
    with pytest.raises(InputError, match="IR version 2 has no opset imports"):
        SetIrVersion(2).run(plain(), Context())
