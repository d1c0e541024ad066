"""Models with a branch that the sizes of the inputs do not fit: ONNX Runtime runs them, since it is never taken."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import parser

import onnx_bridge
from onnx_bridge.conversion.sizes.open_sizes import OpenSizesError
from onnx_bridge.core.errors import BridgeError, InputError
from onnx_bridge.migraphx.runtime import Runtime
from onnx_bridge.reference.reference import Reference
from onnx_bridge.samples import inputs as samplers

RATES = """y = If (c) <
    then_branch = wide () => (float[b, 2] t) {
        tu = Unsqueeze(x, one) tc = Conv <strides = [6]> (tu, w) t = Squeeze(tc, two) },
    else_branch = narrow () => (float[b, 2] e) {
        eu = Unsqueeze(x, one) ec = Conv <strides = [3]> (eu, w) e = Squeeze(ec, two) }>"""
"""Of 9 samples the then_branch makes one frame, which it needs, and the else_branch two."""
TWO = RATES.replace("y = If", "p = If") + RATES.replace("y = If", "q = If") + "y = Add(p, q)"
INNER = f"""y = If (c) <
    then_branch = first () => (float[b, 2] f) {{
        fu = Unsqueeze(x, one) fc = Conv <strides = [6]> (fu, w) f = Squeeze(fc, two) }},
    else_branch = other () => (float[b, 2] o) {{ d = Equal(sr, k32) {RATES.replace("y = If (c)", "o = If (d)")} }}>"""
LOOP = f"""m = ReduceMean <axes = [1]> (x) y = Loop (three, yes, m) <
    body = body (int64 i, bool more, float[b, l] v) => (bool go, float[b, l] a) {{
        go = Identity(more) {RATES.replace("y = If", "f = If")} a = Add(v, f) }}>"""
SCAN = f"""n = ReduceMean <axes = [1]> (x) m = Concat <axis = 1> (n, n) ms = Unsqueeze(m, none)
    y, all = Scan <num_scan_inputs = 1,
    body = body (float[b, l] v, float[b, l] u) => (float[b, l] a, float[b, l] s) {{
        {RATES.replace("y = If", "f = If")} g = Add(v, f) a = Add(g, u) s = Identity(a) }}> (m, ms)"""
SEQUENCE = """q = If (c) <
    then_branch = wide () => (seq(float[b, 2]) t) {
        tu = Unsqueeze(x, one) tc = Conv <strides = [6]> (tu, w) ts = Squeeze(tc, two) t = SequenceConstruct(ts) },
    else_branch = narrow () => (seq(float[b, 2]) e) {
        eu = Unsqueeze(x, one) ec = Conv <strides = [3]> (eu, w) es = Squeeze(ec, two) e = SequenceConstruct(es) }>
    first = Squeeze(none) y = SequenceAt(q, first)"""
IS_16K = "c = Equal(sr, k)"
MODELS = {
    "equal": ("int64 sr", IS_16K + RATES),
    "one element": ("int64[1] sr", IS_16K + RATES),
    "not equal": ("int64 sr", "d = Equal(sr, k8) c = Not(d)" + RATES),
    "boolean": ("bool sr", "c = Identity(sr)" + RATES),
    "two": ("int64 sr", IS_16K + TWO),
    "nested": ("int64 sr", IS_16K + INNER),
    "greater": ("int64 sr", "c = Greater(sr, k8)" + RATES),
    "float": ("float sr", "i = Cast <to = 7> (sr) c = Equal(i, k)" + RATES),
    "data": ("float[b, 1] sr", "l = ReduceMax <keepdims = 0> (sr) i = Cast <to = 7> (l) c = Equal(i, k)" + RATES),
    "loop": ("int64 sr", IS_16K + LOOP),
    "scan": ("int64 sr", IS_16K + SCAN),
    "sequence": ("int64 sr", IS_16K + SEQUENCE),
}
WHOLE = ("equal", "one element", "boolean", "two", "nested", "loop", "scan", "sequence")
"""Those of which the value of an input picks a program."""


def write(path: Path, name: str) -> Path:
    inputs, nodes = MODELS[name]
    weights = ", ".join(str(number / 10) for number in range(-5, 5))
    text = f"""<ir_version: 8, opset_import: ["": 16]> g (float[b, n] x, {inputs}) => (float[b, 2] y) <
        float[2, 1, 5] w = {{{weights}}},
        int64[1] one = {{1}}, int64[1] two = {{2}}, int64[1] none = {{0}},
        int64 k = {{16}}, int64 k8 = {{8}}, int64 k32 = {{32}}, int64 three = {{3}}, bool yes = {{1}}> {{ {nodes} }}"""
    onnx.save(parser.parse_model(text), path)
    return path


def sample(name: str, batch: int, rate: int) -> dict[str, np.ndarray]:
    x = np.random.default_rng(0).standard_normal((batch, 9)).astype(np.float32)
    kind = MODELS[name][0]
    shape = {"int64[1] sr": (1,), "float[b, 1] sr": (batch, 1)}.get(kind, ())
    dtype = {"bool": bool, "int64": np.int64, "float": np.float32}[kind.split()[0].split("[")[0]]
    return {"x": x, "sr": np.full(shape, rate == 16 if dtype is bool else rate, dtype)}


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("name", MODELS)
def test_the_other_branch_runs(name: str, batch: int, runtime: Runtime, tmp_path: Path) -> None:
    path = write(tmp_path / "m.onnx", name)
    bundle = onnx_bridge.convert(path, tmp_path / "out", target="ref", dims={"n": 9, "b": batch})
    given = sample(name, batch, 16)
    np.testing.assert_allclose(bundle(given)["y"], Reference(path).run(given)["y"], rtol=1e-4, atol=1e-5)  # type: ignore[arg-type]
    assert bundle.wholly_on_migraphx == (name in WHOLE)
    with pytest.raises(BridgeError):
        bundle(sample(name, batch, 8))
    if name == "nested":
        other = sample(name, batch, 32)
        np.testing.assert_allclose(bundle(other)["y"], Reference(path).run(other)["y"], rtol=1e-4, atol=1e-5)  # type: ignore[arg-type]
    if name != "data":  # no generated sample takes the branch that runs
        assert bundle.proof.level.name == "RUN"
        assert onnx_bridge.check(tmp_path / "out").passed


@pytest.mark.parametrize("more", [("", ""), (", float r", "r = Neg(z)"), (", float[b, 2] r", "r = If (c) <BOTH>")])
def test_old_opsets_and_other_nodes(more: tuple[str, str], tmp_path: Path) -> None:
    """No branch can be closed before opset 9; neither other Ifs, nor inputs of unknown rank, prevent it."""
    both = """then_branch = t () => (float[b, 2] u) { u = Add(x, w2) },
        else_branch = e () => (float[b, 2] v) { v = Add(x, w3) }"""
    text = f"""<ir_version: 8, opset_import: ["": 7]> g (float[b, n] x, int64 sr, float[] z) => (float[b, 2] y{more[0]})
        <float[2] w2 = {{1, 2}}, float[3] w3 = {{1, 2, 3}}, int64 k = {{16}}> {{
        c = Equal(sr, k) y = If (c) <{both}> {more[1].replace("BOTH", both)} }}"""
    onnx.save(parser.parse_model(text), tmp_path / "m.onnx")
    given = {"x": np.ones((1, 2), np.float32), "sr": np.array(16), "z": np.float32(1)}
    cleaned = onnx_bridge.clean(tmp_path / "m.onnx", dims={"n": 2, "b": 1}, dim_default=1).model
    np.testing.assert_array_equal(Reference(cleaned).run(given)["y"], [[2, 3]])


def test_a_frozen_value(runtime: Runtime, tmp_path: Path) -> None:
    path = write(tmp_path / "m.onnx", "equal")
    notes = onnx_bridge.doctor(path, dims={"n": 9}).notes
    assert any("--freeze sr=16" in note for note in notes)
    bundle = onnx_bridge.convert(path, tmp_path / "out", target="ref", dims={"n": 9, "b": 1}, freeze={"sr": "16"})
    assert bundle.wholly_on_migraphx
    assert bundle.manifest.notes == []
    with pytest.raises(InputError):
        onnx_bridge.convert(path, tmp_path / "other", target="ref", dims={"n": 9}, freeze={"sr": "8"})


def test_buckets_of_sizes_and_values(runtime: Runtime, tmp_path: Path) -> None:
    path = write(tmp_path / "m.onnx", "equal")
    bundle = onnx_bridge.convert(path, tmp_path / "out", target="ref", dims={"n": 9}, buckets={"b": [1, 4]})
    given = sample("equal", 3, 16)
    np.testing.assert_allclose(bundle(given)["y"], Reference(path).run(given)["y"], rtol=1e-4, atol=1e-5)  # type: ignore[arg-type]
    assert [program.dims for program in bundle.manifest.programs] == [{"sr": 16, "b": 1}, {"sr": 16, "b": 4}]


def test_values_that_are_compared() -> None:
    """Generated numbers are those that a model compares with, in turn, and one that is none of them."""
    text = """<ir_version: 8, opset_import: ["": 16]> g (int64 a, float[1] b, int64[3] c) => (bool x, bool y, bool z)
        <int64 k = {16000}, int64 l = {8000}> { x = Equal(a, k) y = Equal(l, a) d = Cast <to = 7> (b) e = Less(d, l)
        y2 = Squeeze(e) z = Equal(c, k) }"""
    first, second, third = samplers.generate(ir.from_proto(parser.parse_model(text)), samples=3)
    assert [int(values["a"]) for values in (first, second, third)] == [16000, 8000, 16001]  # type: ignore[arg-type]
    assert {float(first["b"][0]), float(second["b"][0])} == {7999.0, 8001.0}  # type: ignore[index]
    assert max(first["c"]) < 8  # type: ignore[arg-type,type-var]


def test_the_branch_that_runs_is_proven(runtime: Runtime, tmp_path: Path) -> None:
    """A sample on which the reference fails in the other branch, for a reason that no size is, is not the last word."""
    text = """<ir_version: 8, opset_import: ["": 17]> g (float[2] x, bool c, bool d) => (float y) <
        int64 far = {9}, int64 near = {1}> { b = And(c, d) y = If (b) <
            then_branch = a () => (float t) { t = Gather(x, far) },
            else_branch = b () => (float e) { e = Gather(x, near) }> }"""
    onnx.save(parser.parse_model(text), tmp_path / "model.onnx")
    assert onnx_bridge.convert(tmp_path / "model.onnx", tmp_path / "out", target="ref").proof.label == "proven"


@pytest.mark.parametrize("batch", [1, 2])
@pytest.mark.parametrize("padded", ["tx = Identity(x)", 'tx = Pad <mode = "reflect"> (x, pads)'])
def test_a_window_in_a_branch_that_is_larger_than_its_input(
    padded: str, batch: int, runtime: Runtime, tmp_path: Path
) -> None:
    """ONNX Runtime loads it, since inference rounds the size of the result up, and fails if the branch is taken."""
    text = f"""<ir_version: 8, opset_import: ["": 17]> g (float[b, 1, n] x, int64 sr) => (float[b, 1, l] y) <
        float[1, 1, 9] wide = {{1, 2, 3, 4, 5, 6, 7, 8, 9}}, float[1, 1, 3] narrow = {{1, 2, 3}}, int64 k = {{16000}},
        int64[6] pads = {{0, 0, 1, 0, 0, 1}}> {{ c = Equal (sr, k) y = If (c) <
            then_branch = a () => (float[b, 1, o] t) {{ {padded} t = Conv <strides = [8]> (tx, wide) }},
            else_branch = f () => (float[b, 1, p] e) {{ e = Conv <strides = [8]> (x, narrow) }}> }}"""
    onnx.save(parser.parse_model(text), tmp_path / "model.onnx")
    bundle = onnx_bridge.convert(tmp_path / "model.onnx", tmp_path / "out", target="ref", shapes={"x": (batch, 1, 6)})
    assert any("then_branch" in note for note in bundle.manifest.notes)
    x = np.tile(np.arange(6, dtype=np.float32), (batch, 1, 1))
    np.testing.assert_allclose(bundle({"x": x, "sr": np.array(8000)})["y"], np.full((batch, 1, 1), 8))
    cleaned = onnx.load(str(bundle.model_path))
    assert [node.op_type for node in cleaned.graph.node].count("Conv") == 1


def test_the_size_that_is_advised_fits_each_branch(runtime: Runtime, tmp_path: Path) -> None:
    text = """<ir_version: 8, opset_import: ["": 17]> g (float[1, 1, n] x, int64 sr) => (float[1, 1, l] y) <
        float[1, 1, 9] wide = {1, 2, 3, 4, 5, 6, 7, 8, 9}, float[1, 1, 3] narrow = {1, 2, 3}, int64 k = {16000}> {
        c = Equal (sr, k) y = If (c) <
            then_branch = a () => (float[1, 1, o] t) { t = Conv <strides = [8]> (x, wide) },
            else_branch = b () => (float[1, 1, p] e) { e = Conv <strides = [8]> (x, narrow) }> }"""
    onnx.save(parser.parse_model(text), tmp_path / "model.onnx")
    with pytest.raises(OpenSizesError) as error:
        onnx_bridge.convert(tmp_path / "model.onnx", tmp_path / "out", target="ref", dim_default=1)
    assert error.value.advised == {"n": 9}
