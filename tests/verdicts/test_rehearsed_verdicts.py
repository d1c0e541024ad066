"""Verdicts that hold nodes to the gpu target's passes, without a GPU."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path

import onnx
import onnx_ir as ir
import pytest

import onnx_bridge
from onnx_bridge.core import native_code
from onnx_bridge.core.errors import RuntimeNotFound
from onnx_bridge.migraphx.rehearsal import rehearsal as building
from onnx_bridge.migraphx.rehearsal.rehearsal import PassRehearsal, pass_rehearsal
from onnx_bridge.migraphx.runtime import Runtime
from onnx_bridge.verdicts.probed_runtime import ProbedRuntime
from passes.graphs.scopes import Scope
from passes.probing.probe import Probe
from passes.rewriting.base import Proof, Status, Verdict

PatientRuntime = partial(ProbedRuntime, timeout=120.0)
"""Whose verdicts do not depend on the load of the machine."""
GLOBAL = "y = LpPool <kernel_shape=[4,4], p=2> (x)"
FUSED = "a = Exp(x) b = ReduceMean <axes=[2]> (a) c = Sub(a, b) d = Concat <axis=1> (c, a) e = Tanh(d) y = Mul(e, e)"

SEVERAL_OUTPUTS = "a = Exp(x) b = Tanh(x) y = MatMul(a, b)"
"""Its pointwise module has two outputs, and was inlined again and again."""


@pytest.fixture(scope="module")
def passes(runtime: Runtime) -> PassRehearsal:
    try:
        return pass_rehearsal(runtime)
    except RuntimeNotFound as error:
        if runtime.kind == "private":  # its headers can be had
            raise
        pytest.skip(f"{runtime.path.name} was unpacked without MIGraphX's headers: {error.what}")


def model(nodes: str) -> onnx.ModelProto:
    text = f'<ir_version: 8, opset_import: ["": 17]> g (float[1,2,4,4] x) => (float[A,B,C,D] y) {{ {nodes} }}'
    return onnx.shape_inference.infer_shapes(onnx.parser.parse_model(text))


def verdict(target: ProbedRuntime, nodes: str) -> Verdict:
    loaded = ir.from_proto(model(nodes))
    (found,) = target.verdicts([Probe.of(list(loaded.graph), Scope(loaded, loaded.graph))])
    return found


def test_the_group_of_passes_at_fault_is_named(runtime: Runtime, passes: PassRehearsal) -> None:
    """The gpu target makes a maximum of an LpPool over the whole image."""
    alone = verdict(PatientRuntime(runtime, cache=False), GLOBAL)
    assert (alone.status, alone.group) == (Status.OK, "")
    found = verdict(PatientRuntime(runtime, cache=False, rehearsal=passes), GLOBAL)
    assert (found.status, found.group, found.proof) == (Status.WRONG, "rewrite_pooling", Proof.RUN)
    assert found.message.startswith("rehearsed as gpu, after rewrite_pooling: ")


@pytest.mark.parametrize("nodes", [FUSED, SEVERAL_OUTPUTS])
def test_fused_operators_are_run(nodes: str, runtime: Runtime, passes: PassRehearsal) -> None:
    """As long as ``ref`` evaluated pointwise modules in threads, it crashed."""
    found = verdict(PatientRuntime(runtime, cache=False, rehearsal=passes), nodes)
    assert (found.status, found.proof) == (Status.OK, Proof.RUN)


def test_verdicts_are_cached_by_the_passes(
    runtime: Runtime, passes: PassRehearsal, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("ONNX_BRIDGE_CACHE", str(tmp_path))
    first = verdict(PatientRuntime(runtime, rehearsal=passes), GLOBAL)
    assert verdict(PatientRuntime(runtime, rehearsal=passes), GLOBAL) == first
    fewer = replace(passes, groups=passes.groups[:4])
    assert verdict(PatientRuntime(runtime, rehearsal=fewer), GLOBAL).status is Status.OK


def test_the_groups_are_those_of_the_version(runtime: Runtime, passes: PassRehearsal) -> None:
    assert passes.groups[0] == "simplify_dyn_ops"
    assert passes.groups[-2:] == ("fuse_pointwise_reduce", "fuse_concat")
    assert ("rewrite_resize" in passes.groups) == (runtime.release >= (2, 16))


def test_legalized_until_the_rehearsal_is_right(runtime: Runtime, passes: PassRehearsal, tmp_path: Path) -> None:
    bundle = onnx_bridge.convert(ir.from_proto(model(GLOBAL)), tmp_path / "out", target="ref", rehearse="gpu")
    assert bundle.model_path is not None
    assert "LpPool" not in {node.op_type for node in onnx.load(bundle.model_path).graph.node}
    assert any("rehearsed as gpu" in note for note in bundle.manifest.notes)
    assert onnx_bridge.check(bundle, reference=bundle.model_path, rehearse="gpu").passed


def test_a_weight_with_a_scale_for_each_channel(runtime: Runtime, passes: PassRehearsal, tmp_path: Path) -> None:
    """MIGraphX 2.16 rejects it in simplify_qdq, where a product is of integers."""
    text = """<ir_version: 8, opset_import: ["": 17]> g (float[1,4] x) => (float[1,3] y)
        <int8[4,3] w = {1,-2,3,4,5,-6,7,8,9,1,2,3}, float s = {0.1}, int8 z = {0}, float[3] t = {0.1,0.2,0.3},
        int8[3] u = {0,0,0}> {
        q = QuantizeLinear(x, s, z) d = DequantizeLinear(q, s, z) e = DequantizeLinear(w, t, u) y = MatMul(d, e)
    }"""
    source = ir.from_proto(onnx.shape_inference.infer_shapes(onnx.parser.parse_model(text)))
    bundle = onnx_bridge.convert(source, tmp_path / "out", target="ref", rehearse="gpu")
    assert bundle.wholly_on_migraphx
    report = onnx_bridge.check(bundle, reference=bundle.model_path, rehearse="gpu")
    assert report.passed
    assert "rehearsed as gpu, convolutions and matrix products are computed: 1 in int8" in report.notes


def test_weights_beside_each_other_with_and_without_a_zero_point(
    runtime: Runtime, passes: PassRehearsal, tmp_path: Path
) -> None:
    """MIGraphX 2.14 makes one product of both in optimize_module, and looks for the zero point that was removed."""
    text = """<ir_version: 8, opset_import: ["": 17]> g (float[2,4] x) => (float[2,3] y)
        <int8[4,3] w = {1,-2,3,4,5,-6,7,8,9,1,2,3}, int8[4,3] v = {3,-2,3,9,5,-6,7,1,9,1,-5,3},
        float s = {0.1}, float t = {0.2}, int8 z = {3}, int8 o = {0}> {
        d = DequantizeLinear(w, s, z) e = DequantizeLinear(v, t, o) a = MatMul(x, d) b = MatMul(x, e) y = Add(a, b)
    }"""
    source = ir.from_proto(onnx.shape_inference.infer_shapes(onnx.parser.parse_model(text)))
    bundle = onnx_bridge.convert(source, tmp_path / "out", target="ref", rehearse="gpu")
    assert bundle.wholly_on_migraphx
    assert onnx_bridge.check(bundle, reference=bundle.model_path, rehearse="gpu").passed


def test_doctor_without_a_gpu(runtime: Runtime, passes: PassRehearsal) -> None:
    found = onnx_bridge.doctor(ir.from_proto(model(GLOBAL)), target="gpu")
    (node,) = found.nodes
    assert (node.verdict, node.action) == ("wrong", "rewritten")
    assert "after rewrite_pooling" in node.message
    assert any("rehearsed as gpu" in note for note in found.notes)
    (node,) = onnx_bridge.doctor(ir.from_proto(model(GLOBAL)), target="ref").nodes
    assert (node.verdict, node.action) == ("ok", "unchanged")


def test_doctor_without_a_compiler(
    runtime: Runtime, passes: PassRehearsal, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(native_code, "cache_dir", lambda: tmp_path)
    monkeypatch.setattr(native_code, "_COMPILER", ("no-such-compiler",))
    found = onnx_bridge.doctor(ir.from_proto(model(GLOBAL)), target="gpu")
    assert found.passed
    assert any("not rehearsed" in note and "no-such-compiler" in note for note in found.notes)


def test_headers_of_another_version_are_not_taken(runtime: Runtime, tmp_path: Path) -> None:
    folder = tmp_path / "include" / "migraphx"
    folder.mkdir(parents=True)
    (folder / "version.h").write_text("#define MIGRAPHX_VERSION_MAJOR 1\n#define MIGRAPHX_VERSION_MINOR 2\n")
    (folder / "simplify_qdq.hpp").touch()
    other = replace(runtime, kind="system", library_path=(tmp_path / "lib",))
    with pytest.raises(RuntimeNotFound, match="no headers"):
        building._headers(other, tmp_path)


def test_branches_that_multiply_the_same_value(runtime: Runtime, passes: PassRehearsal, tmp_path: Path) -> None:
    """optimize_module takes the products of both branches for those of one: MIGraphX 2.14 aborts, 2.16 does not end."""
    text = """<ir_version: 8, opset_import: ["": 17]> g (float[2,4] x, bool c) => (float[2,3] y)
        <float[4,3] w = {1,-2,3,4,5,-6,7,8,9,1,2,3}, float[4,3] v = {3,-2,3,9,5,-6,7,1,9,1,-5,3},
        float[3] p = {1,2,3}, float[3] q = {-1,2,-3}> {
        y = If (c) < then_branch = t () => (float[2,3] a) { l = Gemm(x, w, p) a = Relu(l) },
                     else_branch = e () => (float[2,3] b) { m = Gemm(x, v, q) b = Sigmoid(m) } >
    }"""
    source = ir.from_proto(onnx.parser.parse_model(text))
    bundle = onnx_bridge.convert(source, tmp_path / "out", target="ref", rehearse="gpu")
    assert "rehearsed as gpu, after optimize_module" in bundle.manifest.host_reasons()
    assert onnx_bridge.check(bundle, reference=bundle.model_path).passed
