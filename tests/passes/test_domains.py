"""Operators of other domains that have the names of standard ones: no pass takes them for these."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest

import passes
from passes.rewriting.pipeline import Pipeline
from tests.passes.harness import run

RNG = np.random.default_rng(0)
BODIES = {
    "Identity": ("a", "Exp(a)"),
    "Neg": ("a", "Exp(a)"),
    "Relu": ("a", "Neg(a)"),
    "Erf": ("a", "Neg(a)"),
    "Cast": ("a", "Exp(a)"),
    "Dropout": ("a", "Exp(a)"),
    "Transpose": ("a", "Exp(a)"),
    "Reshape": ("a, s", "Exp(a)"),
    "Shape": ("a", "Cast<to = 7>(a)"),
    "Size": ("a", "Cast<to = 7>(a)"),
    "Constant": ("", "RandomNormal<shape = [2], seed = 1.0>()"),
    "Add": ("a, b", "Mul(a, b)"),
    "Mul": ("a, b", "Add(a, b)"),
    "Concat": ("a, b", "Sub(a, b)"),
    "Pad": ("a, p", "Exp(a)"),
    "ReduceMean": ("a", "Neg(a)"),
    "QuantizeLinear": ("a, s, z", "Exp(a)"),
    "DequantizeLinear": ("a, s, z", "Neg(a)"),
    "BatchNormalization": ("a, s, b, m, v", "Exp(a)"),
}
"""Functions of the domain ``local``: parameters, and what they compute."""
CONSTANTS = {
    "w": RNG.standard_normal((4, 4), np.float32),
    "k": RNG.standard_normal((4, 4, 3, 3), np.float32),
    "v": np.array([0.5, 2, 1, 3], np.float32),
    "half": np.array(0.5, np.float32),
    "root": np.array(1.4142135, np.float32),
    "one": np.array(1, np.float32),
    "scale": np.array(0.1, np.float32),
    "zero": np.array(0, np.int8),
    "sizes": np.array([4, 4]),
    "pads": np.array([0, 0, 1, 1, 0, 0, 1, 1]),
}
MODELS = {
    "copies": "(float[4,4] x) => (y) { a = local.Identity(x) b = local.Dropout(a) c = local.Cast(b) y = Abs(c) }",
    "pairs": "(float[4,4] x) => (y) { a = local.Neg(x) b = Neg(a) c = local.Relu(b) y = Relu(c) }",
    "transposes": "(float[4,4] x) => (y) { a = Transpose(x) b = local.Transpose(a) y = Transpose(b) }",
    "reshapes": "(float[4,4] x) => (y) { a = Reshape(x, sizes) b = local.Reshape(a, sizes) y = Reshape(b, sizes) }",
    "shapes": "(float[4,4] x) => (y, z) { s = local.Shape(x) y = Abs(s) n = local.Size(x) z = Abs(n) }",
    "constants": "(float[4,4] x) => (y) { a = local.Neg(w) b = local.Neg(w) c = local.Add(a, b) y = MatMul(x, c) }",
    "gelu": """(float[4,4] x) => (y) { a = Div(x, root) b = local.Erf(a) c = Add(b, one) d = local.Mul(x, c)
        y = Mul(d, half) }""",
    "layer norm": """(float[4,4] x) => (y) { m = local.ReduceMean(x) d = Sub(x, m) q = Mul(d, d)
        n = ReduceMean<axes = [-1]>(q) e = Add(n, scale) s = Sqrt(e) t = Div(d, s) u = Mul(t, v) y = Add(u, v) }""",
    "convolution": """(float[1,4,4,4] x) => (y) { p = local.Pad(x, pads) c = Conv<pads = [1, 1, 1, 1]>(p, k)
        y = local.BatchNormalization(c, v, v, v, v) }""",
    "quantization": """(float[4,4] x) => (y) { q = local.QuantizeLinear(x, scale, zero)
        d = local.DequantizeLinear(q, scale, zero)
        r = QuantizeLinear(d, scale, zero) t = local.DequantizeLinear(w, scale, zero)
        u = DequantizeLinear(r, scale, zero)
        y = MatMul(u, t) }""",
    "joined": "(float[4,4] x) => (y) { a = local.Concat(x, w) b = local.Add(a, w) y = local.Mul(b, w) }",
}


def model(text: str) -> ir.Model:
    functions = [
        f'<domain: "local", opset_import: ["": 17]> {name} ({inputs}) => (out) {{ out = {body} }}'
        for name, (inputs, body) in BODIES.items()
        if f"local.{name}" in text
    ]
    header = '<ir_version: 9, opset_import: ["": 17, "local": 1]>'
    proto = onnx.parser.parse_model(f"{header} g {text} {' '.join(functions)}")
    for name, array in CONSTANTS.items():
        proto.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    return ir.from_proto(proto)


_WITH_OPTIONS = {"convert-opset", "convert-precision", "freeze-inputs", "set-ir-version", "surgeon"}
PIPELINES = [*(name for name in passes.names() if name not in _WITH_OPTIONS), "default"]


@pytest.mark.parametrize("text", MODELS.values(), ids=MODELS.keys())
@pytest.mark.slow
def test_numbers_stay(text: str) -> None:
    before = ir.to_proto(model(text))
    sample = {"x": RNG.standard_normal([dim.dim_value for dim in before.graph.input[0].type.tensor_type.shape.dim])}
    inputs = {name: array.astype(np.float32) for name, array in sample.items()}
    expected = run(before, inputs)
    for name in PIPELINES:
        source = model(text)
        Pipeline.parse(name).run(source)
        for output, array in run(ir.to_proto(source), inputs).items():
            np.testing.assert_allclose(array, expected[output], rtol=1e-5, atol=1e-5, err_msg=name)


def test_a_function_instead_of_a_standard_operator() -> None:
    """ONNX lets runtimes decide which of the two they run: ONNX Runtime runs the operator, and so does MIGraphX."""
    text = "(float[4,4] x) => (y) { a = Neg(x) y = Abs(a) }"
    functions = '<domain: "", opset_import: ["": 17]> Neg (a) => (b) { b = Exp(a) }'
    proto = onnx.parser.parse_model(f'<ir_version: 9, opset_import: ["": 17]> g {text} {functions}')
    inputs = {"x": RNG.standard_normal((4, 4), np.float32)}
    source = ir.from_proto(proto)
    Pipeline.parse("default").run(source)
    np.testing.assert_array_equal(run(ir.to_proto(source), inputs)["y"], run(proto, inputs)["y"])
