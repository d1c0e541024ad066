"""infer-shapes: what it learns, what it never loses, and what it does not read."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

from passes.cleanup.infer_shapes import InferShapes
from passes.rewriting.base import Budget, Context
from tests.passes.harness import apply, reasons
from tests.passes.helpers import sealed, tiny, weigh


def shapes(source: ir.Model) -> dict[str, str]:
    return {str(value.name): str(value.shape) for node in source.graph.all_nodes() for value in node.outputs}


def test_types_and_shapes_of_every_value() -> None:
    source = tiny(
        """(float[n,3,4] x, bool c) => (y) {
            s = Shape(x) h = Slice(s, zero, two) r = Reshape(x, h)
            t = Transpose(x) a = ArgMax <axis = 1> (x)
            i = If (c) <then_branch = u () => (p) { p = Concat <axis = 2> (x, x) },
                        else_branch = v () => (q) { q = Concat <axis = 2> (x, x) }>
            y = Cast <to = 10> (i) }""",
        zero=np.array([1]),
        two=np.array([3]),
    )
    result = InferShapes().run(source, Context())
    assert len(result.rewrites) == 1
    assert "values known better" in result.rewrites[0].note
    assert shapes(source) | {"h": "[2]", "r": "[3,4]", "t": "[4,3,n]", "a": "[n,1,4]", "p": "[n,3,8]"} == shapes(source)
    assert shapes(source)["y"] == "[n,3,8]"
    assert source.graph.outputs[0].dtype == ir.DataType.FLOAT16
    assert not InferShapes().run(source, Context()).rewrites


def test_numbers_and_the_checker() -> None:
    apply(InferShapes(), tiny("(float[n,3] x) => (float[a,b] y) { h = Transpose(x) y = Neg(h) }"))


def test_weights_are_not_read() -> None:
    source = tiny("(float[n,4096] x) => (float[a,b] y) { h = MatMul(x, w) k = MatMul(h, v) y = Neg(k) }")
    weigh(source, "w", sealed(4096, 4096))
    constant = ir.Node("", "Constant", [], [ir.AttrTensor("value", sealed(4096, 7))], name="v")
    free = source.graph[1].inputs[1]
    assert free is not None
    source.graph.insert_before(source.graph[0], constant)
    constant.outputs[0].name = "v"
    source.graph[2].replace_input_with(1, constant.outputs[0])
    InferShapes().run(source, Context())
    assert shapes(source) == {"v": "[4096,7]", "h": "[n,4096]", "k": "[n,7]", "y": "[a,7]"}


def test_what_is_known_stays() -> None:
    """Declared numbers where inference finds names; and names that are given, rather than those it makes up."""
    source = tiny(
        """(float[n,3] x, int64[2] s) => (float[batch,4] y) <float[rows,columns] r, float[m] z> {
            r = Reshape(x, s) y = Neg(r) k = NonZero(x) }"""
    )
    InferShapes().run(source, Context())
    assert shapes(source) == {"r": "[rows,columns]", "y": "[batch,4]", "k": "[2,None]"}


@pytest.mark.parametrize("declared", ["float[5,3] h", "float[2,3,1] h", "double[2,3] h"])
def test_wrong_declarations(declared: str) -> None:
    source = tiny(f"(float[2,3] x) => (y) <{declared}> {{ h = Neg(x) y = Exp(h) }}")
    context = Context()
    InferShapes().run(source, context)
    assert list(context.contradictions) == ["h"]
    assert shapes(source) == {"h": "[2,3]", "y": "[2,3]"}
    assert source.graph[0].outputs[0].dtype == ir.DataType.FLOAT


def test_quantization_of_microsoft_is_onnx_s() -> None:
    source = tiny(
        """(float[2,3] x) => (y) { q = com.microsoft.QuantizeLinear(x, s, z) d = com.microsoft.DequantizeLinear(q, s, z)
           y = Neg(d) }""",
        s=np.float32(0.1),
        z=np.int8(0),
    )
    source.opset_imports["com.microsoft"] = 1
    InferShapes().run(source, Context())
    assert shapes(source) == {"q": "[2,3]", "d": "[2,3]", "y": "[2,3]"}
    assert source.graph[0].outputs[0].dtype == ir.DataType.INT8


@pytest.mark.parametrize("imported", [True, False])
def test_operators_that_onnx_does_not_know(imported: bool) -> None:
    """Without an import of their domain, too, which ONNX Runtime does not need."""
    source = tiny("(float[2] x) => (y) <float[7] h> { h = mine.Thing(x) y = Neg(h) }")
    if imported:
        source.opset_imports["mine"] = 1
    assert not InferShapes().run(source, Context()).skips
    assert shapes(source) == {"h": "[7]", "y": "[7]"}


def test_a_model_that_onnx_rejects() -> None:
    source = tiny('(float[2] x) => (y) { h = Einsum <equation = "i1->i"> (x) y = Neg(h) }')
    assert "ONNX's inference failed: " in reasons(InferShapes().run(source, Context()))[0]


def test_functions_that_are_called() -> None:
    source = tiny(
        "(float[2,3] x) => (float[a,b] y) { h = local.f(x) y = Neg(h) }",
        functions='<domain: "local", opset_import: ["": 17]> f (a) => (b) { b = Transpose(a) }',
    )
    apply(InferShapes(), source)
    assert shapes(source)["y"] == "[3,2]"


def test_long_lists_are_not_taken_for_shapes() -> None:
    """ONNX would follow their elements one by one, and need terabytes for these."""
    source = tiny("(uint8[400000000000] x) => (y) { h = Add(x, x) y = Concat <axis = 0> (h, h) }")
    InferShapes().run(source, Context())
    assert shapes(source) == {"h": "[400000000000]", "y": "[800000000000]"}


def test_the_budget() -> None:
    source = tiny("(float[2] x) => (y) { h = Neg(x) y = Neg(h) }")
    assert not InferShapes().run(source, Context(budget=Budget(0))).rewrites
    assert shapes(source) == {"h": "None", "y": "None"}


def test_before_ir_version_4() -> None:
    source = tiny(
        "(float[2] x, float[2] w) => (y) { h = Add(x, w) y = Neg(h) }", opset=9, ir_version=3, w=np.ones(2, np.float32)
    )
    InferShapes().run(source, Context())
    assert shapes(source) == {"h": "[2]", "y": "[2]"}
