"""What a model declares of its values, converted: inference decides, and the manifest says what is so."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import onnx_bridge
from onnx_bridge.bundle.bundle import Bundle
from onnx_bridge.migraphx.runtime import Runtime
from passes.rewriting.base import Proof
from tests.passes.harness import feeds, run
from tests.passes.shapes.test_declarations import GROWING, TURNS

WRONG = "declares types or shapes that are not so"


def proto(text: str, **constants: Any) -> onnx.ModelProto:
    parsed = onnx.parser.parse_model(f'<ir_version: 9, opset_import: ["": 17, "com.microsoft": 1]> g {text}')
    parsed.graph.initializer.extend(
        onnx.numpy_helper.from_array(np.asarray(array), name) for name, array in constants.items()
    )
    return parsed


def converted(model: onnx.ModelProto, folder: Path, inputs: dict[str, Any] | None = None, **options: Any) -> Bundle:
    """The bundle of a model, whose outputs are those of ONNX Runtime in numbers and shapes."""
    onnx.save(model, folder / "model.onnx")
    bundle = onnx_bridge.convert(folder / "model.onnx", folder / "bundle", **options)
    given = feeds(model) if inputs is None else inputs
    for name, array in run(model, given).items():
        found = bundle(given)[name]
        assert isinstance(found, np.ndarray)
        assert found.shape == array.shape
        np.testing.assert_allclose(found, array, rtol=1e-4, atol=1e-5)
    return bundle


@pytest.mark.parametrize("pipeline", ["default", "none"])
def test_a_loop_that_appends_rows(runtime: Runtime, tmp_path: Path, pipeline: str) -> None:
    model = proto(GROWING.format(out="n,4", carried="0,4", result="1,4"))
    converted(model, tmp_path, TURNS, pipeline=pipeline)


@pytest.mark.parametrize("declared", ["[3,4,1,6]", "[1,4,6]", "[3,4,height]", "[]", "[7]", "[0,4,6]"])
def test_outputs_that_are_declared_wrongly(runtime: Runtime, tmp_path: Path, declared: str) -> None:
    model = proto(f"(float[3,4,5] x) => (float{declared} y, float[7] z) {{ y = MatMul(x, w) z = ReduceSum(x) }}", w=W)
    bundle = converted(model, tmp_path)
    assert bundle.wholly_on_migraphx
    assert bundle.proof.level is Proof.RUN
    assert [each.shape for each in bundle.outputs] == [(3, 4, 6), (1, 1, 1)]
    assert sum(WRONG in note for note in bundle.manifest.notes) == 1


HINTS = {  # what a body, an intermediate value and an output declare of [n, 3, 5]
    "values": "m = MatMul(x, w) y = Softmax(m)",
    "If": """s = ReduceMax <keepdims = 0> (x) c = Greater(s, zero) m = If (c) <
        then_branch = yes () => (float DECLARED a) { a = MatMul(x, w) },
        else_branch = no () => (float DECLARED b) { b = MatMul(x, v) }> y = Softmax(m)""",
    "Loop": """r = MatMul(x, w) m = Loop (turns, , r) <
        body = b (int64 i, bool c, float v) => (bool d, float DECLARED e) {
            d = Identity(c) e = Add(v, r) }> y = Softmax(m)""",
    "SequenceMap": """r = MatMul(x, w) s = SequenceConstruct(r) t = SequenceMap (s) <
        body = b (float DECLARED e) => (float DECLARED f) { f = Relu(e) }> y = ConcatFromSequence <axis = 0> (t)""",
}


@pytest.mark.parametrize("declared", ["", "[5]", "[n,n,n]"])
@pytest.mark.parametrize("name", HINTS)
def test_hints_in_bodies(runtime: Runtime, tmp_path: Path, name: str, declared: str) -> None:
    nodes = HINTS[name].replace(" DECLARED", declared)
    inner = f"<float{declared} m>" if name == "values" and declared != "[5]" else ""
    model = proto(f"(float[n,3,5] x) => (float{declared} y) {inner} {{ {nodes} }}", w=V, v=V, zero=ZERO, turns=TWO)
    onnx.save(model, tmp_path / "m.onnx")
    bundle = onnx_bridge.convert(tmp_path / "m.onnx", tmp_path / "out", dims={"n": 2}, target="ref")
    assert bundle.wholly_on_migraphx
    assert bundle.proof.level is Proof.RUN, bundle.proof
    assert len(bundle.outputs[0].shape or ()) == 3


V, ZERO, TWO = np.linspace(-1, 1, 25, dtype=np.float32).reshape(5, 5), np.float32(0), np.int64(2)
W = np.linspace(-1, 1, 30, dtype=np.float32).reshape(5, 6)


def test_names_of_sizes_that_are_used_twice(runtime: Runtime, tmp_path: Path) -> None:
    """Segformer's logits have the names of its input's sizes, and a quarter of the sizes."""
    text = """(float[batch,3,height,width] x) => (float[batch,3,height,width] y) {
        y = MaxPool<kernel_shape = [4, 4], strides = [4, 4]>(x) }"""
    onnx.save(proto(text), tmp_path / "model.onnx")
    bundle = onnx_bridge.convert(tmp_path / "model.onnx", tmp_path / "bundle", dims={"height": 8, "width": 16})
    assert bundle.wholly_on_migraphx
    assert bundle.outputs[0].shape == (1, 3, 2, 4)
    assert sum(WRONG in note for note in bundle.manifest.notes) == 1


SCALARS = {
    "a dot product": "(float[5] x, float[5] z) => (float[] y) { y = MatMul(x, z) }",
    "declared with an axis": "(float[5] x, float[5] z) => (float[1] y) { y = MatMul(x, z) }",
    "a reduction": "(float[2,5] x) => (y) { y = ReduceL1<keepdims = 0>(x) }",
    "an equation": '(float[5] x, float[5] z) => (float[] y) { y = Einsum<equation = "i,i->">(x, z) }',
    "a scale": "(float[5] x) => (uint8[5] q, float[] s, uint8[] zero) { q, s, zero = DynamicQuantizeLinear(x) }",
    "a foreign operator": "(float[5] x, float[5] z) => (y) { y = com.microsoft.FusedMatMul(x, z) }",
    "behind two of them": """(float[5] x, float[5] z) => (y) {
        a = com.microsoft.FusedMatMul(x, z) b = Tanh(a) c = com.microsoft.Gelu(b) y = Neg(c) }""",
    "between partitions": """(float[5] x, float[5] z) => (float[] y, int64[1,k] i) {
        d = MatMul(x, z) e = Tanh(d) p = Mul(x, e) i = NonZero(p) f = Cast<to = 1>(i) r = ReduceMax<keepdims = 0>(f)
        m = Mul(e, r) y = Exp(m) }""",
}


@pytest.mark.parametrize("name", SCALARS)
def test_scalars(runtime: Runtime, tmp_path: Path, name: str) -> None:
    bundle = converted(proto(SCALARS[name]), tmp_path)
    assert () in [each.shape for each in bundle.outputs]
    assert onnx_bridge.check(tmp_path / "bundle").passed


def test_sizes_that_a_quantizer_left_open(runtime: Runtime, tmp_path: Path) -> None:
    """A value_info with an unknown size must not hide what is behind a foreign operator."""
    model = proto(
        """(float[3,2,1,8] x) => (y) {
            a = com.microsoft.QuickGelu(x) b = Transpose<perm = [1, 0, 2, 3]>(a) c = MatMul(b, w) y = Relu(c) }""",
        w=np.linspace(-1, 1, 32, dtype=np.float32).reshape(8, 4),
    )
    for name, shape in {"a": ["", 2, 1, 8], "b": [2, "", 1, 8], "c": ["", "", 1, 4]}.items():
        model.graph.value_info.append(onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, shape))
    bundle = converted(model, tmp_path)
    assert bundle.wholly_on_migraphx
    assert bundle.outputs[0].shape == (2, 3, 1, 4)


@pytest.mark.parametrize("declared", ["float[5,1,4] d", "float[6,4] d", "float[5,4] d", "float[a,b] d"])
def test_a_run_decides_where_inference_cannot(runtime: Runtime, tmp_path: Path, declared: str) -> None:
    """ONNX Runtime runs CDist, and infers no shape of it."""
    model = proto(
        f"""(float[5,3] x, float[4,3] z) => (y, int64[2] k) <{declared}> {{
            d = com.microsoft.CDist<metric = "euclidean">(x, z) e = Neg(d) y = MatMul(e, v) k = Shape(d) }}""",
        v=np.linspace(-1, 1, 8, dtype=np.float32).reshape(4, 2),
    )
    bundle = converted(model, tmp_path)
    assert [each.shape for each in bundle.outputs] == [(5, 2), (2,)]
    assert bundle.wholly_on_migraphx
    assert sum(WRONG in note for note in bundle.manifest.notes) == (declared not in ("float[5,4] d", "float[a,b] d"))


def test_what_depends_on_the_data_is_not_taken_from_a_run(runtime: Runtime, tmp_path: Path) -> None:
    model = proto("(float[4,4] x) => (int64[3,16] i) { a = Relu(x) i = NonZero(a) }")
    bundle = converted(model, tmp_path)
    assert bundle.outputs[0].shape == (2, None)
