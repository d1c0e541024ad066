"""``check`` where MIGraphX fails: the report has the step, the message and the node, and files are written."""

from __future__ import annotations

import json
from pathlib import Path
from xml.etree import ElementTree as xml

import numpy as np
import onnx
import onnx_ir as ir
import pytest

import onnx_bridge
from onnx_bridge.cli.main import app
from onnx_bridge.core.errors import MigraphxError, OutOfMemory, RuntimeFailure, WorkerCrashed
from onnx_bridge.migraphx import worker as workers
from onnx_bridge.migraphx.worker import Worker
from onnx_bridge.parity.checking.report import CheckReport
from onnx_bridge.parity.failure import Failure
from onnx_bridge.parity.symptoms.symptom import SymptomKind
from tests.passes.harness import model

pytestmark = pytest.mark.usefixtures("runtime")

WEIGHT = np.random.default_rng(0).standard_normal((8, 8), np.float32)
REFUSED = "(float[8, 8] x) => (float y) { [mul] a = MatMul(x, w) [odd] d = Det(a) [end] y = Relu(d) }"
CRASHING = """(float[8, 8] x, int64[2, 1] i, float[2, 8] u) => (float[8, 8] y) {
    [mul] a = MatMul(x, w) [odd] s = ScatterND(a, i, u) [end] y = Relu(s)
}"""
SAMPLE = {"x": WEIGHT, "i": np.array([[-1], [0]]), "u": np.ones((2, 8), np.float32)}
LARGE = "(float[1, 8192] x) => (float[1, 1] y) { [large] a = MatMul(t, x) [end] y = ReduceMax(a) }"
"""Its intermediate value takes 256 MiB."""


def save(text: str, path: Path, **constants: np.ndarray) -> Path:
    onnx.save(ir.to_proto(model(text, opset=18, **constants)), path)
    return path


def run(*arguments: object) -> int:
    """Run a command in this process; returns its exit code."""
    return app(list(map(str, arguments)), standalone_mode=False) or 0


def check(path: Path, **options: object) -> CheckReport:
    """Without passes and host partitions, which would prevent the failure."""
    return onnx_bridge.check(path, target="ref", pipeline="none", host=False, **options)  # type: ignore[arg-type]


def test_rejected_model(tmp_path: Path) -> None:
    report = check(save(REFUSED, tmp_path / "m.onnx", w=WEIGHT), samples=2)
    cleaned, device = report.legs
    assert cleaned.passed
    assert len(cleaned.comparisons) == len(report.samples) == 2
    assert (device.failure.step, device.failure.kind) == ("parse", SymptomKind.REJECTED)
    assert report.exit_code == 3
    assert "MIGraphX ref fails in the step parse" in report.summary
    assert [node.name for node in report.bisection.fault.nodes] == ["odd"]
    with pytest.raises(RuntimeFailure, match="Unknown operator: Det"):
        report.raise_failure()


def test_crashing_model(tmp_path: Path) -> None:
    report = check(save(CRASHING, tmp_path / "m.onnx", w=WEIGHT), inputs=SAMPLE, layers=True, evidence=True)
    fault = report.bisection.fault
    assert fault.kind is SymptomKind.CRASHES
    assert [node.name for node in fault.nodes] == ["odd"]
    assert "SIGABRT" in report.blame
    rows = {row.node: row for row in report.layers.rows}
    assert "process" in rows["odd"].reason
    assert rows["mul"].local.passed
    assert list(report.evidence.results) == ["ONNX Runtime", "cleaned on ONNX Runtime"]


def test_bundle_that_runs_out_of_memory(worker: Worker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "shared", lambda *_: worker)  # whose memory is that of this test alone
    path = save(LARGE, tmp_path / "m.onnx", t=np.ones((8192, 1), np.float32))
    bundle = onnx_bridge.convert(path, tmp_path / "bundle", target="ref", memory=0.25)
    report = onnx_bridge.check(bundle)
    device = report.legs[1]
    assert (device.failure.step, device.failure.kind, device.failure.sample) == ("run", SymptomKind.MEMORY, 0)
    assert device.comparisons == ()
    assert report.bisection is None
    assert "`onnx-bridge bisect` finds the nodes" in report.notes[-1]


def test_files_are_written_on_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = save(REFUSED, tmp_path / "m.onnx", w=WEIGHT)
    page, junit, results = (tmp_path / name for name in ("out.html", "out.xml", "out.json"))
    files = ("--report", page, "--junit", junit, "--save-results", results)
    assert run("check", path, "--target", "ref", "--pipeline", "none", "--no-host", *files, "--json") == 3
    data = json.loads(capsys.readouterr().out)
    assert data["passed"] is False
    assert data["legs"][1]["failure"]["step"] == "parse"
    assert data["bisection"]["fault"]["message"] == "Unknown operator: Det"
    suites = xml.parse(junit).getroot()
    assert [suites.get(name) for name in ("tests", "failures", "errors")] == ["2", "0", "1"]
    (error,) = suites.iter("error")
    assert error.get("type") == "rejected"
    assert "MIGraphX rejects Det odd (parse): Unknown operator: Det" in str(error.text)
    text = page.read_text()
    assert "MIGraphX fails" in text
    assert "Around Det odd" in text
    assert "ONNX Runtime" in json.loads(results.read_text())["lst"][0]


def test_kinds() -> None:
    errors = (MigraphxError("no"), WorkerCrashed("run", returncode=-11), OutOfMemory("too much"), RuntimeFailure("no"))
    kinds = [Failure("run", each).kind for each in errors]
    assert kinds == [SymptomKind.REJECTED, SymptomKind.CRASHES, SymptomKind.MEMORY, SymptomKind.REJECTED]
    assert str(Failure("compile", RuntimeFailure("no", where="node odd"))) == "compile: no (node odd)"
