"""Ties, chaos and low precision against faults: a part of the forty models of ``make suite NAME=ties``."""

from __future__ import annotations

import json
import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest
from typer.testing import CliRunner

import onnx_bridge
from fixtures.suites.ties import models as ties
from fixtures.suites.ties import run
from onnx_bridge.cli.main import app
from onnx_bridge.model import io as models
from onnx_bridge.views.junit import write_junit
from tests.passes.helpers import tiny

pytestmark = pytest.mark.usefixtures("runtime")

CHOSEN = {each.name: each for each in ties.planted()}


@pytest.mark.parametrize(
    "name", ["detector-0", "suppression-0", "classifier-0", "rounding-0", "gate-0", "chaos-0", "iterated-0"]
)
def test_a_tie_is_not_determined_and_a_fault_behind_it_differs(name: str) -> None:
    subject = CHOSEN[name]
    found = run.check(subject)
    assert (found.verdict, found.exit_code, found.passed) == ("not determined", 4, False), found.summary
    broken = run.fault(subject, 0)
    assert broken.behind or not subject.chooses
    found = run.check(subject, broken)
    assert (found.verdict, found.exit_code) == ("differs", 1), found.summary


@pytest.mark.parametrize("name", ["detector-0", "gate-0", "chaos-0"])
def test_a_fault_of_the_program_alone_differs(name: str) -> None:
    """The model in the bundle is right: where its values are fetched, the fault has disappeared."""
    subject = CHOSEN[name]
    found = run.check_program(subject, run.fault(subject, 0))
    assert found is not None
    assert (found.verdict, found.exit_code) == ("differs", 1), found.summary


@pytest.mark.parametrize("name", ["sigmoid_map-0", "packed_weights-0", "half_inside-0"])
def test_low_precision_agrees_and_a_fault_differs(name: str) -> None:
    subject = CHOSEN[name]
    assert run.check(subject).verdict == "agrees"
    assert run.check(subject, run.fault(subject, 0)).verdict == "differs"


def test_the_tie_is_named_with_its_distance_and_what_agrees_given_the_same_choices(tmp_path: Path) -> None:
    found = run.check(CHOSEN["detector-0"])
    (output,) = [each for leg in found.legs for one in leg.comparisons for each in one.outputs if each.undetermined]
    assert output.undetermined is not None
    assert "TopK topk_" in output.undetermined
    assert output.max_abs is not None and output.given_choices is not None and output.moves is not None
    assert output.max_abs > 1 > 1e-3 > output.given_choices
    assert output.moves > 1  # the reference itself moves as far
    values = found.to_json()
    assert values["verdict"] == "not determined"
    write_junit(tmp_path / "out.xml", found)
    assert '<skipped message="not determined' in (tmp_path / "out.xml").read_text()


def test_exit_codes(tmp_path: Path) -> None:
    subject = CHOSEN["classifier-0"]
    path, sample = tmp_path / "m.onnx", tmp_path / "x.npz"
    models.save(subject.model, path)
    np.savez(sample, **subject.sample)
    words = ["check", str(path), "--inputs", str(sample), "--target", "ref", "--json"]
    found = CliRunner().invoke(app, words)
    assert found.exit_code == 4
    assert json.loads(found.stdout)["verdict"] == "not determined"
    assert CliRunner().invoke(app, [*words, "--strict"]).exit_code == 1


def test_a_wrong_choice_is_no_tie() -> None:
    """The converted model takes the smallest where the original takes the largest: its scores are the same."""
    subject = CHOSEN["detector-0"]
    broken = subject.model.clone()
    (node,) = [each for each in broken.graph if each.op_type == "TopK"]
    node.attributes["largest"] = ir.AttrInt64("largest", 0)
    found = run.check(subject, replace(run.fault(subject, 0), model=broken))
    assert found.verdict == "differs"


def test_bisect_and_layers_name_the_tie_and_blame_nothing() -> None:
    subject = CHOSEN["detector-0"]
    found = onnx_bridge.bisect(subject.model, inputs=[subject.sample], target="ref")
    assert (found.fault, found.passed, found.exit_code) == (None, False, 4)
    assert "TopK" in str(found.undetermined)
    report = onnx_bridge.check(subject.model, inputs=[subject.sample], target="ref", layers=True)
    assert report.layers is not None
    assert report.layers.undetermined is not None
    assert "It is no fault: TopK" in report.layers.sentence
    assert not any("no layer does" in note for note in report.notes)


def test_bisect_finds_a_fault_behind_a_tie() -> None:
    subject = CHOSEN["classifier-0"]
    broken = run.fault(subject, 0)
    with tempfile.TemporaryDirectory() as folder:
        right, wrong = Path(folder) / "right.onnx", Path(folder) / "wrong.onnx"
        models.save(subject.model, right)
        models.save(broken.model, wrong)
        found = onnx_bridge.bisect(wrong, reference=right, inputs=[subject.sample], target="ref")
    assert found.fault is not None
    assert [each.name for each in found.fault.nodes] == [broken.title.split()[-1]]


def test_what_samples_an_image_at_interpolated_places(tmp_path: Path) -> None:
    """Resize rounds its coordinates, each runtime in its way; GridSample multiplies that by the size of the image."""
    graph = """(float[1,2,65,65] flow, float[1,1,512,512] x) => (float[1,1,128,128] y) {
        r = Resize<mode = "linear", coordinate_transformation_mode = "align_corners">(flow, , , sizes)
        g = Transpose<perm = [0, 2, 3, 1]>(r)
        y = GridSample<align_corners = 1>(x, g)
    }"""
    models.save(tiny(graph, sizes=np.array([1, 2, 128, 128])), tmp_path / "warp.onnx")
    found = onnx_bridge.check(tmp_path / "warp.onnx", target="ref")
    assert found.verdict == "not determined", found.summary
