"""What was not compared is not said to agree: time-outs, errors of the reference, models without outputs."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest

import onnx_bridge
from onnx_bridge.core.errors import InputError, OutOfMemory, Step, WorkerTimeout
from onnx_bridge.migraphx import worker as workers
from onnx_bridge.migraphx.runtime import Runtime
from onnx_bridge.migraphx.worker import Worker
from onnx_bridge.parity.checking.report import CheckReport, Leg
from onnx_bridge.parity.checking.runtime_failure import estimated_seconds
from onnx_bridge.parity.failure import Failure
from onnx_bridge.reference.comparison.compare import Comparison, compare
from onnx_bridge.verdicts.run_time import work_seconds
from passes.graphs.cost import Work
from tests.passes.helpers import tiny

SAME = compare({"y": np.ones(3, np.float32)}, {"y": np.ones(3, np.float32)})
LATE = Failure(Step.RUN, WorkerTimeout("no answer within 5 s"), 1)


def test_a_timeout_before_anything_was_compared() -> None:
    early = Failure(Step.RUN, WorkerTimeout("no answer within 5 s"), 0)
    report = CheckReport("m", (Leg("cleaned", (SAME,)), Leg("MIGraphX ref", (), early)), samples=({},))
    assert (report.largest_error, report.exit_code, report.verdict) == (None, 3, "fails")
    assert "largest error" not in report.summary
    assert "nothing was compared" in report.summary
    device = report.to_json()["legs"][1]
    assert (device["compared"], device["largest_error"], device["failure"]["kind"]) == (0, None, "timeout")


def test_a_timeout_after_some_samples() -> None:
    report = CheckReport("m", (Leg("MIGraphX ref", (SAME,), LATE),), samples=({}, {}, {}))
    assert "1 of 3 samples" in report.summary
    assert report.to_json()["sample_count"] == 3
    assert report.to_json()["legs"][0]["compared"] == 1


@pytest.mark.parametrize("comparisons", [(), (Comparison(()),), (SAME, Comparison(()))])
def test_a_leg_without_outputs_does_not_pass(comparisons: tuple[Comparison, ...]) -> None:
    report = CheckReport("m", (Leg("MIGraphX ref", comparisons),))
    assert not report.passed
    assert report.exit_code == 1
    assert "was compared" in report.summary


def test_out_of_memory(worker: Worker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "shared", lambda *_: worker)  # whose memory is that of this test alone
    text = "(float[1, 8192] x) => (float[1, 1] y) { a = MatMul(t, x) y = ReduceMax(a) }"
    ir.save(tiny(text, t=np.ones((8192, 1), np.float32)), tmp_path / "m.onnx")
    bundle = onnx_bridge.convert(tmp_path / "m.onnx", tmp_path / "bundle", target="ref", memory=0.25, prove="never")
    report = onnx_bridge.check(bundle)
    assert report.largest_error is None
    assert isinstance(report.legs[1].failure.error, OutOfMemory)
    assert "largest error" not in report.summary


GATHER = "(float[4] x, int64[1] i) => (float[1] y) { a = Gather(x, i) y = Neg(a) }"
SAMPLES = [{"x": np.ones(4, np.float32), "i": np.array([index])} for index in (1, 9)]


def test_an_error_of_the_reference(runtime: Runtime, tmp_path: Path) -> None:
    """The second index is out of range."""
    with pytest.raises(InputError) as error:
        onnx_bridge.check(tiny(GATHER), inputs=SAMPLES, target="ref")
    assert error.value.details == {"model": "reference", "sample": 1, "samples": 2}
    assert "after 1 of 2" in error.value.what
    ir.save(tiny(GATHER), tmp_path / "m.onnx")
    np.savez(tmp_path / "in.npz", x=np.ones((2, 4), np.float32), i=np.array([[1], [9]]))
    command = [sys.executable, "-m", "onnx_bridge", "check", tmp_path / "m.onnx", "--inputs", tmp_path / "in.npz"]
    done = subprocess.run([*command, "--target", "ref", "--json"], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert json.loads(done.stdout)["error"]["details"]["sample"] == 1


def test_the_estimate_of_a_run(runtime: Runtime, tmp_path: Path) -> None:
    text = "(float[8, 16] x) => (float[8, 4] y) { y = MatMul(x, w) }"
    bundle = onnx_bridge.convert(tiny(text, w=np.ones((16, 4), np.float32)), tmp_path / "out", target="ref")
    lines: list[str] = []
    onnx_bridge.check(bundle, samples=2, progress=lines.append)
    work = Work(multiplied=8 * 16 * 4, moved=8 * 16 + 16 * 4 + 8 * 4)
    assert estimated_seconds(bundle) == pytest.approx(work_seconds(work, runtime))
    assert [each for each in lines if each.startswith("MIGraphX ref") and "of 2" in each]
    assert [each for each in lines if each.startswith("reference") and "of 2" in each]
