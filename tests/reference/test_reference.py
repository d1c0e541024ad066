"""The reference: every dtype in and out, nothing printed, errors in one line."""

from __future__ import annotations

import contextlib
import gc
import weakref
from dataclasses import asdict
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest
from onnxruntime.capi import onnxruntime_pybind11_state

import onnx_bridge
from onnx_bridge.core.errors import InputError
from onnx_bridge.reference import unknown_operators
from onnx_bridge.reference.comparison.compare import compare
from onnx_bridge.reference.onnxruntime_errors import OnnxRuntimeError
from onnx_bridge.reference.reference import Reference
from onnx_bridge.reference.session import Session

HEAD = '<ir_version: 10, opset_import: ["": 21, "custom": 1]>\n'


def proto(text: str) -> bytes:
    return onnx.parser.parse_model(HEAD + text).SerializeToString()


def run(text: str, **sample: Any) -> dict[str, Any]:
    return Reference(proto(text)).run(sample)


NUMPY = [
    "float32",
    "float64",
    "float16",
    "int8",
    "uint8",
    "int16",
    "uint16",
    "int32",
    "uint32",
    "int64",
    "uint64",
    "bool",
]
BEYOND = ["bfloat16", "float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz"]


@pytest.mark.parametrize("shape", [(3, 4), (), (0, 2)], ids=str)
@pytest.mark.parametrize("name", NUMPY + BEYOND)
def test_every_dtype_round_trips(name: str, shape: tuple[int, ...]) -> None:
    dtype = np.dtype(getattr(ml_dtypes, name) if name in BEYOND else name)
    element = ir.DataType.from_numpy(dtype)
    info = onnx.helper.make_tensor_value_info
    graph = onnx.helper.make_graph(
        [onnx.helper.make_node("Identity", ["x"], ["y"])],
        "g",
        [info("x", int(element), shape)],
        [info("y", int(element), shape)],
    )
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 21)], ir_version=10)
    x = np.arange(np.prod(shape, dtype=int)).reshape(shape).astype(dtype)

    y = Reference(model.SerializeToString()).run({"x": x})["y"]

    assert y.dtype == dtype
    assert y.shape == shape
    assert y.tobytes() == x.tobytes()


@pytest.mark.parametrize(("name", "opset"), [("int4", 21), ("uint4", 21), ("int2", 25), ("uint2", 25)])
def test_sub_byte_integers_are_packed_and_unpacked(name: str, opset: int) -> None:
    dtype = np.dtype(getattr(ml_dtypes, name))
    element = int(ir.DataType.from_numpy(dtype))
    info = onnx.helper.make_tensor_value_info
    graph = onnx.helper.make_graph(
        [
            onnx.helper.make_node("DequantizeLinear", ["x", "scale"], ["y"]),
            onnx.helper.make_node("QuantizeLinear", ["y", "scale"], ["z"], output_dtype=element),
        ],
        "g",
        [info("x", element, (3, 3))],
        [info("y", 1, (3, 3)), info("z", element, (3, 3))],
        [onnx.helper.make_tensor("scale", 1, (), [0.5])],
    )
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", opset)], ir_version=11)
    x = np.array([[1, 0, 1], [1, 1, 0], [0, 1, 1]]).astype(dtype)

    outputs = Reference(model.SerializeToString()).run({"x": x})

    np.testing.assert_array_equal(outputs["y"], x.astype(np.float32) * 0.5)
    assert outputs["z"].dtype == dtype
    np.testing.assert_array_equal(outputs["z"], x)


def test_arrays_that_are_not_contiguous_keep_their_values() -> None:
    for dtype in (np.float32, ml_dtypes.bfloat16):
        name = "float" if dtype is np.float32 else "bfloat16"
        x = np.arange(12).reshape(3, 4).astype(dtype).T[::2]
        y = run(f"g ({name}[N, M] x) => ({name}[N, M] y) {{ y = Identity(x) }}", x=x)["y"]
        np.testing.assert_array_equal(y, x)


def test_strings_round_trip() -> None:
    x = np.array(["a", "bé"])
    y = run("g (string[2] x) => (string[2] y) { y = Identity(x) }", x=x)["y"]
    assert y.tolist() == ["a", "bé"]


def test_outputs_come_by_name_in_the_order_of_the_model() -> None:
    reference = Reference(proto("g (float[2] x) => (float[2] b, float[2] a) { a = Neg(x) b = Abs(x) }"))
    outputs = reference.run({"x": np.array([-1, 2], np.float32)})
    assert list(outputs) == list(reference.output_names) == ["b", "a"]
    assert outputs["a"].tolist() == [1, -2]


def test_a_sequence_is_a_list() -> None:
    x = np.arange(6, dtype=np.float32).reshape(3, 2)
    outputs = run("g (float[3, 2] x) => (seq(float) s) { s = SplitToSequence <axis = 0> (x) }", x=x)
    assert list(outputs) == ["s"]
    assert isinstance(outputs["s"], list)
    np.testing.assert_array_equal(outputs["s"][1], x[1:2])


def test_an_optional_is_its_value_or_none() -> None:
    x = np.ones(2, np.float32)
    outputs = run("g (float[2] x) => (optional(float[2]) y) { y = Optional(x) }", x=x)
    np.testing.assert_array_equal(outputs["y"], x)
    text = (
        "g (optional(seq(float)) x) => (optional(seq(float)) y, bool b) { y = Identity(x) b = OptionalHasElement(x) }"
    )
    for value in (None, [], [x, x[:1]]):
        outputs = run(text, x=value)
        assert outputs["b"] == (value is not None)
        assert compare(outputs, {"y": value, "b": outputs["b"]}).passed


def test_an_optional_that_is_missing_beside_an_unusual_dtype() -> None:
    text = "g (optional(float[2]) x, float[2] z) => (bool b, bfloat16[2] y)"
    text += "{ b = OptionalHasElement(x) y = Cast <to = 16> (z) }"
    assert not run(text, x=None, z=np.ones(2, np.float32))["b"]


@pytest.mark.parametrize(
    ("onnx_name", "dtype"),
    [
        ("bfloat16", ml_dtypes.bfloat16),
        ("float8e4m3fn", ml_dtypes.float8_e4m3fn),
        ("float8e5m2", ml_dtypes.float8_e5m2),
        ("int4", ml_dtypes.int4),
        ("uint4", ml_dtypes.uint4),
    ],
)
def test_unusual_dtypes_beside_strings_and_sequences(tmp_path: Path, onnx_name: str, dtype: type) -> None:
    """ONNX Runtime's Python API cannot return both kinds from one session."""
    to = int(ir.DataType.from_numpy(np.dtype(dtype)))
    text = f"""g (float[16] x, string[2] t, seq(float[2]) s)
        => ({onnx_name}[16] y, string[2] u, seq(float[2]) r, float[16] w)
        {{ y = Cast <to = {to}> (x) u = Identity(t) r = Identity(s) w = Neg(x) }}"""
    sample = {"x": np.arange(16, dtype=np.float32) % 8, "t": np.array(["a", "b"]), "s": [np.ones(2, np.float32)]}
    (tmp_path / "m.onnx").write_bytes(proto(text))
    for source in (proto(text), tmp_path / "m.onnx", ir.from_proto(onnx.ModelProto.FromString(proto(text)))):
        outputs = Reference(source).run(sample)
        assert list(outputs) == ["y", "u", "r", "w"]
        assert outputs["y"].dtype == dtype
        np.testing.assert_array_equal(outputs["y"].astype(np.float32), sample["x"])
        assert outputs["u"].tolist() == ["a", "b"]
        np.testing.assert_array_equal(outputs["r"][0], sample["s"][0])


def test_maps_are_rejected() -> None:
    onnx_type = onnx.helper.make_map_type_proto(7, onnx.helper.make_tensor_type_proto(1, ()))
    graph = onnx.helper.make_graph(
        [onnx.helper.make_node("ZipMap", ["x"], ["s"], domain="ai.onnx.ml", classlabels_int64s=[0, 1])],
        "g",
        [onnx.helper.make_tensor_value_info("x", 1, (4, 2))],
        [onnx.helper.make_value_info("s", onnx.helper.make_sequence_type_proto(onnx_type))],
    )
    opsets = [onnx.helper.make_opsetid("", 18), onnx.helper.make_opsetid("ai.onnx.ml", 3)]
    model = onnx.helper.make_model(graph, opset_imports=opsets, ir_version=9)
    with pytest.raises(InputError, match="'s' is not a tensor but seq"):
        Reference(model.SerializeToString())


def test_a_path_is_read_with_its_external_data(tmp_path: Path) -> None:
    weights = np.arange(1000, dtype=np.float32)
    model = ir.from_onnx_text(
        HEAD + "g (float[1000] x) => (float[1000] y) { y = Add(x, w) }", [ir.tensor(weights, name="w")]
    )
    ir.save(model, tmp_path / "model.onnx", external_data="weights.bin")
    assert (tmp_path / "weights.bin").stat().st_size >= weights.nbytes
    x = np.ones(1000, np.float32)

    for source in (tmp_path / "model.onnx", model):
        np.testing.assert_array_equal(Reference(source).run({"x": x})["y"], weights + 1)


def test_temporary_files_of_a_model_in_memory_are_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    model = ir.from_onnx_text(HEAD + "g (float[2] x) => (float[2] y) { y = Neg(x) }")
    Reference(model).run({"x": np.ones(2, np.float32)})
    assert not list(tmp_path.iterdir())


def test_nothing_is_optimized() -> None:
    """A pair of casts through float16 loses digits; graph optimizations remove it."""
    x = np.array([1.0001], np.float32)
    y = run("g (float[1] x) => (float[1] y) { h = Cast <to = 10> (x) y = Cast <to = 1> (h) }", x=x)["y"]
    assert y.tolist() == [1.0]


ONE = {"x": np.ones((2, 3), np.float32)}


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("g (float[2] x) => (float[2] y) { y = Foo(x) }", "node y: .*Foo"),
        ("g (float[2] x) => (float[2] y) { y = custom.Foo(x) }", "node y: .*custom::Foo"),
        ("g (float[2] x) => (float[2] y) { y = Relu(q) }", "Node input 'q' is not a graph input"),
        (
            "g (int32[2] x) => (int32[2] y) { [wave] y = Sin(x) }",
            r"Type 'tensor\(int32\)' of input .* in node \(wave\)",
        ),
    ],
)
def test_load_errors_are_one_line(text: str, says: str) -> None:
    with pytest.raises(InputError, match=says) as caught:
        Reference(proto(text))
    assert "\n" not in str(caught.value)
    assert "ONNXRuntimeError" not in str(caught.value)


def test_missing_kernel() -> None:
    text = "g (int4[2] x) => (int4[2] y) { [same] y = Identity(x) }"
    with pytest.raises(InputError, match=r"implementation for Identity.* 'same'.*no reference for it"):
        Reference(proto(text))


@pytest.mark.parametrize(
    ("text", "sample", "says"),
    [
        (
            "g (float[N, M] x, int64[1] i) => (float[1, M] y) { [take] y = Gather(x, i) }",
            ONE | {"i": np.array([7])},
            r"Gather node 'take': indices element out of data bounds, idx=7",
        ),
        (
            "g (float[N, M] x, int64[2] s) => (float[A, B] y) { [flat] y = Reshape(x, s) }",
            ONE | {"s": np.array([4, 4])},
            r"Reshape node 'flat': input_shape_size == requested_shape_size was false.*requested shape:\{4,4\}",
        ),
        (
            "g (float[N, M] x, float[K, L] z) => (float[N, L] y) { [mul] y = MatMul(x, z) }",
            ONE | {"z": np.ones((4, 5), np.float32)},
            r"MatMul node 'mul': MatMul dimension mismatch",
        ),
        ("g (float[2, 4] x) => (float[2, 4] y) { y = Neg(x) }", ONE, r"invalid dimensions for input: x .*Expected: 4"),
        ("g (double[2, 3] x) => (double[2, 3] y) { y = Neg(x) }", ONE, r"tensor\(double\)"),
        ("g (float[2, 3] x, float[1] z) => (float[2, 3] y) { y = Add(x, z) }", ONE, r"Required inputs \(\['z'\]\)"),
    ],
    ids=["gather", "reshape", "matmul", "shape", "dtype", "missing"],
)
def test_a_failing_run_names_the_node(
    text: str, sample: dict[str, np.ndarray], says: str, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(InputError, match=says) as caught:
        Reference(proto(text)).run(sample)
    assert "\n" not in str(caught.value)
    assert "onnxruntime_src" not in str(caught.value)
    assert caught.value.hint
    assert capfd.readouterr() == ("", "")


def test_files_that_are_not_models(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="exist"):
        Reference(tmp_path / "missing.onnx")
    (tmp_path / "broken.onnx").write_bytes(b"not a model")
    with pytest.raises(InputError, match=r"Protobuf parsing failed.*is it an ONNX file") as caught:
        Reference(tmp_path / "broken.onnx")
    assert caught.value.where == str(tmp_path / "broken.onnx")


def test_missing_library_of_custom_operators(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="Failed to load library") as caught:
        Reference(proto("g (float[2] x) => (float[2] y) { y = Neg(x) }"), custom_op_libraries=[tmp_path / "no.so"])
    assert caught.value.where == str(tmp_path / "no.so")


UNKNOWN = """<ir_version: 8, opset_import: ["": {opset}, "com.acme": 1, "com.microsoft": 1, "mine": 1]>
g (float[2] x) => (float[2] y) {{ a = Neg(x) b = com.microsoft.Gelu(a) c = mine.Twice(b) [odd] y = {operator}(c) }}
<domain: "mine", opset_import: ["": {opset}]> Twice (t) => (u) {{ u = Add(t, t) }}"""


@pytest.mark.parametrize(
    ("opset", "operator", "expected"),
    [
        (17, "Reluu", {"node": "odd", "domain": "ai.onnx", "since": None, "meant": "did you mean Relu?"}),
        (17, "Gelu", {"node": "odd", "domain": "ai.onnx", "opset": 17, "since": 20}),
        (17, "com.acme.FancyAct", {"node": "odd", "operator": "FancyAct", "domain": "com.acme", "newest": None}),
        (99, "Relu", {"domain": "ai.onnx", "opset": 99, "since": 1}),
    ],
)
def test_operators_that_onnxruntime_does_not_know(opset: int, operator: str, expected: dict[str, Any]) -> None:
    text = UNKNOWN.format(opset=opset, operator=operator)
    for given in (onnx.parser.parse_model(text).SerializeToString(), ir.from_onnx_text(text)):
        with pytest.raises(OnnxRuntimeError) as caught:
            Reference(given)
        assert caught.value.unknown is not None
        assert asdict(caught.value.unknown).items() >= expected.items()
        assert caught.value.hint


def test_unknown_operators_where_onnxruntime_does_not_list_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(onnxruntime_pybind11_state, "get_all_operator_schema")
    monkeypatch.setattr(unknown_operators, "_operators", unknown_operators._operators.__wrapped__)
    refused = OnnxRuntimeError("Fatal error: com.acme:FancyAct(-1) is not a registered function/op", where="it")
    model = ir.from_onnx_text(UNKNOWN.format(opset=17, operator="com.acme.FancyAct"))
    found = unknown_operators.explained(refused, model).unknown
    assert found is not None
    assert (found.node, found.domain) == ("odd", "com.acme")
    model.graph.node(-1).domain, model.graph.node(-1).op_type = "", "Reluu"
    refused = OnnxRuntimeError("No Op registered for Reluu with domain_version of 17", where="it")
    found = unknown_operators.explained(refused, model).unknown
    assert found is not None
    assert (found.node, found.domain, found.meant) == ("odd", "ai.onnx", "did you mean Relu?")


@pytest.mark.parametrize(
    "message",
    [
        "std::bad_alloc",
        "Failed to allocate memory for requested buffer",
        "pthread_create failed, error code: 12 error msg: Cannot allocate memory",
    ],
)
def test_what_there_is_no_memory_for(message: str) -> None:
    with pytest.raises(MemoryError):
        OnnxRuntimeError(message, where="it")


def test_dtype_unknown_to_onnx() -> None:
    with pytest.raises(InputError, match="no element type for timedelta64"):
        run("g (float[1] x) => (float[1] y) { y = Neg(x) }", x=np.zeros(1, "m8[s]"))


def test_a_false_shape_of_an_intermediate_value_does_not_stop_the_reference() -> None:
    """ONNX Runtime would write it to the memory of a value with the shape that it declares."""
    text = """decoder (float[N] x, float[M] past) => (float[K] y) <float[N] repeated> {
        negated = Neg(x)
        absolute = Abs(negated)
        repeated = Concat<axis = 0>(absolute, past)
        y = Exp(repeated)
    }"""
    x, past = np.arange(2, dtype=np.float32), np.arange(3, dtype=np.float32)
    reference = Reference(proto(text))
    for _ in range(2):
        found = reference.run({"x": x, "past": past})["y"]
        np.testing.assert_allclose(found, np.exp(np.concatenate([x, past])), rtol=1e-6)


def test_a_false_shape_that_a_branch_sees_does_not_stop_the_reference() -> None:
    """ONNX Runtime gives the result of a branch memory of the size that follows from what is declared."""
    text = """g (bool c, float[2, 3] x) => (y) <float[2, 5] s, float[2, 5] u> {
        t = Transpose(x) s = MatMul(x, t) u = Relu(s)
        y = If(c) <then_branch = a () => (p) { p = Relu(u) }, else_branch = b () => (q) { q = Neg(u) }> }"""
    found = Reference(proto(text)).run({"c": np.array(True), "x": np.ones((2, 3), np.float32)})["y"]
    assert found.tolist() == [[3, 3], [3, 3]]


@pytest.mark.parametrize("hints", ["float[7] h, float[7] r", "int64[2, 3] h", "float[9] w"])
def test_false_hints_for_which_the_model_is_refused(hints: str, tmp_path: Path) -> None:
    shown, hidden = (f", {hints}", "") if hints.endswith("w") else ("", f"{hints}, ")
    text = f"""g (float[2, 3] x{shown}) => (float[2, 3] y) <{hidden}float[3] w = {{1, 2, 3}}> {{
        h = Neg(x) r = Add(h, w) y = Mul(r, w) }}"""
    (tmp_path / "m.onnx").write_bytes(proto(text))
    with pytest.raises(onnxruntime_pybind11_state.Fail):
        onnxruntime.InferenceSession(tmp_path / "m.onnx")
    found = Reference(tmp_path / "m.onnx").run({"x": np.ones((2, 3), np.float32)})["y"]
    assert found.tolist() == [[0, 2, 6], [0, 2, 6]]


def test_a_session_that_failed_is_freed_at_once() -> None:
    """Garbage is collected rarely in its process, and a session holds the weights of its model."""
    session = Session(proto("g (float[4] x, int64[1] i) => (float[1] y) { y = Gather(x, i) }"))
    freed = weakref.ref(session)
    gc.disable()
    try:
        for _ in range(2):
            with contextlib.suppress(InputError):
                session.run({"x": np.ones(4, np.float32), "i": np.array([9])})
        del session
        assert freed() is None
    finally:
        gc.enable()


def test_names_that_two_nodes_have(tmp_path: Path) -> None:
    """ONNX Runtime refuses them; names have no meaning."""
    text = """<ir_version: 8, opset_import: ["": 17]> g (float[2] x, bool c) => (float[2] y) {
        [n] a = If (c) <then_branch = t () => (float[2] b) { [m] k = Neg(x) [m] b = Exp(k) },
            else_branch = e () => (float[2] d) { [m] d = Abs(x) }>
        [n] y = Sqrt(a) }"""
    onnx.save(onnx.parser.parse_model(text), tmp_path / "m.onnx")
    x = np.array([-1, 4], np.float32)
    result = Reference(tmp_path / "m.onnx").run({"x": x, "c": np.array(False)})["y"]
    np.testing.assert_array_equal(result, [1, 2])
    cleaned = onnx_bridge.clean(tmp_path / "m.onnx", pipeline="none").model
    np.testing.assert_allclose(Reference(cleaned).run({"x": x, "c": np.array(True)})["y"], np.exp(-x / 2), 1e-6)
