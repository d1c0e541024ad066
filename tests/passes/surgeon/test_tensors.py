"""Weights in scripts: memory, constant folding and dtypes."""

from __future__ import annotations

from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
import onnx_graphsurgeon as gs
import onnx_ir as ir
import pytest

from tests.passes import harness
from tests.passes.surgeon.scripts import (
    SMALL,
    A,
    W,
    build,
    outputs,
    rename,
    replace_relu,
    run,
    touch,
)


class Untouchable(ir.Tensor):
    """A weight that is larger than 2 GB, and that must not be read."""

    def __init__(self) -> None:
        super().__init__(np.broadcast_to(np.float32(0), (30_000, 30_000)), name="w")

    def numpy(self) -> np.ndarray:
        raise AssertionError

    def tobytes(self) -> bytes:
        raise AssertionError


def test_weights_are_not_read_and_may_be_larger_than_2_gb() -> None:
    model = build("(float[2, 30000] x) => (float[2, 30000] y) { a = MatMul(x, v) y = Relu(a) }")
    weight = Untouchable()
    assert weight.nbytes > 2**31
    kind, shape = ir.TensorType(ir.DataType.FLOAT), ir.Shape(weight.shape)
    value = ir.Value(name="w", type=kind, shape=shape, const_value=weight)
    model.graph.initializers.add(value)
    model.graph[0].replace_input_with(1, value)

    def script(graph: gs.Graph) -> None:
        constant = graph.tensors()["w"]
        assert (constant.shape, constant.dtype) == ([30_000, 30_000], np.float32)
        replace_relu(graph)

    assert run(script, model).modified
    assert model.graph.initializers["w"].const_value is weight


def test_external_weights_from_another_working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ir.save(build(SMALL, w=W), tmp_path / "m.onnx", external_data="m.data", size_threshold_bytes=0)
    model = ir.load(tmp_path / "m.onnx")
    tensor = model.graph.initializers["w"].const_value
    assert isinstance(tensor, ir.ExternalTensor)
    monkeypatch.chdir("/")
    seen = []

    def script(graph: gs.Graph) -> None:
        seen.append(graph.tensors()["w"].values.copy())
        rename(graph)

    run(script, model)
    np.testing.assert_array_equal(seen[0], W)
    assert model.graph.initializers["w"].const_value is tensor
    ir.save(model, tmp_path / "again.onnx")


def test_constants_that_were_read_but_not_changed_are_the_same_tensors() -> None:
    model = build("(float[2, 3] x) => (float[2, 3] y) { a = Mul(x, w) b = Add(a, v) y = Sub(b, u) }", w=W, v=W, u=W)
    before = {name: value.const_value for name, value in model.graph.initializers.items()}

    def script(graph: gs.Graph) -> None:
        touch(graph)
        tensors = graph.tensors()
        tensors["v"].values *= 2
        tensors["u"].values = tensors["u"].values.astype(np.float32).copy()

    result = run(script, model)
    assert result.rewrites[0].before == ()
    after = {name: value.const_value for name, value in model.graph.initializers.items()}
    assert after["w"] is before["w"]
    np.testing.assert_array_equal(after["v"].numpy(), W * 2)
    np.testing.assert_array_equal(before["v"].numpy(), W)


# fold_constants


def fold(graph: gs.Graph) -> None:
    graph.fold_constants().cleanup().toposort()


def folded(graph: str, opset: int = 20, **constants: harness.Array) -> tuple[ir.Model, list[harness.Array]]:
    """A model after ``graph.fold_constants()``, and its outputs, which must not change."""
    model = build(graph, opset, **constants)
    before = outputs(model)
    run(fold, model)
    after = outputs(model)
    for old, new in zip(before, after, strict=True):
        assert old.dtype == new.dtype
        np.testing.assert_array_equal(old, new)
    return model, after


def test_folding_a_part_of_a_shape() -> None:
    model, [y] = folded(
        "(float[2, 3, 5] x) => (int64[1] y) { s = Shape<start=1, end=2>(x) y = Add(s, one) }", one=A([1])
    )
    assert y.tolist() == [4]
    assert [node.op_type for node in model.graph] == ["Identity"]


def test_folding_a_cast_to_float_and_back() -> None:
    _, [y] = folded(
        "(float[5, 3] x) => (int64[2] y) { s = Shape(x) f = Cast<to=1>(s) h = Mul(f, half) y = Cast<to=7>(h) }",
        half=A(0.5, np.float32),
    )
    assert y.tolist() == [2, 1]


def test_folding_a_constant_that_is_a_float() -> None:
    model, _ = folded("(float[2] x) => (float[2] y) { c = Constant<value_float=0.5>() y = Mul(x, c) }")
    assert model.graph.initializers["c"].dtype == ir.DataType.FLOAT


def test_folding_keeps_random_and_quantized_constants() -> None:
    model = build(
        """(float[2] x) => (float[2] y) {
            r = RandomNormal<shape=[2], seed=1.0>() d = DequantizeLinear(q, s) a = Add(x, r) y = Add(a, d)
        }""",
        q=A([1, 2], np.int8),
        s=A(0.5, np.float32),
    )
    assert not run(fold, model).modified


def test_a_node_that_cannot_be_computed_does_not_prevent_folding_others() -> None:
    model = build(
        "(float[2] x) => (float[2] y, int64 z) { z = Div(one, zero) c = Mul(w, w) y = Mul(x, c) }",
        one=A(1),
        zero=A(0),
        w=A([2, 3], np.float32),
    )
    run(fold, model)
    assert sorted(harness.operators(model)) == ["Div", "Mul"]
    np.testing.assert_array_equal(model.graph.initializers["c"].const_value.numpy(), [4, 9])


@pytest.mark.slow
def test_folding_a_long_chain() -> None:
    chain = " ".join(f"c{index + 1} = Neg(c{index})" for index in range(1500))
    model = build(f"(float[2] x) => (float[2] y) {{ {chain} y = Mul(x, c1500) }}", c0=A([2, 3], np.float32))
    run(fold, model)
    assert harness.operators(model) == ["Mul"]


def test_options_of_folding() -> None:
    graph = "(float[2] x) => (float[2] y) { a = Neg(w) b = Exp(w) c = Add(a, b) d = Mul(x, c) y = Mul(d, a) }"
    model = build(graph, w=A([2, 3], np.float32))
    run(lambda each: each.fold_constants(should_exclude_node=lambda node: node.op == "Exp").cleanup(), model)
    assert harness.operators(model) == ["Exp", "Add", "Mul", "Mul"]
    assert not any(node.domain for node in model.graph)
    large = build("(float[4] x) => (float[4] y) { c = Expand(w, s) y = Mul(x, c) }", w=A(2, np.float32), s=A([4]))
    assert not run(lambda each: each.fold_constants(size_threshold=8).cleanup(), large).modified


# dtypes


@pytest.mark.parametrize(
    "dtype",
    [
        ml_dtypes.float8_e4m3fnuz,
        ml_dtypes.float8_e5m2fnuz,
        ml_dtypes.float8_e4m3fn,
        ml_dtypes.float8_e5m2,
        ml_dtypes.float8_e8m0fnu,
        ml_dtypes.bfloat16,
        ml_dtypes.int4,
        ml_dtypes.uint4,
        ml_dtypes.float4_e2m1fn,
        ml_dtypes.int2,
        np.float16,
        np.complex64,
    ],
)
def test_constants_of_any_dtype_survive_being_read_and_changed(dtype: type) -> None:
    other = 2 if dtype is ml_dtypes.float8_e8m0fnu else 0  # which has no zero
    array = A([1, other, 1, 1, 1]).astype(dtype)
    tensor = ir.Tensor(array, name="w")
    model = build("(float[2] x) => (float[2] y) { c = Identity(w) y = Neg(x) }")
    kind = ir.TensorType(tensor.dtype)
    value = ir.Value(name="w", type=kind, shape=ir.Shape([5]), const_value=tensor)
    model.graph.initializers.add(value)
    model.graph[0].replace_input_with(0, value)

    def read(graph: gs.Graph) -> None:
        touch(graph)
        rename(graph)

    def change(graph: gs.Graph) -> None:
        constant = graph.tensors()["w"]
        constant.values[0] = other

    run(read, model)
    assert model.graph.initializers["w"].const_value is tensor
    run(change, model)
    after = model.graph.initializers["w"].const_value
    assert after.dtype == tensor.dtype
    assert after.numpy().astype(np.complex64).tolist() == [other, other, 1, 1, 1]
    ir.to_proto(model).SerializeToString()


def test_export_dtype() -> None:
    model = build("(float[2] x) => (float[2] y) { y = Neg(x) }")

    def script(graph: gs.Graph) -> None:
        made = gs.Constant("k", A([1.5, 2], np.float32))
        made._export_dtype = onnx.TensorProto.BFLOAT16
        graph.nodes.append(gs.Node("Cast", "c", {"to": np.float32}, [made], [gs.Variable("unused")]))

    run(script, model)
    assert model.graph.initializers["k"].const_value.dtype == ir.DataType.BFLOAT16
    assert model.graph.node("c").attributes["to"].as_int() == 1
