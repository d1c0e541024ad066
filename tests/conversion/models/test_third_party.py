"""The suite of third-party models itself: its judgement, its lists, and that a refused or crashed model counts."""

from __future__ import annotations

import argparse
import json
import re
import shlex
import subprocess
from pathlib import Path
from unittest import mock

import onnx
import pytest

from fixtures import ROOT
from fixtures.suites import harness
from fixtures.suites import third_party_newest as newest
from fixtures.suites.harness import Suite
from fixtures.suites.harness import run as run_suite
from fixtures.suites.third_party import run
from fixtures.suites.third_party.exporters.choices import choose
from fixtures.suites.third_party.exporters.make import make
from fixtures.suites.third_party.judge import Outcome, judge
from onnx_bridge.migraphx.runtime import Runtime

MATRIX = """<ir_version: 8, opset_import: ["" : 17]> g (float[batch_size,sequence_length] x) => (float[N,M] y) {
    y = Softmax (x) }"""
TOO_SMALL = """<ir_version: 8, opset_import: ["" : 17]> g (float[1,1,size,size] x) => (float[N,C,H,W] y) {
    y = MaxPool <kernel_shape = [4, 4]> (x) }"""
BROKEN = """<ir_version: 8, opset_import: ["" : 17]> g (float[2] x) => (float[3] y) {
    three = Constant <value_ints = [3]> () y = Reshape (x, three) }"""


def saved(text: str, folder: Path) -> Path:
    path = folder / "model.onnx"
    onnx.save(onnx.parser.parse_model(text), path)
    return path


class Refused(Suite[Outcome]):
    """A suite of one model whose generated inputs the reference refuses: no square is 12."""

    name = "refused"
    verdicts = ("wholly", "host")

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self._folder = folder

    def cases(self, given: object) -> list[str]:
        return ["(float[3, 4] x, int64[1] i) => (float[n] y) { s = Mul(i, i) y = Reshape(x, s) }"]

    def judge(self, text: str) -> Outcome:
        return judge(saved(f'<ir_version: 8, opset_import: ["" : 17]> g {text}', self._folder))

    def line(self, row: Outcome) -> str:
        return ""

    def verdict(self, row: Outcome) -> str:
        return row.verdict


def test_a_suite_says_how_much_of_it_nothing_proves(
    runtime: Runtime, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run_suite(Refused(tmp_path), ["--json", str(tmp_path / "rows.json")])
    assert "unproven: 1 the reference refuses the whole model" in capsys.readouterr().out


@pytest.mark.parametrize(("scale", "idle"), [("1.0", False), ("1e-9", True)])
def test_a_row_says_when_other_inputs_have_the_same_outputs(
    scale: str, idle: bool, runtime: Runtime, tmp_path: Path
) -> None:
    text = f"g (float[2] x) => (float[2] y) <float s = {{{scale}}}> {{ z = Mul(x, s) y = Exp(z) }}"
    outcome = judge(saved(f'<ir_version: 8, opset_import: ["" : 17]> {text}', tmp_path))
    assert (outcome.verdict, outcome.idle) == ("wholly", idle)
    assert any("same outputs" in note for note in run.SUITE.notes([run.Row("model", outcome)])) == idle


def test_a_model_gets_the_sizes_that_are_chosen_for_it(runtime: Runtime, tmp_path: Path) -> None:
    path = saved(MATRIX, tmp_path)
    choose(tmp_path, sequence_length=5)
    assert json.loads(path.with_suffix(".json").read_text()) == {"dims": {"batch_size": 1, "sequence_length": 5}}
    assert judge(path).verdict == "wholly"


def test_sizes_that_convert_calls_too_small_are_what_it_calls_enough(runtime: Runtime, tmp_path: Path) -> None:
    assert judge(saved(TOO_SMALL, tmp_path)).verdict == "wholly"


def test_what_onnx_runtime_does_not_run_counts_neither_way(runtime: Runtime, tmp_path: Path) -> None:
    found = judge(saved(BROKEN, tmp_path))
    assert found.verdict == "not run"
    assert found.why


def test_a_process_that_ends_otherwise_has_crashed(runtime: Runtime, tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    saved(MATRIX, tmp_path)
    path.with_suffix(".json").write_text("no JSON")
    found = run.judged(path)
    assert found.verdict == "crashed"
    assert "JSONDecodeError" in found.why


def test_the_last_line_counts_what_onnx_runtime_runs() -> None:
    outcomes = [Outcome("wholly"), Outcome("with host"), Outcome("not run"), Outcome("wholly")]
    rows = [run.Row("model", outcome) for outcome in outcomes]
    assert run.SUITE.counts(rows) == "third-party: wholly 2, with host 1, wrong 0, refused 0, crashed 0, of 3"


def test_the_newest_exporters_have_a_line_of_their_own() -> None:
    rows = [run.Row("model", Outcome("wholly"))] * 19 + [run.Row("model", Outcome("with host"))]
    assert newest.SUITE.counts(rows).startswith("third-party newest: wholly 19, with host 1,")
    assert not newest.SUITE.failed(rows)
    assert newest.SUITE.failed(rows[1:])
    assert {*run.FAMILIES} - {*newest.NEEDS} == {"packaged"}  # of which it has all, as they are
    exporters = Path(run.__file__).parent / "exporters"
    assert all((exporters / f"{family.replace('.', '/')}.py").exists() for family in newest.NEEDS)


def test_the_weekly_workflow_runs_the_suite_with_options_that_it_has() -> None:
    text = (ROOT / ".github" / "workflows" / "newest.yml").read_text()
    ((_, _, name, options),) = (shlex.split(command) for command in re.findall("run: (make suite .*)", text))
    suite = harness.load(name.removeprefix("NAME="))
    assert isinstance(suite, newest.Newest)
    with pytest.raises(SystemExit) as exit:
        harness.run(suite, [*options.removeprefix("ARGS=").split(), "--help"])
    assert exit.value.code == 0


def test_what_takes_pytorch_names_the_build_that_is_tested() -> None:
    exporters = Path(run.__file__).parent / "exporters"
    for family, needs in newest.NEEDS.items():
        text = (exporters / f"{family.replace('.', '/')}.py").read_text()
        takes_it = re.search('import torch|import seeded|newest.schemes|"torch"', text) is not None
        assert takes_it == ({"torch==2.13.0", "onnxscript"} <= {*needs}), family


def test_packages_are_named_however_they_spell_themselves() -> None:
    versions = ["tensorflow_cpu==2.21.0", "tf2onnx==1.17.0", "onnx==1.23.2", "six==1.17.0"]
    assert newest.named("tensorflow_models", versions) == versions[:-1]
    assert newest.named("newest.modelopt", ["nvidia-modelopt==0.47.0"]) == ["nvidia-modelopt==0.47.0"]


REFUSED = [run.Model("newest.quark/int8", None, "KeyError: 'scale'")]


@pytest.mark.parametrize(
    ("models", "why"),
    [
        (subprocess.CalledProcessError(1, "pip", stderr="w\nERROR: No matching distribution\nnotice"), "No matching"),
        (subprocess.CalledProcessError(1, "make", stderr="ModuleNotFoundError: No module 'quark'\n"), "No module"),
        (subprocess.CalledProcessError(-11, "make", stderr=""), "SIGSEGV"),
        ([REFUSED], "KeyError: 'scale'"),
    ],
    ids=["not installed", "not imported", "killed", "nothing exported"],
)
def test_a_family_that_cannot_be_made_is_named_and_fails_the_suite(
    models: object, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(newest.Newest, "models", mock.Mock(side_effect=models))
    suite = newest.Newest()
    rows = [suite.judge(model) for model in suite.cases(argparse.Namespace(family=["newest.quark"]))]
    (note,) = (note for note in suite.notes(rows) if note.startswith("not made: newest.quark: "))
    assert why in note
    wholly = [run.Row("model", Outcome("wholly"))]
    assert suite.failed(wholly + rows)
    assert not suite.failed(wholly)
    assert suite.counts(wholly + rows) == f"{suite.counts(wholly)}; not made: newest.quark"


def test_the_rows_of_one_family_are_not_those_of_a_whole_run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(harness, "BUILD", tmp_path)
    monkeypatch.setattr(newest.Newest, "families", ("newest.quark", "newest.olive"))
    monkeypatch.setattr(newest.Newest, "models", mock.Mock(return_value=REFUSED))
    assert harness.run(newest.Newest(), ["--family", "newest.quark"]) == 1
    assert not any(tmp_path.iterdir())
    harness.run(newest.Newest(), [])
    assert [file.name for file in tmp_path.iterdir()] == ["third-party-newest.json"]


def test_a_process_that_a_signal_ends_before_the_first_model_is_not_started_again(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(run, "BUILD", tmp_path)
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\necho Fatal >&2; kill -SEGV $$")
    python.chmod(0o755)
    with pytest.raises(subprocess.CalledProcessError) as error:
        run.made("newest.quark", python)
    assert error.value.stderr == "Fatal\n"


def test_exporters_run_where_no_project_lies(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(run, "BUILD", tmp_path)
    python = tmp_path / "python"  # some exporters build extensions by the project file of the current folder
    python.write_text("#!/bin/sh\nls pyproject.toml && echo there; ls $PYTHONPATH/pyproject.toml; exit 1")
    python.chmod(0o755)
    with pytest.raises(subprocess.CalledProcessError) as error:
        run.made("newest.modelopt", python)
    assert "there" not in error.value.stderr
    assert str(ROOT / "pyproject.toml") in error.value.stderr


def test_advice_is_followed_though_a_dimension_has_no_name(runtime: Runtime, tmp_path: Path) -> None:
    path = saved(TOO_SMALL.replace("float[1,1,size,size]", "float[?,1,?,?]"), tmp_path)
    assert judge(path).verdict == "wholly"


def failed(outcomes: list[Outcome]) -> bool:
    return run.SUITE.failed([run.Row("model", outcome) for outcome in outcomes])


@pytest.mark.parametrize("bad", ["wrong", "refused", "crashed"])
def test_one_bad_model_is_too_many(bad: str) -> None:
    wholly = [Outcome("wholly")] * 20
    assert not failed(wholly)
    assert not failed([*wholly, Outcome("with host"), Outcome("not run")])
    assert failed([*wholly, Outcome(bad)])
    assert failed([Outcome("wholly"), Outcome("with host")])
    assert failed([])


def test_an_exporter_that_fails_is_listed_and_what_is_made_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from fixtures.suites.third_party.exporters import packaged

    def good(folder: Path) -> None:
        saved(MATRIX, folder)

    def bad(folder: Path) -> None:
        raise ValueError("it cannot")

    def ended(folder: Path) -> None:
        raise SystemExit("it ends the process")

    monkeypatch.setattr(packaged, "MODELS", {"ended": ended, "good": good, "bad": bad, "empty": lambda _: None})
    for _ in range(2):
        make("packaged", tmp_path)
        assert (tmp_path / "ended.refused").read_text() == "SystemExit: it ends the process"
        assert (tmp_path / "bad.refused").read_text() == "ValueError: it cannot"
        assert (tmp_path / "empty.refused").exists()
        assert [entry.name for entry in tmp_path.iterdir() if entry.is_dir()] == ["good"]
        monkeypatch.setattr(packaged, "MODELS", {"good": bad})
