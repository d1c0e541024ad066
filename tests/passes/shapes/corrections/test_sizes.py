"""Sizes that ONNX infers otherwise than ONNX Runtime computes them."""

from __future__ import annotations

import contextlib
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from passes.graphs.scopes import Scope
from passes.rewriting.pipeline import Pipeline
from passes.shapes.inference import infer_node
from passes.shapes.onnx_inference import infer_shapes
from tests.passes.harness import run

Array = np.ndarray[Any, np.dtype[Any]]


def call(op_type: str, *operands: Array | tuple[int, ...] | None, opset: int, **attributes: Any) -> onnx.ModelProto:
    """A model of one node and the negative of its result; shapes are those of inputs, and arrays are constants."""
    names = ["" if each is None else f"x{index}" for index, each in enumerate(operands)]
    node = onnx.helper.make_node(op_type, names, ["v"], **attributes)
    pairs = list(zip(names, operands, strict=True))
    graph = onnx.helper.make_graph(
        [node, onnx.helper.make_node("Neg", ["v"], ["y"])],
        "g",
        [onnx.helper.make_tensor_value_info(name, 1, each) for name, each in pairs if isinstance(each, tuple)],
        [onnx.ValueInfoProto(name="y")],
        [onnx.numpy_helper.from_array(each, name) for name, each in pairs if isinstance(each, np.ndarray)],
    )
    return onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", opset)], ir_version=10)


def sizes(kind: onnx.TypeProto) -> list[int]:
    """The sizes, with 0 for those that are open."""
    return [dim.dim_value for dim in kind.tensor_type.shape.dim]


def computed(model: onnx.ModelProto) -> list[int]:
    """The shape of what ONNX Runtime computes."""
    proto = onnx.ModelProto.FromString(model.SerializeToString())
    proto.graph.output[0].type.tensor_type.elem_type = 1
    return list(run(proto)["y"].shape)


def check(model: onnx.ModelProto, *, known: bool = True) -> None:
    """Require that what is inferred is so, of the node and of what follows it.

    Args:
        model: of `call`.
        known: whether all sizes have to be inferred.
    """
    expected = computed(model)
    found = infer_shapes(model)
    assert found.graph.node == model.graph.node
    assert not [each.name for each in found.graph.value_info if "/" in each.name], "no stand-in is left"
    infos = {each.name: each.type for each in (*found.graph.value_info, *found.graph.output)}
    source = ir.from_proto(model)
    infer_node(source.graph[0], Scope(source, source.graph))
    alone = source.graph[0].outputs[0].shape
    for inferred in (sizes(infos["v"]), sizes(infos["y"]), [dim if isinstance(dim, int) else 0 for dim in alone or ()]):
        assert len(inferred) == len(expected)
        assert all(
            mine in ((theirs,) if known else (0, theirs)) for mine, theirs in zip(inferred, expected, strict=True)
        )


@pytest.mark.parametrize("opset", [10, 11, 13, 18, 19, 22])
@settings(derandomize=True, max_examples=30, deadline=None)
@given(size=st.integers(1, 60), scale=st.sampled_from([0.1, 0.3, 0.35, 0.7, 1.1, 1.4, 2.0, 2.3, 3.7]))
def test_resize(opset: int, size: int, scale: float) -> None:
    assume(int(np.float32(size) * np.float32(scale)) > 0)
    scales = np.array([1, 1, scale], np.float32)
    operands = ((1, 1, size), scales) if opset == 10 else ((1, 1, size), np.zeros(0, np.float32), scales)
    check(call("Resize", *operands, opset=opset))


@pytest.mark.parametrize("axes", [[2], [-1]])
def test_resize_of_some_axes(axes: list[int]) -> None:
    check(call("Resize", (1, 1, 10), None, np.array([0.7], np.float32), opset=18, axes=axes))


@pytest.mark.parametrize(
    ("op_type", "opset"),
    [(name, opset) for name in ("MaxPool", "AveragePool") for opset in (10, 12, 17, 19, 22)]
    + [("LpPool", 18), ("LpPool", 22)],
)
@settings(derandomize=True, max_examples=40, deadline=None)
@given(
    size=st.integers(1, 12),
    kernel=st.integers(1, 4),
    stride=st.integers(1, 4),
    pads=st.tuples(st.integers(0, 2), st.integers(0, 2)),
    dilation=st.integers(1, 3),
    ceil_mode=st.booleans(),
    padding=st.sampled_from(["NOTSET", "VALID", "SAME_UPPER", "SAME_LOWER"]),
)
def test_pools(
    op_type: str,
    opset: int,
    size: int,
    kernel: int,
    stride: int,
    pads: tuple[int, int],
    dilation: int,
    ceil_mode: bool,
    padding: str,
) -> None:
    dilates = opset >= {"MaxPool": 10, "AveragePool": 19, "LpPool": 18}[op_type]
    length = (dilation if dilates else 1) * (kernel - 1) + 1
    assume(max(pads) < kernel and size + (sum(pads) if padding == "NOTSET" else 0) >= length)
    assume(kernel >= stride or not padding.startswith("SAME"))  # which ONNX Runtime rejects
    attributes: dict[str, Any] = {"kernel_shape": [kernel], "strides": [stride], "ceil_mode": int(ceil_mode)}
    if dilates:
        attributes["dilations"] = [dilation]
    attributes |= {"pads": list(pads)} if padding == "NOTSET" else {"auto_pad": padding}
    known = not padding.startswith("SAME") or not dilates or dilation == 1
    check(call(op_type, (1, 1, size), opset=opset, **attributes), known=known)


@pytest.mark.parametrize("added", [0, 1])
@pytest.mark.parametrize("padding", ["NOTSET", "SAME_UPPER", "SAME_LOWER"])
def test_transposed_convolutions(padding: str, added: int) -> None:
    model = call("ConvTranspose", (1, 1, 4), (1, 2, 3), opset=17, strides=[2], auto_pad=padding, output_padding=[added])
    check(model, known=padding == "NOTSET" or not added)


@pytest.mark.parametrize(
    ("equation", "shapes"),
    [
        ("i,i->i", [(1,), (5,)]),
        ("i,i->i", [(5,), (5,)]),
        ("bij, bjk -> bik", [(1, 2, 3), (4, 3, 5)]),
        ("...i,...ji->...j", [(2, 1), (2, 4, 3)]),
        ("ij,ij->i...", [(2, 3), (2, 3)]),
        ("ij,jk", [(2, 3), (3, 4)]),
    ],
)
def test_einsum(equation: str, shapes: list[tuple[int, ...]]) -> None:
    letters = equation.replace(" ", "").partition("->")[0].replace("...", "").split(",")
    conflict = any(1 in shape for shape in shapes) and len(letters) > 1
    check(call("Einsum", *shapes, opset=17, equation=equation), known=not conflict)


@pytest.mark.parametrize(("shapes", "known"), [([(1,), (5,)], False), ([(2, 3), (3,)], True), ([(4, 1), (3,)], False)])
def test_prelu(shapes: list[tuple[int, ...]], known: bool) -> None:
    check(call("PRelu", *shapes, opset=17), known=known)


def test_attention_of_open_sizes() -> None:
    model = call("Attention", (2, 3, 16), (2, 5, 8), (2, 5, 8), opset=23, q_num_heads=4, kv_num_heads=2)
    check(model, known=True)
    for value in model.graph.input:
        value.type.tensor_type.shape.dim[2].dim_param = "width"
    found = infer_shapes(model)
    infos = {each.name: each.type for each in (*found.graph.value_info, *found.graph.output)}
    assert not infos["y"].tensor_type.shape.dim[2].HasField("dim_value")


def test_each_after_another() -> None:
    """What ONNX says of the second follows from what it says of the first."""
    text = " ".join(f"v{index + 1} = Resize(v{index},, s)" for index in range(4)).replace("(v0,", "(x,")
    model = onnx.parser.parse_model(
        f"""<ir_version: 8, opset_import: ["": 13]> g (float[1,1,100] x) => (float[a,b,c] y)
        <float[3] s = {{1, 1, 0.7}}> {{ {text} y = Neg(v4) }}"""
    )
    assert sizes(infer_shapes(model).graph.output[0].type) == computed(model)


@pytest.mark.parametrize("declared", [6, 7, 9])
def test_what_a_model_declares(declared: int) -> None:
    """Only what is wrong is corrected, and nothing is removed because of what is not so."""
    model = onnx.parser.parse_model(
        f"""<ir_version: 8, opset_import: ["": 13]> g (float[1,1,10] x) => (float[1,1,k] z) <float[1,1,{declared}] y,
        float[3] s = {{1, 1, 0.7}}, int64[1] zero = {{0}}, int64[1] six = {{6}}, int64[1] axis = {{2}}>
        {{ y = Resize(x,, s) z = Slice(y, zero, six, axis) }}"""
    )
    cleaned = Pipeline.parse("default").run(ir.from_proto(model))[-1].result.model
    assert cleaned.graph[0].outputs[0].shape == ir.Shape([1, 1, 7])
    assert run(ir.to_proto(cleaned))["z"].shape == (1, 1, 6)


def test_in_a_branch() -> None:
    pool = "MaxPool<kernel_shape = [2], strides = [2], pads = [1, 1], ceil_mode = 1>(x)"
    model = onnx.parser.parse_model(
        f"""<ir_version: 8, opset_import: ["": 13]> g (float[1,1,5] x, bool c) => (y)
        {{ y = If(c) <then_branch = t () => (u) {{ u = {pool} }}, else_branch = o () => (w) {{ w = {pool} }}> }}"""
    )
    assert sizes(infer_shapes(model).graph.output[0].type) == [1, 1, 3]


@pytest.mark.parametrize("scale", [np.nan, np.inf, -1.0, 1e30])
def test_scales_that_are_none(scale: float) -> None:
    """What ONNX says of them is left, or why it rejects them."""
    model = call("Resize", (1, 1, 10), None, np.array([1, 1, scale], np.float32), opset=13)
    with contextlib.suppress(onnx.shape_inference.InferenceError):
        found = infer_shapes(model)
        assert found == onnx.shape_inference.infer_shapes(model)
