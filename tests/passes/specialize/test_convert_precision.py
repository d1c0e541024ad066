"""convert-precision: what is computed in 16 bits or in float32, what stays as it is and why, and that numbers agree."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from passes.core.errors import InputError
from passes.rewriting.base import Context
from passes.specialize.convert_precision import ConvertPrecision
from tests.passes.device import Device
from tests.passes.harness import apply, feeds, model, operators, reasons, run, stops
from tests.passes.helpers import initializers, tiny

RNG = np.random.default_rng(0)
W = RNG.standard_normal((8, 8)).astype(np.float32) / 3
FP16 = ConvertPrecision(to="fp16")
CHAIN = "(float[4,8] x) => (float[4,8] y) { a = MatMul(x, w)  b = Relu(a)  c = Softmax(b)  y = MatMul(c, w) }"


def dtypes(source: ir.Model) -> dict[str, str]:
    """The dtype of each node's first output, by operator."""
    return {node.op_type: str(node.outputs[0].dtype) for node in source.graph if node.op_type != "Cast"}


def casts(source: ir.Model) -> int:
    return operators(source).count("Cast")


def skipped(text: str, keep: tuple[str, ...] = (), to: str = "fp16", **constants: Any) -> list[str]:
    """The skips of a conversion that must not change the results."""
    return reasons(apply(ConvertPrecision(to=to, keep=keep), model(text, **constants), rtol=5e-3, atol=5e-3))


def test_casts_only_at_the_ends_of_a_chain() -> None:
    source = model(CHAIN, w=W)
    result = apply(FP16, source, rtol=5e-3, atol=5e-3)
    assert operators(source) == ["Cast", "MatMul", "Relu", "Softmax", "MatMul", "Cast"]
    assert set(dtypes(source).values()) == {"FLOAT16"}
    assert len(result.rewrites) == 4
    assert not result.skips


def test_a_neighbor_of_unknown_dtype() -> None:
    """Both operands of Add must be of one dtype."""
    source = tiny("(float[4,8] x) => (float[4,8] y) { a = Relu(x) y = Add(a, x) }")
    source.graph[0].outputs[0].type = None
    expected = run(ir.to_proto(source))
    result = FP16.run(source, Context())
    assert "infer-shapes" in reasons(result)[-1]
    np.testing.assert_allclose(run(ir.to_proto(source))["y"], expected["y"], 5e-3, 5e-3)


def test_weights_are_rounded_to_nearest_even_and_stored_once() -> None:
    # 1 + 2⁻¹¹ lies between two values of float16: even is below; 1 + 3·2⁻¹¹: even is above
    weights = np.array([[1 + 2**-11, 1 + 3 * 2**-11, 1 + 2**-11 + 2**-20]], np.float32)
    source = model("(float[2,1] x) => (float[2,3] y) { a = MatMul(x, w)  y = MatMul(x, w) }", w=weights)
    FP16.run(source, Context())
    (rounded,) = initializers(source).values()
    assert rounded.dtype == np.float16
    assert rounded.tolist() == [[1.0, 1 + 2**-9, 1 + 2**-10]]


def test_one_cast_for_all_uses() -> None:
    text = "(float[2,8] x) => (float[2,8] y) { a = MatMul(x, w) b = Relu(x) y = Add(a, b) }"
    source = model(text, w=W)
    apply(FP16, source, rtol=5e-3, atol=5e-3)
    assert casts(source) == 2


def test_names_of_float32_values() -> None:
    source = model(CHAIN, w=W)
    ConvertPrecision(to="fp16", keep=("Softmax",)).run(source, Context())
    names = {str(value.name): value.dtype for node in source.graph for value in node.outputs}
    assert names["b"] == names["c"] == names["y"] == ir.DataType.FLOAT
    assert names["a_fp16"] == ir.DataType.FLOAT16


def test_kept_operators_and_nodes() -> None:
    assert skipped(CHAIN, ("Softmax", "MatMul"), w=W) == [
        "MatMul is kept in float32",
        "Softmax is kept in float32",
        "MatMul is kept in float32",
    ]
    source = model(CHAIN, w=W)
    next(node for node in source.graph if node.op_type == "Relu").name = "mine"
    assert reasons(ConvertPrecision(to="fp16", keep=("mine",)).run(source, Context())) == ["mine is kept in float32"]


def test_keeping_all_changes_nothing() -> None:
    source = model(CHAIN, w=W)
    assert not apply(ConvertPrecision(to="fp16", keep=("MatMul", "Relu", "Softmax")), source).rewrites


def test_unknown_names_to_keep() -> None:
    with pytest.raises(InputError, match="keep names no node or operator.*did you mean Softmax"):
        ConvertPrecision(to="fp16", keep=("SoftMax",)).run(model(CHAIN, w=W), Context())


def test_the_origin_of_a_node_may_be_named() -> None:
    source = model(CHAIN, w=W)
    node = next(node for node in source.graph if node.op_type == "Relu")
    node.metadata_props["onnx_bridge.origin"] = '["original"]'
    result = ConvertPrecision(to="fp16", keep=("original",)).run(source, Context())
    assert reasons(result) == ["original is kept in float32"]


@pytest.mark.parametrize("to", ["", "fp64", "half"])
def test_invalid_formats(to: str) -> None:
    with pytest.raises(InputError, match="its option to is not a format"):
        ConvertPrecision(to=to).run(model(CHAIN, w=W), Context())


def test_constants_out_of_range() -> None:
    text = "(float[2,8] x) => (float[2,8] y) { a = Mul(x, k)  y = Div(a, k) }"
    assert (
        skipped(text, k=np.array([7e4], np.float32))
        == ["the constant k has values beyond 65504, the maximum of float16"] * 2
    )


def test_infinite_constants() -> None:
    text = "(float[2,8] x) => (float[2,8] y) { y = Min(x, k) }"
    assert skipped(text, k=np.array([np.inf], np.float32)) == []


def test_a_scalar_that_would_become_zero() -> None:
    text = "(float[2,8] x) => (float[2,8] y) { a = Abs(x) b = Add(a, eps)  y = Log(b) }"
    assert skipped(text, keep=("Log",), eps=np.array(1e-12, np.float32)) == [
        "the constant eps, 1e-12, would become 0",
        "Log is kept in float32",
    ]


def test_integer_outputs() -> None:
    text = "(float[2,8] x) => (float[2,3] y, int64[2,3] i) { y, i = TopK(x, k) }"
    assert skipped(text, k=np.array([3])) == ["its output i depends on the rounding"]


def test_nodes_without_float_outputs() -> None:
    text = "(float[2,8] x) => (bool[2,8] y, int64[2,1] z) { y = Greater(x, k)  z = ArgMax<axis=1>(x) }"
    assert skipped(text, k=np.zeros(1, np.float32)) == []


def test_inputs_of_a_fixed_type() -> None:
    text = '(float[1,1,4,4] x) => (float[1,1,8,8] y) { a = Relu(x)  y = Resize<mode="nearest">(a, , scales) }'
    source = model(text, scales=np.array([1, 1, 2, 2], np.float32))
    apply(FP16, source, rtol=5e-3, atol=5e-3)
    resize = next(node for node in source.graph if node.op_type == "Resize")
    assert [str(value.dtype) for value in resize.inputs if value] == ["FLOAT16", "FLOAT"]


def test_integer_kernels() -> None:
    text = """(float[4,8] x) => (float[4,8] y) {
        q = QuantizeLinear(x, s, z)  d = DequantizeLinear(q, s, z)  w = DequantizeLinear(qw, s, z)
        t = Transpose(w)  a = MatMul(d, t)  y = Relu(a) }"""
    constants: dict[str, Any] = {
        "s": np.float32(0.05),
        "z": np.int8(0),
        "qw": RNG.integers(-9, 9, (8, 8)).astype(np.int8),
    }
    source = model(text, **constants)
    found = ConvertPrecision(to="fp16", keep=("Transpose",)).run(source, Context())
    assert reasons(found)[0] == "Transpose is kept in float32"
    assert reasons(found)[1:] == ["it multiplies dequantized integers, which have integer kernels"]
    assert dtypes(source)["Relu"] == "FLOAT16"
    onnx.checker.check_model(ir.to_proto(source), full_check=True)


def test_values_that_subgraphs_capture() -> None:
    text = """(float[2] x, bool c) => (float[2] y) {
        a = Relu(x)
        y = If(c) <then_branch = one () => (float[2] t) { t = Neg(a) },
                   else_branch = two () => (float[2] e) { e = Abs(a) }>
    }"""
    source = model(text)
    before = ir.to_proto(source)
    assert len(FP16.run(source, Context()).rewrites) == 1
    after = ir.to_proto(source)
    onnx.checker.check_model(after, full_check=True)
    given = feeds(before)
    np.testing.assert_allclose(run(after, given)["y"], run(before, given)["y"], rtol=2e-3)


def test_the_budget_counts_nodes() -> None:
    assert stops(FP16, model(CHAIN, w=W), 2) == 2


WIDEN = ConvertPrecision(to="fp32")
HALF_CHAIN = CHAIN.replace("float[", "float16[")


def widened(text: str, **constants: Any) -> tuple[ir.Model, list[str]]:
    """A model of float16 that is computed in float32, with about the same results, and the skips."""
    source = model(text, **{name: np.asarray(array) for name, array in constants.items()})
    result = apply(WIDEN, source, rtol=1e-2, atol=1e-2)
    assert not apply(WIDEN, source).rewrites
    return source, reasons(result)


def test_a_chain_in_float32() -> None:
    source, skips = widened(HALF_CHAIN, w=W.astype(np.float16))
    assert operators(source) == ["Cast", "MatMul", "Relu", "Softmax", "MatMul", "Cast"]
    assert set(dtypes(source).values()) == {"FLOAT"}
    assert [value.dtype for value in (*source.graph.inputs, *source.graph.outputs)] == [ir.DataType.FLOAT16] * 2
    assert [array.dtype for array in initializers(source).values()] == [np.float32]
    assert not skips


def test_nothing_is_rounded_in_between() -> None:
    text = """(float[4,8] x) => (float[4,8] y) {
        h = Cast<to=10>(x)  a = MatMul(h, w)  f = Cast<to=1>(a)  e = Exp(f)  g = Cast<to=10>(e)  b = Relu(g)
        d = Cast<to=11>(b)  y = Cast<to=1>(d) }"""
    source, _ = widened(text, w=W.astype(np.float16))
    assert not {value.dtype for node in source.graph for value in node.outputs} & {ir.DataType.FLOAT16}


def test_what_needs_16_bits_gets_them() -> None:
    text = """(float16[2,8] x) => (float16[2,3] v, int64[2,3] i, bool[2,8] c, float16[8] w) {
        a = Exp(x)  v, i = TopK(a, k)  c = Greater(a, x)  w = Identity(u) }"""
    source, skips = widened(text, k=np.array([3]), u=W[0].astype(np.float16))
    assert dtypes(source)["TopK"] == "FLOAT"
    greater = next(node for node in source.graph if node.op_type == "Greater")
    assert [str(value.dtype) for value in greater.inputs if value] == ["FLOAT16"] * 2
    assert not skips


def test_operators_that_float32_does_not_have_stay() -> None:
    source = model("(float16[2] x) => (float16[2] y) { a = Neg(x)  y = local.Mine(a) }")
    WIDEN.run(source, Context())
    assert [str(node.outputs[0].dtype) for node in source.graph if node.op_type == "Neg"] == ["FLOAT"]
    assert [str(value.dtype) for value in source.graph[-1].inputs if value] == ["FLOAT16"]


@pytest.mark.runtime
@pytest.mark.parametrize("to", ["fp16", "bf16"])
def test_migraphx_runs_it(device: Device, to: str) -> None:
    source = model(CHAIN, w=W)
    (expected,) = device.run(ir.to_proto(source))
    ConvertPrecision(to=to).run(source, Context())
    (actual,) = device.run(ir.to_proto(source))
    assert actual.dtype == np.float32
    scale = np.abs(expected).max()
    np.testing.assert_allclose(actual, expected, atol=scale * (0.01 if to == "fp16" else 0.08))
    assert np.any(actual != expected)
