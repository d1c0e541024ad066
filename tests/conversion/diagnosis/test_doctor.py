"""The verb ``doctor``: MIGraphX's verdict on every node, and the planned action."""

from __future__ import annotations

import io
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from rich.console import Console
from typer.testing import CliRunner

import onnx_bridge
from docs.generator.folder import detector
from onnx_bridge.bundle.manifest.work_share import WorkShare
from onnx_bridge.cli.main import app
from onnx_bridge.conversion.diagnosis.diagnosis import Diagnosis
from onnx_bridge.conversion.diagnosis.diagnosis import PlannedAction as Action
from onnx_bridge.core.errors import NOT_DETERMINED, InputError
from onnx_bridge.migraphx.runtime import Runtime
from onnx_bridge.verdicts import probed_runtime
from onnx_bridge.verdicts.proof_counts import ProofCounts
from onnx_bridge.views.terminal.view import render
from passes.rewriting.base import Obstacle, Proof, Skip
from tests.passes.harness import model, run


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("models") / "detector.onnx"
    onnx.save(detector(np.random.default_rng(0)), path)
    return path


@pytest.fixture(scope="module")
def found(runtime: Runtime, path: Path) -> Diagnosis:
    return onnx_bridge.doctor(path)


def test_every_node(found: Diagnosis) -> None:
    nodes = {each.operator: each for each in found.nodes}
    assert len(found.nodes) == 10
    assert (nodes["Conv"].verdict, nodes["Conv"].action) == ("ok", Action.UNCHANGED)
    mish = nodes["Mish"]
    assert (mish.verdict, mish.message, mish.action) == ("rejected", "Unknown operator: Mish", Action.REWRITTEN)
    assert mish.by == "legalize/expand-functions"
    assert nodes["Resize"].by == "legalize/matmul-resize"
    assert nodes["com.microsoft::BiasGelu"].action == Action.UNCHANGED
    suppression = nodes["NonMaxSuppression"]
    assert (suppression.verdict, suppression.action) == ("wrong", Action.HOST)
    assert "MIGraphX computes wrong numbers" in suppression.by


def test_the_whole(found: Diagnosis) -> None:
    assert found.passed
    assert found.parsed
    assert found.totals == {Action.UNCHANGED: 7, Action.REWRITTEN: 2, Action.REMOVED: 0, Action.HOST: 1}
    assert [each["side"] for each in found.partitions] == ["device", "host"]
    assert 0.99 < (found.share.value or 0.0) < 1.0
    assert found.kernels == {"float": 4}
    assert found.facts["other domains"] == "com.microsoft"
    assert json.loads(json.dumps(found.to_json()))["totals"][Action.REWRITTEN] == 2


def test_without_the_host(runtime: Runtime, path: Path) -> None:
    found = onnx_bridge.doctor(path, host=False)
    assert not found.passed
    assert "NonMaxSuppression" in found.problem


def test_the_fixed_model(runtime: Runtime, path: Path, tmp_path: Path) -> None:
    out = tmp_path / "fixed.onnx"
    found = onnx_bridge.doctor(path, out)
    assert found.path_fixed == str(out)
    before, after = onnx.load(path), onnx.load(out)
    assert "Mish" not in {node.op_type for node in after.graph.node}
    expected, actual = run(before), run(after)
    np.testing.assert_allclose(actual["features"], expected["features"], 1e-5, 1e-5)
    again = onnx_bridge.doctor(out)
    assert again.passed
    assert again.totals[Action.REWRITTEN] == 0


def test_all_problems_are_reported(runtime: Runtime) -> None:
    text = (
        '<ir_version: 8, opset_import: ["": 17, "nobody": 1]> g (float[2] x) => (float[2] y)'
        " { a = nobody.First(x) b = Relu(a) y = nobody.Second(b) }"
    )
    source = ir.from_proto(onnx.parser.parse_model(text))
    for value in source.graph.node(1).outputs:
        value.type, value.shape = ir.TensorType(ir.DataType.FLOAT), ir.Shape([2])
    found = onnx_bridge.doctor(source)
    assert not found.passed
    assert [each.operator for each in found.nodes] == ["nobody::First", "Relu", "nobody::Second"]
    assert found.nodes[0].message == "Unknown operator: First"
    assert {each.operator for each in found.nodes if each.action == Action.HOST} >= {"nobody::First", "nobody::Second"}
    assert "neither MIGraphX nor ONNX Runtime can run the node" in found.problem


def test_what_the_reference_does_not_take_cannot_be_compared(runtime: Runtime) -> None:
    source = model("(float[2] x) => (float[2] y) { y = Relu(x) }")
    assert onnx_bridge.doctor(source).comparable
    source.graph.opset_imports[""] = 99
    found = onnx_bridge.doctor(source)
    assert found.passed, "MIGraphX takes it"
    assert not found.comparable
    assert any("99" in note for note in found.notes)


def test_what_is_folded_is_removed(runtime: Runtime) -> None:
    source = model("(float[2] x) => (float[2] y) { a = Neg(w) y = Add(x, a) }", w=np.ones(2, np.float32))
    found = onnx_bridge.doctor(source)
    assert [(each.operator, each.action, each.by) for each in found.nodes] == [
        ("Neg", Action.REMOVED, "fold-constants"),
        ("Add", Action.UNCHANGED, ""),
    ]


def test_modules_of_pytorch(runtime: Runtime, exported: Callable[..., Path]) -> None:
    found = onnx_bridge.doctor(exported("bert"))
    assert found.passed
    assert any(each.module.startswith("model.encoder.layer.1") for each in found.nodes)


def test_inputs_that_are_frozen(runtime: Runtime, tmp_path: Path) -> None:
    source = model("(float[2,4] x, int64 n) => (float[2,4] y) { y = CumSum(x, n) }", opset=17)
    assert onnx_bridge.doctor(source, freeze={"n": np.int64(1)}).totals[Action.HOST] == 0
    with pytest.raises(InputError, match="no input m"):
        onnx_bridge.doctor(source, freeze={"m": "1"})


def test_inputs_that_could_be_frozen_are_named(runtime: Runtime) -> None:
    source = model("(float[2,8] x, int64[1] k) => (float[2,n] y, int64[2,n] i) { y, i = TopK(x, k) }")
    found = onnx_bridge.doctor(source)
    (note,) = [note for note in found.notes if note.startswith("k: ")]
    (text,) = re.findall(r"--freeze 'k=(\[\d+\])'", note)
    assert onnx_bridge.doctor(source, freeze={"k": text}).share == WorkShare(1.0)
    frozen = onnx_bridge.doctor(source, freeze={"k": np.array([3])})
    assert [each["side"] for each in frozen.partitions] == ["device"]
    assert not frozen.notes


def test_an_input_with_a_default_is_constant_unless_its_shape_is_given(runtime: Runtime) -> None:
    text = "(float[2,8] x, int64[1] k) => (float[2,n] y, int64[2,n] i) { y, i = TopK(x, k) }"
    source = model(text, k=np.array([3]))
    source.graph.inputs[1].const_value = source.graph.initializers["k"].const_value
    assert onnx_bridge.doctor(source).share == WorkShare(1.0)
    assert any("--freeze 'k=[" in note for note in onnx_bridge.doctor(source, shapes={"k": [1]}).notes)


def transposed_convolution(shape: str) -> ir.Model:
    """With output_padding, which MIGraphX before 2.16 adds on the wrong side."""
    return model(
        f"(float{shape} x) => (y) {{ y = ConvTranspose<strides=[2,2],pads=[1,1,1,1],output_padding=[1,1]>(x, w) }}",
        w=np.random.default_rng(0).standard_normal((3, 16, 3, 3)).astype(np.float32),
    )


class TestProof:
    def test_wrong_numbers_of_a_large_node_are_found_by_its_witness(self, runtime: Runtime, tmp_path: Path) -> None:
        source = transposed_convolution("[8,3,25,25]")
        found = onnx_bridge.doctor(source, probe_budget=0.0, cache=False)  # which may hold a run at real size
        (node,) = found.nodes
        assert (node.verdict, node.proof, node.action) == ("wrong", Proof.WITNESS, Action.REWRITTEN)
        assert node.unproven == "too large to run"
        assert (found.proofs.run, found.proofs.unproven) == (0, {})
        bundle = onnx_bridge.convert(source, tmp_path / "out", target="ref", probe_budget=0.0)
        assert onnx_bridge.check(bundle).passed

    def test_a_decoder(self, runtime: Runtime, tmp_path: Path) -> None:
        draw = np.random.default_rng(0)
        source = model(
            "(float[1,16,40,40] x) => (float[1,8,160,160] y) { c = Conv<pads=[1,1,1,1]>(x, a)"
            ' s = DepthToSpace<blocksize=2,mode="CRD">(c)'
            " y = ConvTranspose<strides=[2,2],pads=[1,1,1,1],output_padding=[1,1]>(s, b) }",
            a=draw.standard_normal((64, 16, 3, 3)).astype(np.float32),
            b=draw.standard_normal((16, 8, 3, 3)).astype(np.float32),
        )
        found = onnx_bridge.doctor(source)
        assert {each.operator: each.verdict for each in found.nodes} == {
            "Conv": "ok",
            "DepthToSpace": "ok",
            "ConvTranspose": "wrong",
        }
        assert all(each.proof is not Proof.NONE for each in found.nodes)
        assert onnx_bridge.check(onnx_bridge.convert(source, tmp_path / "out", target="ref")).passed

    def test_a_budget_pays_for_runs_at_real_size(self, runtime: Runtime) -> None:
        source = transposed_convolution("[8,3,25,25]")
        (node,) = onnx_bridge.doctor(source, probe_budget=60.0).nodes
        assert (node.verdict, node.proof, node.unproven) == ("wrong", Proof.RUN, "")

    def test_what_nothing_proves_is_shown_and_counted(self, runtime: Runtime, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(probed_runtime, "witness", lambda _: Skip("for a test"))
        source = model("(float[1,3,64,64] x) => (y) { a = Relu(x) y = Conv(a, w) }", w=np.ones((16, 3, 5, 5), "f"))
        found = onnx_bridge.doctor(source, cache=False, probe_budget=0.0)
        relu, conv = found.nodes
        assert (relu.verdict, relu.proof) == ("ok", Proof.RUN)
        assert (conv.verdict, conv.proof, conv.unproven) == ("ok", Proof.NONE, "too large to run: for a test")
        assert found.proofs == ProofCounts(run=1, unproven={"too large to run": 1})
        without = ProofCounts(unproven={Obstacle.REFERENCE.value: 1})
        assert (found.exit_code, replace(found, proofs=without).exit_code) == (0, NOT_DETERMINED)
        values = json.loads(json.dumps(found.to_json()))
        assert values["proofs"] == {"real size": 1, "witness": 0, "none": 1, "unproven": {"too large to run": 1}}
        assert values["nodes"][1]["proof"] == "none"
        for verbose in (False, True):
            text = rendered(render(found, verbose=verbose))
            assert "1 node unproven" in text
            assert "1 unproven: 1 too large to run" in text


def rendered(page: Any) -> str:
    console = Console(width=250, record=True, file=io.StringIO())
    console.print(page)
    return console.export_text()


class TestCommand:
    def test_frozen_to_a_sample(self, runtime: Runtime, tmp_path: Path) -> None:
        source = model("(float[2,8] x, int64[1] k) => (float[2,n] y, int64[2,n] i) { y, i = TopK(x, k) }")
        path, sample = tmp_path / "topk.onnx", tmp_path / "sample.npz"
        ir.save(source, path)
        np.savez(sample, k=np.array([3]))
        assert self.doctor(path, "--no-host", "--freeze", f"k=@{sample}").returncode == 0
        for text, words in ((f"n=@{sample}", "no array n"), (f"k=@{tmp_path}/none.npz", "none.npz")):
            done = self.doctor(path, "--freeze", text)
            assert done.returncode == 2
            assert words in done.stderr

    def doctor(self, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "onnx_bridge", "doctor", *map(str, arguments)]
        environment = {**os.environ, "COLUMNS": "200"}
        return subprocess.run(command, capture_output=True, text=True, check=False, env=environment)

    def test_tables(self, runtime: Runtime, path: Path) -> None:
        done = self.doctor(path)
        assert done.returncode == 0, done.stderr
        assert "Unknown operator: Mish" in done.stdout
        assert "everything will run" in done.stdout
        assert "Mish_0" in self.doctor(path, "-v").stdout

    def test_exit_code(self, runtime: Runtime, path: Path) -> None:
        done = self.doctor(path, "--no-host", "--json")
        assert done.returncode == 1
        assert json.loads(done.stdout)["passed"] is False

    @pytest.mark.parametrize(
        ("text", "options", "advised"),
        [
            ("{ y = nobody.First(x) }", [], None),
            ("{ a = Neg(x) y = Cast<to=1>(a) }", [], "convert"),
            ("{ a = Cast<to=8>(x) y = Cast<to=1>(a) }", ["--no-host"], "reduce"),
        ],
    )
    def test_what_is_advised(
        self, runtime: Runtime, tmp_path: Path, text: str, options: list[str], advised: str | None
    ) -> None:
        opsets = '<ir_version: 8, opset_import: ["": 17, "nobody": 1]>'
        onnx.save(onnx.parser.parse_model(f"{opsets} g (float[2] x) => (float[2] y) {text}"), tmp_path / "m.onnx")
        done = CliRunner().invoke(app, ["doctor", str(tmp_path / "m.onnx"), *options])
        assert done.exit_code == (0 if advised == "convert" else 1)
        assert re.findall(r"next: onnx-bridge (\w+)", done.stdout) == ([] if advised is None else [advised])

    def test_fix_says_where(self, path: Path) -> None:
        done = self.doctor(path, "--fix")
        assert done.returncode == 2
        assert "--fix -o OUT.onnx" in done.stderr
