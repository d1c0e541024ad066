"""Inputs become constants: from the specification, from a file, and from their defaults."""

from __future__ import annotations

import json
import os
from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
import onnx_ir as ir
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from passes.core.errors import InputError
from passes.rewriting.base import Budget, Context
from passes.specialize.freeze_inputs import FreezeInputs
from tests.passes import harness

TEXT = """(float[N, 3] x, int64[1] n, bool flag, float16[2] h) => (float[M, 3] y, float16[2] z) {
    t = Tile(x, r)
    u = Neg(t)
    y = Where(flag, t, u)
    z = Abs(h)
}"""
R = np.array([1, 1], np.int64)
FEEDS = {
    "x": np.arange(6, dtype=np.float32).reshape(2, 3),
    "n": np.array([2], np.int64),
    "flag": np.array(False),
    "h": np.array([0.1, -2], np.float16),
}


def source() -> ir.Model:
    return harness.model(TEXT, opset=20, r=R)


def inputs(model: ir.Model) -> list[str]:
    return [str(value.name) for value in model.graph.inputs]


def run(model: ir.Model, step: FreezeInputs) -> dict[str, np.ndarray]:
    """Freeze, and run with the remaining inputs."""
    step.run(model, Context())
    proto = ir.to_proto(model)
    onnx.checker.check_model(proto, full_check=True)
    return harness.run(proto, {name: FEEDS[name] for name in inputs(model)})


def test_values_in_the_pipeline() -> None:
    expected = harness.run(ir.to_proto(source()), FEEDS)
    model = source()
    values = {"flag": "false", "h": "[0.1, -2]", "x": "[[0, 1, 2], [3, 4, 5.0]]"}
    found = run(model, FreezeInputs(values))
    assert inputs(model) == ["n"]
    for name, array in expected.items():
        np.testing.assert_array_equal(found[name], array)
    flag, h, x = (model.graph.initializers[name] for name in ("flag", "h", "x"))
    assert (flag.dtype, h.dtype, x.dtype) == (ir.DataType.BOOL, ir.DataType.FLOAT16, ir.DataType.FLOAT)
    assert flag.shape == ()
    assert x.shape == (2, 3)
    again = FreezeInputs(values).run(model, Context())
    assert not again.modified
    assert [skip.reason for skip in again.skips] == [f"{name} is already constant" for name in values]


@pytest.mark.parametrize(
    ("declared", "text"),
    [("float", "0.5"), ("float[1]", "0.5"), ("float[1]", "[0.5]"), ("float[1,1]", "0.5"), ("string[1]", "on")],
)
def test_a_single_value_stands_for_one_element(declared: str, text: str) -> None:
    model = harness.model(f"({declared} x, float[3] z) => ({declared} y, float[3] w) {{ y = Identity(x) w = Neg(z) }}")
    shape = model.graph.inputs[0].shape
    FreezeInputs({"x": text}).run(model, Context())
    frozen = model.graph.initializers["x"].const_value
    assert frozen is not None
    assert frozen.shape == shape
    assert frozen.numpy().item() in (0.5, b"on")


def test_values_of_a_file(tmp_path: Path) -> None:
    expected = harness.run(ir.to_proto(source()), FEEDS)
    file = tmp_path / "inputs.npz"
    np.savez(file, flag=FEEDS["flag"], x=FEEDS["x"])
    model = source()
    found = run(model, FreezeInputs({"n": "[2]"}, str(file)))
    assert inputs(model) == ["h"]
    for name, array in expected.items():
        np.testing.assert_array_equal(found[name], array)


def test_only_inputs_are_read_from_a_file(tmp_path: Path) -> None:
    file = tmp_path / "inputs.npz"
    np.savez_compressed(file, r=np.zeros(2**23 + 2**20), flag=FEEDS["flag"])
    assert "r is already constant" in str(FreezeInputs(file=str(file)).run(source(), Context()).skips)
    np.savez_compressed(file, x=np.zeros(2**23 + 2**20))
    with pytest.raises(InputError, match="the array would inflate"):
        FreezeInputs(file=str(file)).run(source(), Context())


def test_without_options_defaults_become_constants() -> None:
    model = source()
    n = model.graph.inputs[1]
    n.const_value = ir.tensor(np.array([7], np.int64))
    model.graph.initializers.add(n)
    result = FreezeInputs().run(model, Context())
    assert [rewrite.note for rewrite in result.rewrites] == ["input n is constant"]
    assert inputs(model) == ["x", "flag", "h"]
    assert model.graph.initializers["n"] is n
    assert not FreezeInputs().run(model, Context()).modified


def test_a_default_may_be_replaced() -> None:
    model = source()
    n = model.graph.inputs[1]
    n.const_value = ir.tensor(np.array([7], np.int64))
    model.graph.initializers.add(n)
    FreezeInputs({"n": "[3]"}).run(model, Context())
    assert model.graph.initializers["n"].const_value.numpy().tolist() == [3]
    assert inputs(model) == ["x", "flag", "h"]


def test_before_ir_version_4_initializers_stay_inputs() -> None:
    model = harness.model("(float[3] x, float[3] w) => (float[3] y) { y = Add(x, w) }", opset=8)
    model.ir_version = 3
    FreezeInputs({"w": "[1, 2, 3]"}).run(model, Context())
    assert inputs(model) == ["x", "w"]
    assert not FreezeInputs().run(model, Context()).modified
    np.testing.assert_array_equal(harness.run(ir.to_proto(model), {"x": np.zeros(3, np.float32)})["y"], [1, 2, 3])


def test_an_input_that_is_an_output() -> None:
    model = harness.model("(float[1] x, float[1] w) => (float[1] y, float[1] w) { y = Add(x, w) }")
    result = FreezeInputs({"w": "[1]"}).run(model, Context())
    assert not result.modified
    assert "also a graph output" in result.skips[0].reason
    assert inputs(model) == ["x", "w"]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"flg": "true"}, "the model has no input flg (did you mean flag?)"),
        ({"n": "[1.5]"}, "input n: it takes INT64, not 1.5"),
        ({"n": "[true]"}, "input n: it takes INT64, not true"),
        ({"n": "[9223372036854775808]"}, "is out of range of INT64"),
        ({"h": "1"}, "input h: it takes the shape [2], not []"),
        ({"n": "[1, 2]"}, "input n: it takes the shape [1], not [2]"),
        ({"x": "[[1, 2, 3], [4, 5]]"}, "its lists have different lengths"),
        ({"x": "[[1, 2]]"}, "it takes the shape [N,3], not [1, 2]"),
        ({"flag": "1"}, "input flag: it takes BOOL, not 1"),
        ({"flag": "maybe"}, 'input flag: it takes BOOL, not "maybe"'),
        ({"flag": "null"}, "input flag: it takes BOOL, not null"),
        ({"h": "[1e6, 0]"}, "1000000.0 is out of range of FLOAT16"),
    ],
)
def test_invalid_values(values: dict[str, str], message: str) -> None:
    model = source()
    with pytest.raises(InputError) as caught:
        FreezeInputs(values).run(model, Context())
    assert message in str(caught.value)
    assert inputs(model) == ["x", "n", "flag", "h"]


def test_invalid_files(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="missing.npz"):
        FreezeInputs(file=str(tmp_path / "missing.npz")).run(source(), Context())
    (tmp_path / "text.npz").write_text("no archive")
    with pytest.raises(InputError, match="text.npz"):
        FreezeInputs(file=str(tmp_path / "text.npz")).run(source(), Context())
    np.save(tmp_path / "one.npy", R)
    with pytest.raises(InputError, match="a single array without a name"):
        FreezeInputs(file=str(tmp_path / "one.npy")).run(source(), Context())
    np.savez(tmp_path / "wide.npz", n=np.array([1], np.int32))
    with pytest.raises(InputError, match="input n: it takes INT64, and the file has int32"):
        FreezeInputs(file=str(tmp_path / "wide.npz")).run(source(), Context())
    with pytest.raises(InputError, match="input n is in both values and file"):
        FreezeInputs({"n": "[1]"}, str(tmp_path / "wide.npz")).run(source(), Context())


def test_strings_and_dtypes_that_files_lose(tmp_path: Path) -> None:
    text = "(string[2] s, bfloat16[2] b, int4[2] i) => (string[2] t, bfloat16[2] c, int4[2] j) %s"
    model = harness.model(text % "{ t = Identity(s) c = Identity(b) j = Identity(i) }", opset=21)
    brain = np.array([1.5, -2], ml_dtypes.bfloat16)
    np.savez(tmp_path / "b.npz", b=brain)
    FreezeInputs({"s": '["a", "ü"]', "i": "[-8, 7]"}, str(tmp_path / "b.npz")).run(model, Context())
    s, b, i = (model.graph.initializers[name].const_value for name in "sbi")
    assert s.string_data() == [b"a", "ü".encode()]
    assert (b.dtype, b.tobytes()) == (ir.DataType.BFLOAT16, brain.tobytes())
    assert (i.dtype, i.numpy().tolist()) == (ir.DataType.INT4, [-8, 7])
    one = harness.model("(string s) => (string t) { t = Identity(s) }")
    FreezeInputs({"s": "plain words"}).run(one, Context())
    assert one.graph.initializers["s"].const_value.string_data() == [b"plain words"]


def test_a_sequence_input() -> None:
    model = harness.model("(seq(float[1]) s) => (int64 n) { n = SequenceLength(s) }")
    with pytest.raises(InputError, match="input s is not a tensor"):
        FreezeInputs({"s": "[1]"}).run(model, Context())


def test_budget() -> None:
    model = source()
    result = FreezeInputs({"flag": "true", "n": "[2]"}).run(model, Context(budget=Budget(1)))
    assert len(result.rewrites) == 1
    assert inputs(model) == ["x", "n", "h"]


def test_subgraphs_see_the_constant() -> None:
    model = harness.model(
        """(float[2] x, bool c, float[2] w) => (float[2] y) {
            y = If(c) <
                then_branch = a () => (float[2] t) { t = Add(x, w) },
                else_branch = b () => (float[2] t) { t = Sub(x, w) }
            >
        }"""
    )
    feeds = {"x": np.ones(2, np.float32), "c": np.array(True), "w": np.array([2, 3], np.float32)}
    expected = harness.run(ir.to_proto(model), feeds)
    FreezeInputs({"c": "true", "w": "[2, 3]"}).run(model, Context())
    np.testing.assert_array_equal(harness.run(ir.to_proto(model), {"x": feeds["x"]})["y"], expected["y"])


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_any_value_is_frozen_bit_by_bit(data: st.DataObject) -> None:
    kind = data.draw(st.sampled_from(["INT8", "UINT64", "FLOAT", "DOUBLE", "FLOAT16", "BOOL"]))
    dtype = ir.DataType[kind]
    shape = data.draw(st.lists(st.integers(1, 3), max_size=3))
    if kind == "BOOL":
        leaf: st.SearchStrategy[object] = st.booleans()
    elif dtype.is_integer():
        leaf = st.integers(int(dtype.min), int(dtype.max))
    else:
        leaf = st.floats(width=dtype.bitwidth)  # type: ignore[arg-type]
    size = int(np.prod(shape))
    array = np.array(data.draw(st.lists(leaf, min_size=size, max_size=size)), dtype.numpy()).reshape(shape)
    value = ir.Value(name="x", type=ir.TensorType(dtype), shape=ir.Shape(shape))
    node = ir.node("Identity", [value])
    graph = ir.Graph([value], node.outputs, nodes=[node], opset_imports={"": 20})
    model = ir.Model(graph, ir_version=10)
    FreezeInputs({"x": json.dumps(array.tolist())}).run(model, Context())
    frozen = model.graph.initializers["x"].const_value
    assert frozen.dtype == dtype
    np.testing.assert_array_equal(frozen.numpy(), array)


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "inputs.npz")
    with pytest.raises(InputError):
        FreezeInputs(file=str(tmp_path / "inputs.npz")).run(source(), Context())
