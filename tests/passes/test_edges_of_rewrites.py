"""Models at the edge of what ONNX Runtime runs: a pipeline changes neither what it computes nor whether it runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from passes.graphs.scopes import Scope
from passes.rewriting.pipeline import Pipeline
from passes.shapes.inference import infer_node
from tests.passes.harness import run


def parsed(text: str, *, opset: int = 17, inputs: str, outputs: str, **constants: Any) -> onnx.ModelProto:
    proto = onnx.parser.parse_model(
        f'<ir_version: 10, opset_import: ["": {opset}]> g ({inputs}) => ({outputs}) {{ {text} }}'
    )
    for name, array in constants.items():
        proto.graph.initializer.append(onnx.numpy_helper.from_array(np.asarray(array), name))
    return proto


def cleaned(proto: onnx.ModelProto, pipeline: str = "default", **inputs: Any) -> list[str]:
    """Require the same numbers of both models; the operators that are left."""
    expected = run(proto, inputs)
    model = Pipeline.parse(pipeline).run(ir.from_proto(proto))[-1].result.model
    found = run(ir.to_proto(model), inputs)
    for name, array in expected.items():
        np.testing.assert_array_equal(found[name], array)
        assert np.shape(found[name]) == np.shape(array)
    return [node.op_type for node in model.graph]


@pytest.mark.parametrize(
    ("opset", "kind", "node"),
    [(13, "seq", "SequenceConstruct"), (14, "seq", "SequenceConstruct"), (15, "optional", "Optional")],
)
def test_equal_sequences_that_are_both_outputs(opset: int, kind: str, node: str) -> None:
    """Before opsets 14 and 16 there is no Identity that gives the one another name."""
    text = f"a = {node}(x) b = {node}(x)"
    proto = parsed(text, opset=opset, inputs="float[2] x", outputs=f"{kind}(float[2]) a, {kind}(float[2]) b")
    left = cleaned(proto, "eliminate-common-subexpressions", x=np.ones(2, np.float32))
    assert left == ([node, node] if opset != 14 else [node, "Identity"])


def test_an_attention_with_a_past_keeps_its_present() -> None:
    shape, past = "float[1,2,3,4]", "float[1,2,5,4]"
    proto = parsed(
        "y, a, b = Attention(q, k, v, , pk, pv)",
        opset=23,
        inputs=f"{shape} q, {shape} k, {shape} v, {past} pk, {past} pv",
        outputs="float[1,2,3,4] y",
    )
    given = {name: np.ones((1, 2, 3, 4), np.float32) for name in "qkv"}
    cleaned(proto, **given, pk=np.ones((1, 2, 5, 4), np.float32), pv=np.ones((1, 2, 5, 4), np.float32))


@pytest.mark.parametrize(("inner", "outer"), [(0, 3), (3, 0)])
def test_a_normalization_of_a_product_without_elements(inner: int, outer: int) -> None:
    proto = parsed(
        "h = MatMul(x, w) y = BatchNormalization(h, s, s, s, s)",
        inputs=f"float[2,{inner}] x",
        outputs="float[n,m] y",
        w=np.zeros((inner, outer), np.float32),
        s=np.ones(outer, np.float32),
    )
    cleaned(proto, x=np.zeros((2, inner), np.float32))


def test_a_layer_norm_without_elements() -> None:
    text = """mu = ReduceMean<axes = [-1]>(x) d = Sub(x, mu) q = Mul(d, d) v = ReduceMean<axes = [-1]>(q)
        ve = Add(v, e) s = Sqrt(ve) y = Div(d, s)"""
    proto = parsed(text, inputs="float[2,0] x", outputs="float[n,m] y", e=np.float32(1e-5))
    assert "LayerNormalization" not in cleaned(proto, x=np.ones((2, 0), np.float32))


PADDED = "p = Pad(c, pads) y = MaxPool<kernel_shape = [2]>(p)"
PADS = np.array([0, 0, 1, 0, 0, 1])


@pytest.mark.parametrize("high", [-5.0, 0.0, 3.0, None])
@pytest.mark.parametrize("given", [False, True])
def test_a_clip_whose_upper_limit_is_negative(high: float | None, given: bool) -> None:
    """Its result is that limit, so a maximum with zeros is another."""
    limits: dict[str, Any] = {} if high is None else {"high": np.array(high, np.float32)}
    text = f"c = Clip(x, low{', high' if limits else ''}) {PADDED}"
    more = ", float high" if given and limits else ""
    proto = parsed(
        text, inputs=f"float[1,1,4] x{more}", outputs="float[a,b,n] y", low=np.float32(0), pads=PADS,
        **({} if more else limits),
    )  # fmt: skip
    left = cleaned(proto, x=np.ones((1, 1, 4), np.float32), **(limits if more else {}))
    assert ("Pad" in left) == (bool(more) or high == -5.0)


@pytest.mark.parametrize(("dtype", "kept"), [("int8", True), ("uint8", False), ("float", False)])
def test_an_absolute_value_that_is_negative(dtype: str, kept: bool) -> None:
    proto = parsed(f"c = Abs(x) {PADDED}", inputs=f"{dtype}[1,1,2] x", outputs=f"{dtype}[a,b,n] y", pads=PADS)
    x = np.full((1, 1, 2), -128, np.int8).astype("float32" if dtype == "float" else dtype)
    assert ("Pad" in cleaned(proto, x=x)) == kept


@pytest.mark.parametrize("operator", ["AveragePool", "MaxPool"])
def test_a_pad_of_what_is_empty(operator: str) -> None:
    proto = parsed(
        f"c = Relu(x) p = Pad(c, pads) y = {operator}<kernel_shape = [2, 2]>(p)",
        inputs="float[1,1,0,4] x",
        outputs="float[a,b,n,m] y",
        pads=np.array([0, 0, 1, 1, 0, 0, 1, 1]),
    )
    assert "Pad" in cleaned(proto, x=np.ones((1, 1, 0, 4), np.float32))


@pytest.mark.parametrize(
    ("name", "padding"),
    [
        ("pads", "NOTSET"),
        *((name, padding) for name in ("strides", "dilations") for padding in ("NOTSET", "SAME_UPPER")),
    ],
)
def test_a_convolution_with_an_empty_attribute(name: str, padding: str) -> None:
    proto = parsed(
        f'p = Pad(x, pads) y = Conv<auto_pad = "{padding}">(p, w)',
        inputs="float[] x",
        outputs="float[a,b,n] y",
        w=np.ones((2, 1, 3), np.float32),
        pads=PADS,
    )
    proto.graph.input[0].type.tensor_type.ClearField("shape")
    proto.graph.node[1].attribute.add(name=name, type=onnx.AttributeProto.INTS)
    cleaned(proto, x=np.ones((1, 1, 6), np.float32))


def test_a_cast_of_old() -> None:
    """Its type is a name, and ONNX Runtime has none of it."""
    proto = parsed("y = Cast(x)", opset=5, inputs="float[2] x", outputs="float[2] y")
    proto.graph.node[0].attribute.add(name="to", type=onnx.AttributeProto.STRING, s=b"FLOAT")
    (node,) = Pipeline.parse("default").run(ir.from_proto(proto))[-1].result.model.graph
    assert node.op_type == "Cast"


@pytest.mark.parametrize(
    ("opset", "operator", "axes", "shape"),
    [
        (17, "Squeeze", [], (1, 2, 1)),
        (17, "Squeeze", [-1], (1, 2, 1)),
        (11, "Squeeze", [], (1, 2, 1)),
        (11, "Squeeze", [2, 0], (1, 2, 1)),
        (7, "Squeeze", [-1], (1, 2, 1)),
        (10, "Squeeze", [2, 0], (1, 2, 1)),
        (10, "Unsqueeze", [-1], (2, 3)),
        (10, "Unsqueeze", [3, 0], (2, 3)),
    ],
)
def test_axes_that_inference_misreads(opset: int, operator: str, axes: Sequence[int], shape: tuple[int, ...]) -> None:
    by_input = opset >= 13
    sizes = ",".join(map(str, shape))
    proto = parsed(
        f"h = {operator}(x{', axes' if by_input else ''}) y = Neg(h) s = Shape(h)",
        opset=opset,
        inputs=f"float[{sizes}] x",
        outputs="float y, int64[r] s",
        **({"axes": np.array(axes, np.int64)} if by_input else {}),
    )
    proto.graph.output[0].type.tensor_type.ClearField("shape")
    if not by_input:
        proto.graph.node[0].attribute.add(name="axes", type=onnx.AttributeProto.INTS, ints=axes)
    expected = run(proto, {"x": np.ones(shape, np.float32)})["y"].shape
    cleaned(proto, x=np.ones(shape, np.float32))
    model = ir.from_proto(proto)
    infer_node(model.graph[0], Scope(model, model.graph))
    assert model.graph[0].outputs[0].shape in (None, ir.Shape(expected))


@pytest.mark.parametrize(
    ("opset", "node"),
    [
        (17, 'MaxPool<auto_pad = "VALID", kernel_shape = [3], pads = [2, 2]>(x)'),
        (17, 'MaxPool<auto_pad = "SAME_UPPER", kernel_shape = [3], pads = [2, 2]>(x)'),
        (17, 'AveragePool<auto_pad = "SAME_LOWER", kernel_shape = [3], strides = [2], pads = [2, 2]>(x)'),
        (18, 'LpPool<auto_pad = "VALID", kernel_shape = [3], pads = [1, 1], ceil_mode = 1>(x)'),
        (17, "MaxPool<kernel_shape = [3], strides = [3], ceil_mode = 2>(x)"),
        (17, "MaxPool<kernel_shape = [3], strides = [3], pads = [0, 2], ceil_mode = -1>(x)"),
        *((18, f"ReduceMax<noop_with_empty_axes = {value}>(x)") for value in (-1, 0, 1, 2)),
        (13, "ReduceSum<noop_with_empty_axes = 2>(x)"),
        (17, "STFT(x, eight, , sixteen)"),
        (17, "STFT<onesided = 0>(x, eight, , sixteen)"),
        (18, "ConvTranspose<output_shape = [9]>(x, w)"),
        (18, 'Resize<axes = [-1, -2], keep_aspect_ratio_policy = "not_larger">(x, , , sizes)'),
        (18, 'Resize<axes = [2, 1], keep_aspect_ratio_policy = "not_larger">(x, , , sizes)'),
    ],
)
def test_attributes_that_inference_misreads(opset: int, node: str) -> None:
    length = 128 if node.startswith("STFT") else 10
    proto = parsed(
        f"h = {node} y = Neg(h) s = Shape(h)",
        opset=opset,
        inputs=f"float[1,{length},1] x" if length > 10 else "float[1,1,10] x",
        outputs="float y, int64[r] s",
        eight=np.array(8),
        sixteen=np.array(16),
        sizes=np.array([4, 7]),
        w=np.ones((1, 1, 3), np.float32),
    )
    proto.graph.output[0].type.tensor_type.ClearField("shape")
    data = np.linspace(-1, 1, length, dtype=np.float32).reshape((1, -1, 1) if length > 10 else (1, 1, -1))
    expected = run(proto, {"x": data})["y"].shape
    cleaned(proto, "infer-shapes,fold-constants", x=data)
    model = ir.from_proto(proto)
    infer_node(model.graph[0], Scope(model, model.graph))
    found = model.graph[0].outputs[0].shape
    assert found is None or len(found) == len(expected)
    assert all(not isinstance(dim, int) or dim == size for dim, size in zip(found or (), expected, strict=False))


@pytest.mark.parametrize("end", [2**31 - 1, 2**63 - 1, 100, -100])
def test_a_slice_backwards(end: int) -> None:
    """To the number that stands for the end, ONNX Runtime goes to the beginning."""
    proto = parsed(
        "h = Slice(x, start, end, axis, step) y = Slice(h, zero, two) s = Shape(h)",
        inputs="float[4] x",
        outputs="float[n] y, int64[1] s",
        start=np.array([-1]),
        end=np.array([end]),
        axis=np.array([0]),
        step=np.array([-1]),
        zero=np.array([0]),
        two=np.array([2]),
    )
    cleaned(proto, x=np.arange(4, dtype=np.float32))


@pytest.mark.parametrize("node", ["Slice(x, s, s)", "Expand(x, s)"])
def test_more_axes_than_there_can_be(node: str) -> None:
    """ONNX makes a list of as many axes as an operand has elements."""
    text = f"g (float[2,3] x, int64[{2**40}] s) => (float y) {{ y = {node} }}"
    model = ir.from_proto(onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["": 10]> {text}'))
    model.graph.outputs[0].shape = None
    infer_node(model.graph[0], Scope(model, model.graph))
    settled = Pipeline.parse("infer-shapes").run(model)[-1].result.model
    assert [each.graph[0].outputs[0].shape for each in (model, settled)] == [None, None]


def test_a_scan_of_opset_8_whose_state_has_no_batch() -> None:
    """ONNX Runtime rejects it; so it is left as it is."""
    body = "b (float a, float[2] i) => (float c, float[2] d) { c = Neg(a) d = Relu(i) }"
    text = f"y, z = Scan<num_scan_inputs = 1, body = {body}>(, x, s)"
    proto = parsed(text, opset=8, inputs="float x, float[1,3,2] s", outputs="float y, float[1,3,2] z")
    model = Pipeline.parse("default").run(ir.from_proto(proto))[-1].result.model
    assert [node.op_type for node in model.graph] == ["Scan"]
