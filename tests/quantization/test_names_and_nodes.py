"""Models that quantizers cannot do as they are: names that meet derived ones, and nodes that come out wrong."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest

import onnx_bridge
from onnx_bridge.core.errors import InputError
from onnx_bridge.core.values import Array
from onnx_bridge.requests.schemes import QUANTIZERS, Quantizer

GRAPH = """<ir_version: 8, opset_import: ["": 13]> g (float[1,2,4,4] x) => (float[1,2,4,4] y) {
    m = Conv (x, w, b) r = Relu (m) y = Conv (r, v, b) }"""
CLASHES = (
    {"m": "b0"},
    {"m": "w_quantized"},
    {"m": "x_QuantizeLinear_Output"},
    {"r": "x_DequantizeLinear_Output", "y": "m_scale"},
    {"x": "r_zero_point", "y": "x", "v": "w_scale"},
    {"m": "x_ReduceMin", "w": "x_ReduceMax"},
    {"x": "v0v", "w": "v1v", "m": "v0v_scale", "y": "v1v_quantized"},
    {"x": "入力:0", "m": "a b", "b": "duplicatedw0"},
)


def weights(**shapes: tuple[int, ...]) -> dict[str, Array]:
    random = np.random.default_rng(0)
    return {name: random.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}


def named(text: str, arrays: dict[str, Array], names: dict[str, str]) -> ir.Model:
    model = onnx.parser.parse_model(text)
    model.graph.initializer.extend(onnx.numpy_helper.from_array(array, name) for name, array in arrays.items())
    for node in model.graph.node:
        for side in (node.input, node.output):
            side[:] = [names.get(name, name) for name in side]
    for value in (*model.graph.input, *model.graph.output, *model.graph.initializer):
        value.name = names.get(value.name, value.name)
    return ir.from_proto(model)


@pytest.mark.parametrize("quantizer", QUANTIZERS)
@pytest.mark.parametrize("clash", CLASHES, ids=lambda names: ",".join(names.values()))
def test_names_may_meet_those_that_quantizers_derive(clash: dict[str, str], quantizer: Quantizer) -> None:
    model = named(GRAPH, weights(w=(2, 2, 1, 1), v=(2, 2, 1, 1), b=(2,)), clash)
    x = weights(x=(1, 2, 4, 4))["x"]
    before = ir.to_proto(model).SerializeToString()
    quantized = onnx_bridge.quantize(model, with_=quantizer, calibration=[{str(model.graph.inputs[0].name): x}])
    assert ir.to_proto(model).SerializeToString() == before
    graph = quantized.model.graph
    assert [graph.inputs[0].name, graph.outputs[0].name] == [clash.get("x", "x"), clash.get("y", "y")]
    names = {value.name for node in graph for value in node.outputs} | set(graph.initializers)
    assert {clash.get("m", "m"), clash.get("y", "y")} <= names
    assert (quantized.deviations[0].sqnr_db or 99) > 25
    assert not quantized.notes


def test_names_of_subgraphs_may_meet_derived_ones() -> None:
    text = """<ir_version: 8, opset_import: ["": 16]> g (float[1,4] x) => (float[1,4] y) <int64 n = {3}, bool t = {1}> {
        m = MatMul (x, w)
        y = Loop (n, t, m) <body = b (int64 i, bool c, float[1,4] x_scale) => (bool o, float[1,4] w_quantized) {
            o = Identity (c) k = Tanh (x_scale) w_quantized = Add (k, m) }> }"""
    model = named(text, weights(w=(4, 4)), {})
    quantized = onnx_bridge.quantize(model, with_="ort", calibration=[weights(x=(1, 4))])
    (loop,) = (node for node in quantized.model.graph if node.op_type == "Loop")
    assert [value.name for value in loop.attributes["body"].as_graph().outputs] == ["o", "w_quantized"]
    assert (quantized.deviations[0].sqnr_db or 99) > 25


def test_nodes_that_the_quantizer_fails_on_stay_in_float() -> None:
    """ONNX Runtime's quantizer has no scales per channel for a bias that is a scalar."""
    text = """<ir_version: 8, opset_import: ["": 17]> g (float[3,4] x) => (float[3,4] y) {
        [right] h = Gemm (x, w, a) [wrong] k = Gemm (h, w, b) y = MatMul (k, v) }"""
    model = named(text, weights(w=(4, 4), v=(4, 4), a=(4,), b=()), {})
    quantized = onnx_bridge.quantize(model, with_="ort", calibration=[weights(x=(3, 4))], per_channel=True)
    assert quantized.excluded == ("wrong",)
    assert any("Gemm wrong stayed in float" in note for note in quantized.notes)
    assert (quantized.deviations[0].sqnr_db or 99) > 25


def test_what_is_quantized_from_float16_has_operators_for_it() -> None:
    text = """<ir_version: 8, opset_import: ["": 17]> g (float16[3,4] x) => (float16[3,4] y) { y = MatMul (x, w) }"""
    arrays = {name: array.astype(np.float16) for name, array in weights(x=(3, 4), w=(4, 4)).items()}
    model = named(text, {"w": arrays["w"]}, {})
    quantized = onnx_bridge.quantize(model, with_="ort", calibration=[{"x": arrays["x"]}])
    assert (quantized.deviations[0].sqnr_db or 99) > 25


def test_a_sample_that_the_float_model_refuses_is_not_the_quantizers_fault() -> None:
    text = """<ir_version: 8, opset_import: ["": 17]> g (float[3,4] x, int64[1] i) => (float[1,4] y) {
        h = MatMul (x, w) y = Gather (h, i) }"""
    model = named(text, weights(w=(4, 4)), {})
    with pytest.raises(InputError) as caught:
        onnx_bridge.quantize(model, with_="ort", calibration=[{**weights(x=(3, 4)), "i": np.array([9])}])
    assert "quantizer" not in str(caught.value)
