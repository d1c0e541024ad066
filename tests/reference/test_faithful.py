"""The reference computes what the model says, also where the model lets ONNX Runtime round the inputs of products."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper, numpy_helper

from onnx_bridge.reference.faithful import faithful
from onnx_bridge.reference.reference import Reference

ROWS, COLUMNS, BLOCK = 64, 16, 32


def model(level: int | None, *, nested: bool = False) -> onnx.ModelProto:
    """x · dequantized(w), of 4 bits each; as a branch of an If where it is nested."""
    random = np.random.default_rng(0)
    packed = random.integers(0, 256, (COLUMNS, ROWS // BLOCK, BLOCK // 2), np.uint8)
    scales = random.uniform(0.01, 0.1, (COLUMNS, ROWS // BLOCK)).astype(np.float32)
    attributes: dict[str, Any] = {"K": ROWS, "N": COLUMNS, "bits": 4, "block_size": BLOCK}
    attributes |= {} if level is None else {"accuracy_level": level}
    product = helper.make_node("MatMulNBits", ["x", "w", "s"], ["p"], domain="com.microsoft", **attributes)
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, COLUMNS])
    nodes = [product, helper.make_node("Identity", ["p"], ["y"])]
    if nested:
        p = helper.make_tensor_value_info("p", TensorProto.FLOAT, None)
        n = helper.make_tensor_value_info("n", TensorProto.FLOAT, None)
        zero = helper.make_graph([helper.make_node("Sub", ["y0", "y0"], ["n"])], "no", [], [n])
        then = helper.make_graph([product], "then", [], [p])
        nodes = [
            helper.make_node("Slice", ["x", "from", "to", "axis"], ["y0"]),
            helper.make_node("If", ["yes"], ["y"], then_branch=then, else_branch=zero),
        ]
    constants = {
        "w": packed.reshape(COLUMNS, ROWS // BLOCK, BLOCK // 2),
        "s": scales.reshape(-1),
        "yes": np.array(True),
    }
    constants |= {"from": np.array([0]), "to": np.array([COLUMNS]), "axis": np.array([1])}
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, ROWS])
    weights = [numpy_helper.from_array(array, name) for name, array in constants.items()]
    graph = helper.make_graph(nodes, "nbits", [x], [y], weights)
    imports = [helper.make_opsetid("", 20), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, ir_version=10, opset_imports=imports)


SAMPLE = {"x": np.random.default_rng(1).normal(size=(1, ROWS)).astype(np.float32)}


@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.parametrize("given", ["file", "memory", "bytes"])
def test_activations_are_not_quantized(given: str, nested: bool, tmp_path: Path) -> None:
    (right,) = Reference(model(None, nested=nested).SerializeToString()).run(SAMPLE).values()
    written = model(4, nested=nested)
    source: Any = written.SerializeToString()
    if given == "file":
        source = tmp_path / "m.onnx"
        onnx.save(written, source)
    elif given == "memory":
        source = ir.from_proto(written)
    reference = Reference(source)
    (found,) = reference.run(SAMPLE).values()
    np.testing.assert_array_equal(found, right)
    assert any("accuracy_level" in note for note in reference.notes)
    if given == "memory":  # the caller's model is left as it is
        levels = [node.attributes.get_int("accuracy_level") for node in source.graph.all_nodes() if node.domain]
        assert levels == [4]


@pytest.mark.parametrize("level", [None, 0, 1])
def test_what_is_computed_in_float32_is_left_alone(level: int | None) -> None:
    reference = Reference(model(level).SerializeToString())
    assert reference.notes == ()
    assert np.isfinite(reference.run(SAMPLE)["y"]).all()


@pytest.mark.parametrize(("dtype", "opset"), [("float32", 17), ("bfloat16", 17), ("float32", 11), ("float32", 8)])
@pytest.mark.parametrize(("totals", "left"), [([5, 3], [5, 3]), ([9, 8], [4, 8]), ([20, 13], [5, 8])])
def test_rows_of_a_cache_that_hold_no_position_are_zero(
    totals: list[int], left: list[int], dtype: str, opset: int
) -> None:
    heads = {"num_heads": 1, "kv_num_heads": 1, "local_window_size": 4, "sliding_window_cache": 1}
    names = ["q", "k", "v", "past_key", "past_value", "ends", "total"]
    outputs = ["y", "key", "value"]
    node = helper.make_node("GroupQueryAttention", names, outputs, domain="com.microsoft", **heads)
    random = np.random.default_rng(0)
    kind, number = (
        np.dtype(getattr(ml_dtypes, dtype, dtype)),
        {"float32": TensorProto.FLOAT, "bfloat16": TensorProto.BFLOAT16}[dtype],
    )
    given: dict[str, Any] = {name: random.normal(size=(2, 1, 8)).astype(kind) for name in names[:3]}
    given |= {name: random.normal(size=(2, 1, 8, 8)).astype(kind) for name in names[3:5]}
    given |= {"ends": np.array(totals, np.int32) - 1, "total": np.array(max(totals), np.int32)}
    kinds = {"ends": TensorProto.INT32, "total": TensorProto.INT32}
    inputs = [
        helper.make_tensor_value_info(name, kinds.get(name, number), array.shape) for name, array in given.items()
    ]
    results = [helper.make_tensor_value_info(name, number, None) for name in outputs]
    imports = [helper.make_opsetid("", opset), helper.make_opsetid("com.microsoft", 1)]
    proto = helper.make_model(helper.make_graph([node], "g", inputs, results), ir_version=8, opset_imports=imports)
    found = Reference(proto.SerializeToString()).run(given)
    assert list(found) == outputs
    for name in outputs[1:]:
        cache = np.asarray(found[name])
        for sample, rows in enumerate(left):
            assert cache[sample, :, :rows].any(-1).all()
            assert not cache[sample, :, rows:].any()


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("given", ["q_norm", "k_norm", "both"])
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_normalized_heads(dtype: Any, given: str, packed: bool) -> None:
    """ONNX Runtime's CPU has no kernel for what builders of language models write for GPUs."""
    random, heads, size = np.random.default_rng(0), (4, 2, 2), 16
    q, k, v = (random.normal(size=(1, 3, count * size)).astype(dtype) for count in heads)
    weights = {
        name: random.uniform(0.5, 2, size).astype(dtype) for name in ("q_norm", "k_norm") if given in (name, "both")
    }

    def run(arrays: dict[str, Any], names: list[str]) -> Any:
        kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
        options = {"num_heads": 4, "kv_num_heads": 2, "qk_norm_epsilon": 1e-3}
        node = helper.make_node("GroupQueryAttention", names, ["y"], domain="com.microsoft", **options)
        kinds = {"ends": TensorProto.INT32, "total": TensorProto.INT32}
        arrays |= {"ends": np.array([2], np.int32), "total": np.array(3, np.int32)}
        inputs = [helper.make_tensor_value_info(n, kinds.get(n, kind), array.shape) for n, array in arrays.items()]
        graph = helper.make_graph([node], "g", inputs, [helper.make_tensor_value_info("y", kind, None)])
        imports = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
        proto = helper.make_model(graph, ir_version=8, opset_imports=imports)
        return Reference(proto.SerializeToString()).run(arrays)["y"]

    def normal(x: Any, name: str) -> Any:
        parts = x.reshape(1, 3, -1, size).astype(np.float32)
        parts = parts / np.sqrt((parts**2).mean(-1, keepdims=True) + 1e-3)
        return (parts * weights[name]).astype(dtype).reshape(x.shape) if name in weights else x

    names = ["q", "k", "v", "", "", "ends", "total"]
    expected = run({"q": normal(q, "q_norm"), "k": normal(k, "k_norm"), "v": v}, names)
    arrays = {"q": np.concatenate([q, k, v], 2)} if packed else {"q": q, "k": k, "v": v}
    names = [*(name if name in arrays else "" for name in names[:5]), *names[5:], *[""] * 7]
    found = run({**arrays, **weights}, [*names, *(name if name in weights else "" for name in ("q_norm", "k_norm"))])
    np.testing.assert_allclose(found, expected, atol=1e-5 if dtype == np.float32 else 1e-2)


@pytest.mark.parametrize("given", ["file", "memory", "bytes"])
def test_products_of_bytes_do_not_saturate(given: str, tmp_path: Path) -> None:
    """Some processors have no instructions to add up products of uint8 and int8 in 32 bits."""
    text = '<ir_version: 9, opset_import: ["": 20]> g (uint8[3,64] a, int8[64,4] b) => (int32[3,4] y)'
    proto = onnx.parser.parse_model(text + "{ y = MatMulInteger(a, b) }")
    (tmp_path / "m.onnx").write_bytes(proto.SerializeToString())
    source: Any = {"file": tmp_path / "m.onnx", "memory": ir.from_proto(proto), "bytes": proto.SerializeToString()}
    sample = {"a": np.full((3, 64), 255, np.uint8), "b": np.full((64, 4), 127, np.int8)}
    (found,) = Reference(source[given]).run(sample).values()
    np.testing.assert_array_equal(found, np.full((3, 4), 64 * 255 * 127, np.int32))


@pytest.mark.parametrize("length", [256, 400])
@pytest.mark.parametrize("given", ["file", "memory", "bytes"])
@pytest.mark.parametrize("form", ["output", "inside", "dft"])
def test_a_fourier_transform_of_any_length(given: str, form: str, length: int, tmp_path: Path) -> None:
    """ONNX Runtime's is fifty times as coarse if the length is no power of two."""
    body = (
        f"step = Constant<value = int64 {{160}}> () n = Constant<value = int64 {{{length}}}> () y = STFT(x, step, , n)"
    )
    if form == "dft":
        body = f"n = Constant<value = int64 {{{length}}}> () y = DFT<axis = 1>(x, n)"
    body = body.replace("y =", "t =") + " y = Identity(t)" if form == "inside" else body
    text = f'<ir_version: 9, opset_import: ["": 17]> g (float[1, 1600, 1] x) => (float[a, b, c] y) {{ {body} }}'
    written = onnx.parser.parse_model(text.replace("[a, b, c]", "[a, b, c]" if form == "dft" else "[a, b, c, d]"))
    source: Any = {"bytes": written.SerializeToString(), "memory": ir.from_proto(written)}.get(
        given, tmp_path / "m.onnx"
    )
    onnx.save(written, tmp_path / "m.onnx")
    x = np.random.default_rng(0).uniform(-1, 1, (1, 1600, 1)).astype(np.float32)
    y = np.asarray(Reference(source).run({"x": x})["y"]).reshape(-1, length if form == "dft" else length // 2 + 1, 2)
    expected = np.fft.fft(x[0, :length, 0]) if form == "dft" else np.fft.rfft(x[0, :length, 0])
    assert y.dtype == np.float32
    np.testing.assert_allclose(y[0] @ [1, 1j], expected, atol=2e-5)


def test_a_transform_keeps_the_name_and_the_type_of_its_result() -> None:
    text = """<ir_version: 9, opset_import: ["": 17]> g (float[1, 400, 1] x) => (float[1, 400, 2] z) {
        y = DFT<axis = 1>(x) z = Neg(y) }"""
    model = ir.from_proto(onnx.parser.parse_model(text))
    for value in (*model.graph.outputs, *(value for node in model.graph for value in node.outputs)):
        value.dtype = ir.DataType.FLOAT
    widened, _ = faithful(model)
    assert isinstance(widened, ir.Model)
    for each in (model, widened):
        assert {value.name: value.dtype for node in each.graph for value in node.outputs}["y"] == ir.DataType.FLOAT
