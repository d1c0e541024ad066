"""The report: its verdict, strict JSON, and rendering."""

from __future__ import annotations

import io
import json
import math

import numpy as np
import pytest
from rich.console import Console

from onnx_bridge.core.errors import WorkerCrashed, WorkerTimeout
from onnx_bridge.parity.bisect.bisection import Bisection, Component, Culprit, Fault
from onnx_bridge.parity.checking.report import CheckReport, Leg
from onnx_bridge.parity.failure import Failure
from onnx_bridge.parity.symptoms.symptom import SymptomKind
from onnx_bridge.reference.comparison.compare import Comparison, compare
from onnx_bridge.views.terminal.view import render

CRASH = Failure("run", WorkerCrashed("run", returncode=-6), 1)


def compared(actual: float, expected: float, name: str = "y") -> Comparison:
    return compare({name: np.array([actual], np.float32)}, {name: np.array([expected], np.float32)})


def rendered(report: CheckReport) -> str:
    console = Console(file=io.StringIO(), width=160)
    console.print(render(report))
    return console.file.getvalue()  # type: ignore[attr-defined]


GOOD = Leg("cleaned on ONNX Runtime", (compared(1, 1), compared(2, 2 + 2**-10)))


def test_all_legs_and_samples_agree() -> None:
    report = CheckReport("m.onnx", (GOOD,), seed=7, versions={"onnxruntime": "1.31"})
    assert report.passed
    assert report.summary == "m.onnx: parity holds in all 2 comparisons; largest error 0.000977"
    text = rendered(report)
    assert "cleaned on ONNX Runtime" in text
    assert "float32[1]" in text
    assert "onnxruntime 1.31, seed 7" in text


def test_one_differing_sample_fails() -> None:
    report = CheckReport("m.onnx", (GOOD, Leg("MIGraphX ref", (compared(1, 1, "y[0]"), compared(1, 2, "y[0]")))))
    assert not report.passed
    assert report.largest_error == 1.0
    assert report.summary == "m.onnx: parity fails: 1 of 4 comparisons differ; largest error 1"
    text = rendered(report)
    assert "MIGraphX ref, sample 1, output y[0]: 1 of 1 elements beyond tolerance" in text
    assert "differs" in text


def test_failure_of_a_leg_fails() -> None:
    report = CheckReport("m.onnx", (GOOD, Leg("MIGraphX ref", (compared(1, 1),), CRASH)))
    assert not report.passed
    assert report.exit_code == 3
    assert "MIGraphX ref crashes in the step run" in report.summary
    assert "MIGraphX ref: run, sample 1: MIGraphX's process was killed by SIGABRT" in rendered(report)
    with pytest.raises(WorkerCrashed):
        report.raise_failure()


def test_exit_codes() -> None:
    differing = CheckReport("m", (GOOD, Leg("x", (compared(1, 2),))))
    differing.raise_failure()
    assert [each.exit_code for each in (CheckReport("m", (GOOD,)), differing, CheckReport("m", ()))] == [0, 1, 1]


def test_bisection_is_rendered() -> None:
    fault = Fault(Component.MIGRAPHX, SymptomKind.CRASHES, "SIGABRT", "run", nodes=(Culprit("odd", "ScatterND"),))
    report = CheckReport("m", (Leg("MIGraphX", failure=CRASH),), bisection=Bisection("m", fault))
    assert "MIGraphX crashes on ScatterND odd (run): SIGABRT" in rendered(report)
    assert report.to_json()["bisection"]["fault"]["nodes"][0]["name"] == "odd"


def test_no_comparison_does_not_pass() -> None:
    for report in (
        CheckReport("m", ()),
        CheckReport("m", (GOOD, Leg("empty"))),
        CheckReport("m", (Leg("x", (Comparison(()),)),)),
    ):
        assert not report.passed
        assert "nothing was compared" in report.summary
        rendered(report)


def test_nan_on_both_sides_is_rendered() -> None:
    assert "1 of 1 NaN or Inf" in rendered(CheckReport("m", (Leg("x", (compared(math.nan, math.nan),)),)))


def test_notes_are_rendered_and_samples_are_not_in_the_json() -> None:
    samples = ({"x": np.zeros(1, np.float32)},)
    report = CheckReport("m", (GOOD,), notes=("the reference is the cleaned model",), samples=samples)
    assert "note: the reference is the cleaned model" in rendered(report)
    data = report.to_json()
    assert data["notes"] == ["the reference is the cleaned model"]
    assert "samples" not in data
    assert report.samples is samples


def test_long_lists_of_differences_are_truncated() -> None:
    text = rendered(CheckReport("m", (Leg("x", (compared(1, 2),) * 30),)))
    assert text.count("beyond tolerance") == 20
    assert "… and 10 more" in text


def test_json_is_strict_and_complete() -> None:
    failing = Failure("compile", WorkerTimeout("too long", hint="wait", output="words\n"))
    report = CheckReport("m", (Leg("x", (compared(math.nan, 1), compared(1, 1))), Leg("y", (), failing)), 3, {"a": "1"})
    data = json.loads(json.dumps(report.to_json(), allow_nan=False))
    assert (data["model"], data["passed"], data["seed"], data["versions"]) == ("m", False, 3, {"a": "1"})
    assert [(leg["name"], leg["passed"], leg["error"]) for leg in data["legs"]] == [
        ("x", False, None),
        ("y", False, "compile: too long"),
    ]
    assert data["legs"][1]["failure"] == {
        "step": "compile",
        "kind": "timeout",
        "sample": None,
        "what": "too long",
        "where": None,
        "hint": "wait",
        "printed": "words",
    }
    first, second = data["legs"][0]["samples"]
    assert (first["passed"], second["passed"]) == (False, True)
    assert first["outputs"][0]["worst_actual"] == "NaN"
    assert second["outputs"][0]["sqnr_db"] == "Infinity"


def test_verdicts_beyond_errors() -> None:
    right = {"ids": np.arange(8), "logits": np.eye(8, 10, dtype=np.float32)}
    got = {"ids": np.array([0, 1, 2, 3, 4, 5, 6, 9]), "logits": right["logits"].copy()}
    got["logits"][0, 9] = 2
    text = rendered(CheckReport("m", (Leg("x", (compare(got, right),)),)))
    assert "differs (87.50% the same)" in text
    assert "differs (top-1 87.5%, top-5 100.0%)" in text
