"""check --data: metrics over a dataset, of the reference, the cleaned model and the bundle side by side."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import onnx_ir as ir
import pytest
from typer.testing import CliRunner

import onnx_bridge
from onnx_bridge.cli.main import app
from onnx_bridge.core.errors import InputError
from onnx_bridge.migraphx import worker as workers
from onnx_bridge.migraphx.rehearsal.rehearsal import AS_GPU
from onnx_bridge.migraphx.runtime import Runtime
from onnx_bridge.migraphx.worker import Worker
from onnx_bridge.parity.checking.baseline import CLEANED
from onnx_bridge.parity.checking.report import REFERENCE
from onnx_bridge.parity.symptoms.symptom import SymptomKind
from tests.passes.helpers import tiny

RNG = np.random.default_rng(0)
WEIGHT = RNG.standard_normal((8, 10)).astype(np.float32)
TEXT = "(float[4, 8] x) => (float[4, 10] y) { h = MatMul(x, w) y = Softmax(h) }"
COARSE = """(float[4, 8] x) => (float[4, 10] y) {
    q = QuantizeLinear(w, scale, zero) d = DequantizeLinear(q, scale, zero)
    p = QuantizeLinear(x, scale, zero) e = DequantizeLinear(p, scale, zero)
    h = MatMul(e, d) y = Softmax(h) }"""
IMAGES = RNG.standard_normal((40, 8)).astype(np.float32)
LABELS = (IMAGES @ WEIGHT).argmax(axis=1)
REF = "MIGraphX ref"


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, Path]:
    """A classifier, the same coarsely quantized, and a dataset whose labels are right but for four."""
    folder = tmp_path_factory.mktemp("models")
    ir.save(tiny(TEXT, w=WEIGHT), folder / "float.onnx")
    scale = {"scale": np.array(0.9, np.float32), "zero": np.array(0, np.int8)}
    ir.save(tiny(COARSE, w=WEIGHT, **scale), folder / "quantized.onnx")
    labels = LABELS.copy()
    labels[:4] = (labels[:4] + 1) % 10
    np.savez(folder / "data.npz", x=IMAGES, label=labels)
    return folder / "float.onnx", folder / "quantized.onnx", folder / "data.npz"


def values(report: Any, metric: str) -> dict[str, float]:
    return {each.side: each.value for each in report.scores if each.metric == metric}


def test_accuracy_against_labels(runtime: Runtime, models: tuple[Path, Path, Path]) -> None:
    found = onnx_bridge.check(models[0], data=models[2], metrics=("top1", "sqnr"), target="ref")
    assert found.passed
    assert (found.samples, found.batches) == (40, 10)
    assert values(found, "top1") == {REFERENCE: 0.9, CLEANED: 0.9, REF: 0.9}
    assert values(found, "sqnr").keys() == {CLEANED, REF}
    assert min(values(found, "sqnr").values()) > 100
    assert {each.metric for each in found.scores} == {"top1", "sqnr"}


def test_agreement_without_labels(runtime: Runtime, models: tuple[Path, Path, Path]) -> None:
    found = onnx_bridge.check(models[0], data=[{"x": IMAGES}], metrics=["top1"], target="ref")
    assert values(found, "top1") == {CLEANED: 1.0, REF: 1.0}
    assert not any(each.against == "labels" for each in found.scores)


def test_quantized_against_float(runtime: Runtime, models: tuple[Path, Path, Path]) -> None:
    """The table of what quantization costs, on ref and as on a GPU."""
    found = onnx_bridge.check(
        models[1], data=models[2], metrics=["top1", "cosine"], reference=models[0], rehearse="gpu"
    )
    accuracy = values(found, "top1")
    assert accuracy.keys() == {REFERENCE, CLEANED, REF, AS_GPU}
    assert accuracy[REFERENCE] == 0.9
    assert all(accuracy[side] < 0.9 for side in (CLEANED, REF, AS_GPU))
    assert all(value < 0.9999 for value in values(found, "cosine").values())


def test_a_minimum_that_is_not_reached(runtime: Runtime, models: tuple[Path, Path, Path], tmp_path: Path) -> None:
    command = ["check", models[1], "--reference", models[0], "--data", models[2], "--min", "cosine=0.9999"]
    command += ["--metric", "top1", "--target", "ref", "--report", tmp_path / "r.html", "--junit", tmp_path / "r.xml"]
    found = CliRunner().invoke(app, [*map(str, command), "--json"])
    assert found.exit_code == 1, found.output
    report = json.loads(found.stdout)
    assert report["passed"] is False
    low = [each for each in report["scores"] if not each["passed"]]
    assert {(each["side"], each["metric"]) for each in low} == {(CLEANED, "cosine"), (REF, "cosine")}
    assert {each["metric"] for each in report["scores"]} == {"top1", "cosine"}
    suites = ElementTree.parse(tmp_path / "r.xml").getroot()
    assert (suites.get("tests"), suites.get("failures")) == ("5", "2")
    page = (tmp_path / "r.html").read_text()
    assert "cosine" in page
    assert "Accuracy is too low" in page
    text = CliRunner().invoke(app, list(map(str, command)))
    assert text.exit_code == 1
    assert sum("below 0.9999" in line for line in text.stdout.splitlines()) == 1


def test_a_minimum_that_is_reached(runtime: Runtime, models: tuple[Path, Path, Path]) -> None:
    command = ["check", models[0], "--data", models[2], "--min", "top1=0.9", "--samples", "10", "--target", "ref"]
    found = CliRunner().invoke(app, list(map(str, command)))
    assert found.exit_code == 0, found.output


def test_buckets(runtime: Runtime, models: tuple[Path, Path, Path], tmp_path: Path) -> None:
    """Batches of any size up to the largest bucket, on ref and as on a GPU."""
    text = TEXT.replace("float[4,", "float[n,")
    ir.save(tiny(text, w=WEIGHT), tmp_path / "m.onnx")
    made = onnx_bridge.convert(tmp_path / "m.onnx", tmp_path / "out", buckets={"n": [2, 16]}, target="ref")
    found = onnx_bridge.check(made, data=models[2], metrics=["top1", "cosine"], rehearse="gpu")
    assert (found.samples, found.batches) == (40, 3)  # 16, 16 and 8 rows
    assert values(found, "top1") == dict.fromkeys((REFERENCE, CLEANED, REF, AS_GPU), 0.9)
    command = ["check", made.path, "--data", models[2], "--min", "top1=0.9"]
    assert CliRunner().invoke(app, list(map(str, command))).exit_code == 0
    legs = onnx_bridge.check(made, rehearse="gpu").legs
    assert len(legs) == 4
    assert all(leg.passed for leg in legs)


@pytest.mark.parametrize("options", [("--seed", "1"), ("--strict",), ("--rtol", "0.1"), ("--tol", "y:atol=1")])
def test_options_that_say_nothing_about_metrics(models: tuple[Path, Path, Path], options: tuple[str, ...]) -> None:
    command = ["check", models[0], "--data", models[2], "--metric", "top1", *options]
    found = CliRunner().invoke(app, list(map(str, command)))
    assert isinstance(found.exception, InputError)
    assert options[0] in str(found.exception)


def test_a_bundle_that_runs_out_of_memory(worker: Worker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What runs is measured on all samples, what fails is not run again, and nothing passes."""
    monkeypatch.setattr(workers, "shared", lambda *_: worker)  # whose memory is that of this test alone
    text = "(float[1, 8192] x) => (float[1, 1] y) { a = MatMul(t, x) y = ReduceMax(a) }"
    ir.save(tiny(text, t=np.ones((8192, 1), np.float32)), tmp_path / "m.onnx")
    bundle = onnx_bridge.convert(tmp_path / "m.onnx", tmp_path / "bundle", target="ref", memory=0.25, prove="never")
    data = [{"x": np.ones((1, 8192), np.float32)}] * 2
    found = onnx_bridge.check(bundle, data=data, least={"cosine": 0.5})
    assert not found.passed
    assert found.exit_code == 3
    assert values(found, "cosine") == {CLEANED: 1.0}
    assert (found.failures[REF].sample, found.failures[REF].kind) == (0, SymptomKind.MEMORY)
    assert found.samples == 2
    assert "0 of 2" in found.summary
    assert found.to_json()["failures"][REF]["kind"] == SymptomKind.MEMORY.value


def test_progress_names_each_sample(runtime: Runtime, models: tuple[Path, Path, Path], tmp_path: Path) -> None:
    bundle = onnx_bridge.convert(models[0], tmp_path / "bundle", target="ref")
    lines: list[str] = []
    samples = [{"x": IMAGES[start : start + 4]} for start in range(0, 12, 4)]
    onnx_bridge.check(bundle, data=samples, metrics=["top1"], progress=lines.append)
    assert [each for each in lines if "of 3" in each] == lines[-3:]


@pytest.mark.parametrize(
    "options", [{}, {"metrics": ["top9"]}, {"metrics": ["iou"]}, {"least": {"accuracy": 1.0}}, {"metrics": ["top1"]}]
)
def test_what_cannot_be_measured(runtime: Runtime, models: tuple[Path, Path, Path], options: dict[str, Any]) -> None:
    data = [] if options == {"metrics": ["top1"]} else [{"x": IMAGES[:4]}]
    with pytest.raises(InputError):
        onnx_bridge.check(models[0], data=data, target="ref", **options)
