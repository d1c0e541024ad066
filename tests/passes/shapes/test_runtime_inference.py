"""Types and shapes behind operators of other domains."""

from __future__ import annotations

import onnx
import onnx_ir as ir
import pytest

from passes.cleanup.infer_shapes import InferShapes
from passes.rewriting.base import Context
from passes.shapes.inference import infer_foreign
from tests.passes.helpers import sealed, weigh


def contrib(body: str, *, domain: str = "com.microsoft") -> ir.Model:
    text = f'<ir_version: 8, opset_import: ["": 17, "{domain}": 1]> g (float[2,4] x) => (y) {{ {body} }}'
    return ir.from_proto(onnx.parser.parse_model(text))


def shapes(source: ir.Model) -> dict[str, object]:
    return {
        str(value.name): (value.dtype, tuple(value.shape) if value.shape is not None else None)
        for node in source.graph
        for value in node.outputs
    }


def test_behind_a_contrib_operator() -> None:
    source = contrib("a = com.microsoft.QuickGelu(x) b = Transpose(a) y = Relu(b)")
    InferShapes().run(source, Context())
    wanted = ir.DataType.FLOAT
    assert shapes(source) == {"a": (wanted, (2, 4)), "b": (wanted, (4, 2)), "y": (wanted, (4, 2))}
    assert not InferShapes().run(source, Context()).rewrites


def test_weights_are_not_read() -> None:
    source = contrib("a = com.microsoft.FusedMatMul(x, w) y = Relu(a)")
    weigh(source, "w", sealed(4, 600))
    assert {str(value.name) for value in infer_foreign(source)} == {"a", "y"}
    assert shapes(source)["y"] == (ir.DataType.FLOAT, (2, 600))


def test_what_is_known_no_better_is_not_told() -> None:
    """Behind a shape that is an input, ONNX Runtime knows the dtype alone, and so it stays."""
    text = "g (float[2,4] x, int64[k] s) => (y) { a = com.microsoft.QuickGelu(x) b = Reshape(a, s) y = Relu(b) }"
    source = ir.from_proto(
        onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": 17, "com.microsoft": 1]> {text}')
    )
    assert InferShapes().run(source, Context()).rewrites
    assert shapes(source)["y"] == (ir.DataType.FLOAT, None)
    assert infer_foreign(source) == []
    assert not InferShapes().run(source, Context()).rewrites


def test_what_nobody_knows() -> None:
    source = contrib("a = nobody.Anything(x) y = Relu(a)", domain="nobody")
    assert infer_foreign(source) == []
    assert shapes(source) == {"a": (None, None), "y": (None, None)}


def test_models_of_onnx_alone_are_left_alone() -> None:
    source = contrib("y = Relu(x)")
    source.graph.node(0).outputs[0].type = None
    assert infer_foreign(source) == []


def test_sizes_that_a_quantizer_left_open() -> None:
    """A value_info with an unknown size is completed, and hides nothing behind it."""
    source = contrib("a = com.microsoft.QuickGelu(x) b = Transpose(a) c = com.microsoft.QuickGelu(b) y = Relu(c)")
    for node in source.graph:
        (value,) = node.outputs
        value.type, value.shape = ir.TensorType(ir.DataType.FLOAT), ir.Shape([None, None])
    InferShapes().run(source, Context())
    assert [shape for _, shape in shapes(source).values()] == [(2, 4), (4, 2), (4, 2), (4, 2)]


def test_scalars() -> None:
    """ONNX Runtime tells a scalar from a value of unknown rank only where an axis is added to it."""
    for opset in (11, 17):
        source = contrib("s = Constant<value = float {2.0}>() a = com.microsoft.QuickGelu(s) b = Neg(a) y = Mul(b, x)")
        source.graph.opset_imports[""] = opset
        InferShapes().run(source, Context())
        assert shapes(source)["a"] == shapes(source)["b"] == (ir.DataType.FLOAT, ())
        assert shapes(source)["y"] == (ir.DataType.FLOAT, (2, 4))


@pytest.mark.parametrize("declared", [[5, 4], [2, 1, 4], []])
def test_wrong_declarations(declared: list[int]) -> None:
    source = contrib("a = com.microsoft.QuickGelu(x) b = Shape(a) y = Cast<to = 1>(b)")
    value = source.graph[0].outputs[0]
    value.type, value.shape = ir.TensorType(ir.DataType.FLOAT), ir.Shape(declared)
    context = Context()
    InferShapes().run(source, context)
    assert list(context.contradictions) == ["a"]
    assert shapes(source)["a"] == (ir.DataType.FLOAT, (2, 4))


def test_declarations_of_what_nobody_knows_stay() -> None:
    source = contrib("a = com.microsoft.QuickGelu(x) b = nobody.Anything(a) y = Relu(b)")
    source.graph.opset_imports["nobody"] = 1
    value = source.graph[1].outputs[0]
    value.type, value.shape = ir.TensorType(ir.DataType.FLOAT), ir.Shape([7])
    context = Context()
    InferShapes().run(source, context)
    assert not context.contradictions
    assert shapes(source)["y"] == (ir.DataType.FLOAT, (7,))


def test_the_size_of_a_shape() -> None:
    """ONNX Runtime takes the number of elements of a shape for that of the tensor: 8, where there are 2 sizes."""
    source = contrib("""a = com.microsoft.QuickGelu(x) s = Shape(a) n = Size(s) i = Constant<value = int64[1] {0}>()
        t = Unsqueeze(n, i) y = ConstantOfShape(t)""")
    infer_foreign(source)
    assert 8 not in (source.graph.outputs[0].shape or ())


def test_a_size_that_only_weights_tell() -> None:
    """ONNX Runtime takes it for 0."""
    text = """g (float[1,2,8] x, float[8,m] w, float[m] b) => (y) { a = com.microsoft.Attention<num_heads = 2>(x, w, b)
        y = Relu(a) }"""
    source = ir.from_proto(
        onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": 17, "com.microsoft": 1]> {text}')
    )
    infer_foreign(source)
    assert source.graph.outputs[0].shape == ir.Shape([1, 2, None])
