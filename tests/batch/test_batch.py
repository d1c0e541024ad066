"""Batches: jobs are found and named, done once, reported when they fail, and resumed."""

from __future__ import annotations

import functools
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper, parser

import onnx_bridge
import passes
from onnx_bridge.batch import journal as journals
from onnx_bridge.batch import scheduler
from onnx_bridge.batch.engines import local
from onnx_bridge.batch.jobs import gather, is_batch
from onnx_bridge.batch.model_info import ModelInfo
from onnx_bridge.batch.outcome import Outcome
from onnx_bridge.core.errors import InputError
from onnx_bridge.core.progress import Stage
from onnx_bridge.migraphx.runtime import Runtime
from onnx_bridge.requests.batch import JobRequest
from passes.rewriting.base import Proof
from tests.batch import requests
from tests.batch.inline import Inline
from tests.batch.requests import job

HEADER = '<ir_version: 8, opset_import: ["": 17]> g '
REF = job(target="ref")


def write(path: Path, seed: int = 0, body: str = "a = MatMul(x, w) y = Relu(a)") -> Path:
    """A small model, a different one for each seed."""
    model = parser.parse_model(f"{HEADER} (float[batch, 4] x) => (float[batch, 4] y) {{ {body} }}")
    weights = np.random.default_rng(seed).standard_normal((4, 4)).astype(np.float32)
    model.graph.initializer.append(numpy_helper.from_array(weights, "w"))
    path.parent.mkdir(parents=True, exist_ok=True)
    onnx.save(model, path)
    return path


convert_all = functools.partial(requests.convert_all, jobs=1)
"""Most tests have one model to convert, and processes take longer to start than that."""


def converted_here(sources: Sequence[Path], out: Path, request: JobRequest, **options: Any) -> Outcome:
    """Return what `convert_all` makes without processes."""
    return requests.convert_all(sources, out, request, engine=Inline(), **options)


def statuses(outcome: Outcome) -> dict[str, str]:
    return {each.name: each.status for each in outcome.jobs}


def events(out: Path) -> list[tuple[str, str]]:
    records, _, _ = journals.read(out / journals.STATE_FOLDER)
    return [(each["event"], each.get("job", "")) for each in records]


class TestGather:
    def names(self, *sources: Path, out: Path = Path("/out"), **rest: Any) -> dict[str, str]:
        return {job.name: job.source.name for job in gather(sources, out, **rest)}

    @pytest.fixture
    def folder(self, tmp_path: Path) -> Path:
        for name in ("a.onnx", "b.onnx", "sub/a.onnx", "sub/.hidden/c.onnx", "notes.txt"):
            path = tmp_path / "models" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch()
        return tmp_path / "models"

    def test_a_folder_keeps_its_paths(self, folder: Path) -> None:
        assert list(self.names(folder)) == ["a", "b", "sub/a"]

    def test_models_in_bundles_are_not_sources(self, folder: Path) -> None:
        for out in (folder / "out", folder / "elsewhere"):
            (out / "a").mkdir(parents=True)
            (out / "a/a.onnx").touch()
            (out / "a/manifest.json").write_text('{"format": 1, "program": null}')
        (folder / "out/loose.onnx").touch()
        assert list(self.names(folder, out=folder / "out")) == ["a", "b", "sub/a"]

    def test_names_that_clash_take_more_of_their_paths(self, folder: Path) -> None:
        found = self.names(folder / "a.onnx", folder / "b.onnx", folder / "sub/a.onnx")
        assert list(found) == ["models/a", "b", "sub/a"]

    def test_names_are_kept(self, folder: Path) -> None:
        known = {str(folder / "a.onnx"): "a", str(folder / "gone.onnx"): "b"}
        found = gather([folder / "sub/a.onnx", folder / "a.onnx", folder / "b.onnx"], Path("/out"), known=known)
        assert [job.name for job in found] == ["sub/a", "a", "b"]
        assert [job.name for job in gather([folder / "sub/a.onnx"], Path("/out"), known=known)] == ["sub/a"]

    def test_the_same_twice_is_one_job(self, folder: Path) -> None:
        assert list(self.names(folder / "a.onnx", folder / "a.onnx", folder / "*.onnx")) == ["a", "b"]

    def test_globs_and_lists(self, folder: Path) -> None:
        assert list(self.names(folder / "**/a.onnx")) == ["models/a", "sub/a"]
        (folder / "all.txt").write_text("# all of them\nb.onnx\n\nsub   # a folder\n")
        assert list(self.names(folder / "all.txt")) == ["b", "a"]

    @pytest.mark.parametrize("kind", ["toml", "yaml"])
    def test_job_files(self, folder: Path, kind: str) -> None:
        toml = """
            [defaults]
            target = "ref"
            dims = {batch = 1, seq = 8}
            [[jobs]]
            model = "a.onnx"
            [[jobs]]
            model = "a.onnx"
            name = "large/a8"
            dims = {batch = 8}
            freeze = {k = [5], s = "7"}
            shapes = {x = [1, 2]}
            check = true
            rtol = 0.5
            timeout = 3
            inputs = "x.npz"
        """
        yaml = """
            defaults: {target: ref, dims: {batch: 1, seq: 8}}
            jobs:
            - model: a.onnx
            - {model: a.onnx, name: large/a8, dims: {batch: 8}, freeze: {k: [5], s: '7'}, shapes: {x: [1, 2]},
               check: true, rtol: 0.5, timeout: 3, inputs: x.npz}
        """
        (folder / f"jobs.{kind}").write_text(toml if kind == "toml" else yaml)
        first, second = gather([folder / f"jobs.{kind}"], Path("/out"), job(pipeline="none", dims={"batch": 3}))
        assert (first.name, second.name) == ("a", "large/a8")
        assert first.source == second.source == folder / "a.onnx"
        assert first.request == job(target="ref", pipeline="none", dims={"batch": 1, "seq": 8})
        assert second.request == job(
            target="ref",
            pipeline="none",
            dims={"batch": 8, "seq": 8},
            freeze={"k": "[5]", "s": "7"},
            shapes={"x": (1, 2)},
            check=True,
            rtol=0.5,
            timeout=3,
            inputs=folder / "x.npz",
        )
        assert (first.own, second.own) == (frozenset(), frozenset({"batch", "k", "s", "x"}))
        stored = json.loads(json.dumps(second.request.to_json()))
        assert JobRequest.from_json(stored).conversion == second.request.conversion
        assert JobRequest.from_json(stored).inputs == folder / "x.npz"

    @pytest.mark.parametrize(
        ("text", "words"),
        [
            ("", "no jobs"),
            ("[[jobs]]\nname = 'x'", "names no model"),
            ("[[jobs]]\nmodel = 'a.onnx'\ndim = {a = 1}", "did you mean dims"),
            ("[[jobs]]\nmodel = 'a.onnx'\ndims = 3", "dims is not a table"),
            ("[[jobs]]\nmodel = 'a.onnx'\ndims = {a = 'x'}", r"dims cannot be .*'x'.*dims = "),
            ("[[jobs]]\nmodel = 'a.onnx'\nname = '../x'", "cannot be the name"),
            ("[[jobs]]\nmodel = 'a.onnx'\nname = 'x'\n[[jobs]]\nmodel = 'b.onnx'\nname = 'x'", "both write"),
            ("[[jobs]]\nmodel = 'a.onnx'\n[[jobs]]\nmodel = 'a.onnx'\nhost = false", "both write"),
            ("[jobs", "not well formed"),
            ("[[jobs]]\nmodel = 'a.onnx'\npad = {x = '0'}", "no effect without `buckets`"),
            ("[[jobs]]\nmodel = 'a.onnx'\nsamples = 3", "no effect without a comparison"),
            ("[defaults]\ncheck = true\n[[jobs]]\nmodel = 'a.onnx'\ncheck = false\nrtol = 0.1", "no effect without"),
        ],
    )
    def test_wrong_job_files(self, folder: Path, text: str, words: str) -> None:
        (folder / "jobs.toml").write_text(text)
        with pytest.raises(InputError, match=words):
            gather([folder / "jobs.toml"], Path("/out"))

    def test_sources_without_models(self, folder: Path) -> None:
        (folder / "empty").mkdir()
        for source in (folder / "empty", folder / "*.none"):
            with pytest.raises(InputError, match=r"no \.onnx file|no file matches"):
                gather([source], Path("/out"))
        (folder / "long.txt").write_text("a" * 300 + ".onnx")
        with pytest.raises(InputError, match="too long"):
            gather([folder / "long.txt"], Path("/out"))

    def test_one_file_is_not_a_batch(self, folder: Path) -> None:
        assert not is_batch([folder / "a.onnx"])
        assert not is_batch([folder / "absent.onnx"])
        assert all(map(is_batch, ([folder], [folder / "*.onnx"], [folder / "all.txt"], [folder / "a.onnx"] * 2)))

    def test_values_of_other_models_are_dropped(self) -> None:
        request = job(dims={"batch": 1, "seq": 2, "odd": 3}, freeze={"k": "1"})
        fitting = request.fitting(["batch"], ["x"], frozenset({"odd"})).conversion
        assert (fitting.dims, fitting.freeze) == ({"batch": 1, "odd": 3}, {})


@pytest.fixture(scope="module")
def done(runtime: Runtime, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A batch of three models, two of them valid."""
    folder = tmp_path_factory.mktemp("batch")
    write(folder / "models/a.onnx", 0)
    write(folder / "models/sub/b.onnx", 1)
    (folder / "models/c.onnx").write_text("no model")
    outcome = convert_all([folder / "models"], folder / "out", job(target="ref", check=True), jobs=2)
    assert statuses(outcome) == {"a": "converted", "c": "failed", "sub/b": "converted"}
    assert not outcome.passed
    assert "not an ONNX model" in outcome.jobs[1].reason
    return (folder / "models").rename(folder / "moved"), folder / "out"


@pytest.fixture
def again(done: tuple[Path, Path], tmp_path: Path) -> tuple[Path, Path]:
    """A copy of `done`, to resume."""
    models, out = tmp_path / "models", tmp_path / "out"
    shutil.copytree(done[0], models)
    shutil.copytree(done[1], out)
    return models, out


CHECKED = job(target="ref", check=True)


class TestResume:
    def test_first_run(self, done: tuple[Path, Path]) -> None:
        bundle = onnx_bridge.load(done[1] / "sub/b")
        assert bundle.manifest.source["path"] == str(done[0].with_name("models") / "sub/b.onnx")
        assert [each for each in events(done[1]) if each[0] in ("done", "checked")].count(("checked", "a")) == 1
        assert not list(done[1].rglob(".converting-*"))
        assert not (done[1] / ".batch/tmp").exists()
        assert "stage" not in (log := (done[1] / ".batch/logs/a.log").read_text())
        assert "compile" in log

    def test_nothing_is_repeated(self, again: tuple[Path, Path]) -> None:
        before = events(again[1])
        outcome = converted_here([again[0]], again[1], CHECKED)
        assert statuses(outcome) == {"a": "kept", "c": "skipped", "sub/b": "kept"}
        assert [event for event, _ in events(again[1])[len(before) :] if event != "seen"] == ["run", "end"]

    def test_touching_and_renaming(self, again: tuple[Path, Path]) -> None:
        (again[0] / "a.onnx").touch()
        (again[0] / "sub/b.onnx").rename(again[0] / "z.onnx")
        outcome = converted_here([again[0]], again[1], REF)
        assert statuses(outcome) == {"a": "kept", "c": "skipped", "z": "reused"}
        bundle = onnx_bridge.load(again[1] / "z")
        assert bundle.manifest.source["path"] == str(again[0] / "z.onnx")
        assert ("start", "z") not in events(again[1])

    def test_only_the_tolerance(self, again: tuple[Path, Path]) -> None:
        files = {path: path.stat().st_mtime_ns for path in again[1].rglob("*.mxr")}
        outcome = converted_here([again[0]], again[1], job(target="ref", check=True, atol=0.5))
        assert statuses(outcome) == {"a": "checked", "c": "skipped", "sub/b": "checked"}
        assert {path: path.stat().st_mtime_ns for path in again[1].rglob("*.mxr")} == files
        outcome = converted_here([again[0] / "a.onnx"], again[1], job(target="ref", check=True, rtol=0, atol=0))
        assert outcome.jobs[0].status in ("checked", "failed")  # the last bit may be equal

    def test_changed_inputs(self, again: tuple[Path, Path]) -> None:
        write(again[0] / "a.onnx", 5)
        outcome = converted_here([again[0]], again[1], CHECKED)
        assert statuses(outcome) == {"a": "converted", "c": "skipped", "sub/b": "kept"}
        outcome = converted_here([again[0]], again[1], job(target="ref", dims={"batch": 2}))
        assert statuses(outcome) == {"a": "converted", "c": "skipped", "sub/b": "converted"}

    def test_missing_and_damaged_bundles(self, again: tuple[Path, Path]) -> None:
        shutil.rmtree(again[1] / "a")
        os.truncate(again[1] / "sub/b/b.mxr", 10)
        outcome = converted_here([again[0]], again[1], REF)
        assert statuses(outcome) == {"a": "converted", "c": "skipped", "sub/b": "converted"}

    def test_without_a_journal_manifests_are_read(self, again: tuple[Path, Path]) -> None:
        shutil.rmtree(again[1] / ".batch")
        outcome = converted_here([again[0]], again[1], REF)
        assert statuses(outcome) == {"a": "kept", "c": "failed", "sub/b": "kept"}

    def test_a_damaged_journal(self, again: tuple[Path, Path]) -> None:
        journal = again[1] / ".batch/journal.jsonl"
        lines = journal.read_bytes().split(b"\n")
        journal.write_bytes(b"\n".join([*lines[:2], b"\xff" + lines[2], *lines[3:]]))
        outcome = converted_here([again[0]], again[1], REF)
        assert any("journal" in note for note in outcome.notes)
        assert statuses(outcome)["a"] == "kept"

    def test_no_resume_and_retry(self, again: tuple[Path, Path]) -> None:
        assert statuses(converted_here([again[0]], again[1], REF, retry=True))["c"] == "failed"
        assert statuses(converted_here([again[0] / "a.onnx"], again[1], REF, resume=False)) == {"a": "converted"}

    def test_a_dry_run_writes_nothing(self, again: tuple[Path, Path], tmp_path: Path) -> None:
        before = {path: path.stat().st_mtime_ns for path in again[1].rglob("*")}
        write(again[0] / "new.onnx", 7)
        write(again[0] / "twin.onnx", 7)
        outcome = converted_here([again[0]], again[1], CHECKED, dry_run=True)
        expected = {"a": "kept", "c": "skipped", "new": "planned", "sub/b": "kept", "twin": "planned"}
        assert statuses(outcome) == expected
        assert {path: path.stat().st_mtime_ns for path in again[1].rglob("*")} == before
        converted_here([again[0]], tmp_path / "other", REF, dry_run=True)
        assert not (tmp_path / "other").exists()


class TestFailures:
    def test_each_has_its_reason(self, runtime: Runtime, tmp_path: Path) -> None:
        write(tmp_path / "good.onnx")
        model = parser.parse_model(
            '<ir_version: 8, opset_import: ["": 17, "acme": 1]> g (float[2] x) => (float[2] y) { y = acme.Odd(x) }'
        )
        onnx.save(model, tmp_path / "odd.onnx")
        sources = [tmp_path / name for name in ("good.onnx", "odd.onnx", "absent.onnx")]
        outcome = convert_all(sources, tmp_path / "out", REF)
        reasons = {each.name: each.reason for each in outcome.jobs}
        assert reasons["good"] == ""
        assert "Odd" in reasons["odd"]
        assert "absent" in reasons["absent"] or "does not exist" in reasons["absent"].lower()
        odd = outcome.jobs[1]
        assert odd.log is not None
        assert "Traceback" in odd.log.read_text()
        assert odd.error is not None
        assert odd.error.kind == "RuntimeFailure"
        write(tmp_path / "absent.onnx", 3)  # what was not there is no fault of what is there now
        outcome = convert_all(sources, tmp_path / "out", REF)
        assert statuses(outcome) == {"good": "kept", "odd": "skipped", "absent": "converted"}

    def test_a_difference(self, runtime: Runtime, tmp_path: Path) -> None:
        """A job whose comparison fails has a bundle, and has failed."""
        write(tmp_path / "m.onnx", body="a = MatMul(x, w) b = Exp(a) y = Softmax(b)")
        data = tmp_path / "x.npz"
        np.savez(data, x=np.full((1, 4), 0.3, np.float32))
        request = job(target="ref", check=True, inputs=tmp_path / "wrong.npz")
        np.savez(tmp_path / "wrong.npz", q=np.zeros(3, np.float32))
        outcome = convert_all([tmp_path / "m.onnx"], tmp_path / "out", request)
        assert outcome.jobs[0].error is not None
        assert outcome.jobs[0].error.stage == Stage.CHECK
        assert statuses(convert_all([tmp_path / "m.onnx"], tmp_path / "out", request)) == {"m": "skipped"}
        request = job(target="ref", check=True, inputs=data)
        assert statuses(convert_all([tmp_path / "m.onnx"], tmp_path / "out", request)) == {"m": "checked"}

    def test_other_limits_are_another_attempt(self, runtime: Runtime, tmp_path: Path) -> None:
        model = parser.parse_model(
            f"{HEADER} (float[1, 6144] x) => (float[1, 6144] y) {{ p = ConstantOfShape(s) y = MatMul(x, p) }}"
        )
        model.graph.initializer.append(numpy_helper.from_array(np.array([6144, 6144]), "s"))
        onnx.save(model, tmp_path / "m.onnx")
        small = job(target="ref", pipeline="minimal", memory=0.12, host=False)
        assert "memory" in convert_all([tmp_path / "m.onnx"], tmp_path / "out", small).jobs[0].reason
        assert statuses(convert_all([tmp_path / "m.onnx"], tmp_path / "out", small)) == {"m": "skipped"}
        large = job(target="ref", pipeline="minimal", memory=4, host=False)
        assert statuses(convert_all([tmp_path / "m.onnx"], tmp_path / "out", large)) == {"m": "converted"}

    def test_other_files_are_not_overwritten(self, runtime: Runtime, tmp_path: Path) -> None:
        write(tmp_path / "models/a.onnx")
        (tmp_path / "out").write_text("mine")
        with pytest.raises(InputError, match="a file already"):
            convert_all([tmp_path / "models"], tmp_path / "out", REF)
        (tmp_path / "out").unlink()
        (tmp_path / "out/a").mkdir(parents=True)
        (tmp_path / "out/a/a.onnx").write_text("mine")
        outcome = convert_all([tmp_path / "models"], tmp_path / "out", REF)
        assert "no conversion wrote" in outcome.jobs[0].reason
        assert (tmp_path / "out/a/a.onnx").read_text() == "mine"


def test_killed_processes_are_replaced(runtime: Runtime, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A job whose process is killed is tried again, and fails only if that happens every time."""
    write(tmp_path / "models/a.onnx")
    kills = iter(range(scheduler._ATTEMPTS))

    class Killer(local.JobProcess):
        def perform(self, attempt: Any, task: Any) -> None:
            if next(kills, None) is not None:
                os.kill(self.pid, signal.SIGKILL)
            super().perform(attempt, task)

    monkeypatch.setattr(local, "JobProcess", Killer)
    outcome = convert_all([tmp_path / "models"], tmp_path / "out", REF)
    assert "was killed by SIGKILL" in outcome.jobs[0].reason
    assert statuses(convert_all([tmp_path / "models"], tmp_path / "out", REF)) == {"a": "converted"}


def test_a_second_program(runtime: Runtime, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journals, "_LOCK_SECONDS", 0.0)
    write(tmp_path / "models/a.onnx", 0)
    with journals.locked(tmp_path / "out") as journal:
        journal.add("run")
        with pytest.raises(InputError, match="another batch"):
            convert_all([tmp_path / "models"], tmp_path / "out", REF)
    assert events(tmp_path / "out") == [("run", "")]


def test_predicted_memory() -> None:
    assert ModelInfo("x", 1 << 30).memory == pytest.approx(4.1 * 2**30, rel=0.05)


Bridge = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def bridge() -> Bridge:
    def run(*arguments: object) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "onnx_bridge", *map(str, arguments)]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    return run


class TestCommandLine:
    def test_plain_lines_and_a_table(self, runtime: Runtime, bridge: Bridge, tmp_path: Path) -> None:
        write(tmp_path / "models/a.onnx", 0)
        (tmp_path / "models/c.onnx").write_text("no model")
        done = bridge("convert", tmp_path / "models", "-o", tmp_path / "out", "--target", "ref")
        assert done.returncode == 1
        assert "2 jobs" in done.stdout
        assert "not an ONNX model" in done.stdout
        assert sorted(line.split()[1:3] for line in done.stderr.splitlines()) == [["a", "converted"], ["c", "failed"]]
        done = bridge(
            "convert", tmp_path / "models/a.onnx", tmp_path / "models/a.onnx", "-o", tmp_path / "out", "--json"
        )
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout)["counts"] == {"kept": 1}
        assert done.stderr == ""

    def test_passes_of_the_user_reach_the_processes(self, runtime: Runtime, bridge: Bridge, tmp_path: Path) -> None:
        write(tmp_path / "models/a.onnx", 0)
        (tmp_path / "mine.py").write_text(
            "from dataclasses import dataclass\nfrom passes import register\n"
            "from passes.rewriting.base import Pass, Result\n"
            "@register\n@dataclass(frozen=True)\nclass Mine(Pass):\n    '''Nothing.'''\n    name = 'mine'\n"
            "    def run(self, model, context):\n        return Result(model)\n"
        )
        command = ["--passes", tmp_path / "mine.py", "convert", tmp_path / "models", "-o", tmp_path / "out"]
        done = bridge(*command, "--target", "ref", "--pipeline", "mine", "--json")
        assert done.returncode == 0, done.stdout
        with (tmp_path / "mine.py").open("a") as file:
            file.write("# changed\n")
        done = bridge(*command, "--target", "ref", "--pipeline", "mine", "--json")
        assert json.loads(done.stdout)["counts"] == {"converted": 1}

    @pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
    def test_interrupted(self, runtime: Runtime, tmp_path: Path, number: signal.Signals, code: int) -> None:
        """All processes end, partial results are removed, and the same command resumes."""
        for index in range(6):
            write(tmp_path / f"models/m{index}.onnx", index)
        out = tmp_path / "out"
        command = [sys.executable, "-m", "onnx_bridge", "convert", tmp_path / "models", "-o", out, "--target", "ref"]
        command += ["--jobs", "1"]
        process = subprocess.Popen(list(map(str, command)), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        while not any(event == "done" for event, _ in events(out)):
            assert process.poll() is None
            time.sleep(0.01)
        process.send_signal(number)
        process.communicate()
        assert process.returncode in (code, 0)
        assert not list(out.rglob(".converting-*"))
        kept = {name for event, name in events(out) if event == "done"}
        outcome = convert_all([tmp_path / "models"], out, REF)
        assert outcome.passed
        assert {name for name, status in statuses(outcome).items() if status == "kept"} >= kept

    def test_usage(self, bridge: Bridge, tmp_path: Path) -> None:
        write(tmp_path / "models/a.onnx", 0)
        done = bridge("convert", tmp_path / "models", "-o", tmp_path / "out.mxr")
        assert (done.returncode, len(done.stderr.splitlines())) == (2, 1)
        assert "need a folder" in done.stderr

    def test_one_model_and_its_check(self, runtime: Runtime, bridge: Bridge, tmp_path: Path) -> None:
        model = write(tmp_path / "a.onnx", 0)
        done = bridge("convert", model, "-o", tmp_path / "out", "--target", "ref", "--check", "--dim", "batch=2")
        assert done.returncode == 0, done.stderr
        assert "parity holds" in done.stdout
        assert (tmp_path / "out/a.mxr").exists()


class TestProofs:
    def test_bundles_are_proven_once_and_kept_if_proven_enough(self, runtime: Runtime, tmp_path: Path) -> None:
        write(tmp_path / "m.onnx")
        out = tmp_path / "out"

        def converted(prove: str) -> tuple[str, Any]:
            (result,) = converted_here([tmp_path / "m.onnx"], out, job(target="ref", prove=prove)).jobs
            assert result.proof is not None
            return result.status, result.proof.level

        assert converted("never") == ("converted", Proof.NONE)
        assert converted("never") == ("kept", Proof.NONE)
        assert converted("auto") == ("converted", Proof.RUN)
        assert converted("never") == ("kept", Proof.RUN)
        assert converted("always") == ("kept", Proof.RUN)

    def test_a_difference_fails_the_job_until_it_is_not_asked_for(self, runtime: Runtime, tmp_path: Path) -> None:
        write(tmp_path / "m.onnx")
        (tmp_path / "mine.py").write_text(
            "from dataclasses import dataclass\nimport onnx_ir as ir\nfrom passes import register\n"
            "from passes.rewriting.base import Pass, Result, Rewrite\n"
            "@register\n@dataclass(frozen=True)\nclass Doubles(Pass):\n    '''A defect.'''\n    name = 'doubles'\n"
            "    def run(self, model, context):\n        weight = model.graph.initializers['w']\n"
            "        weight.const_value = ir.tensor(weight.const_value.numpy() * 2, name='w')\n"
            "        return Result(model, [Rewrite(())])\n"
        )
        passes.load_file(tmp_path / "mine.py")

        def convert(prove: str) -> Outcome:
            request = job(target="ref", pipeline="doubles", prove=prove)
            return convert_all([tmp_path / "m.onnx"], tmp_path / "out", request, passes=[tmp_path / "mine.py"])

        outcome = convert("auto")
        assert not outcome.passed
        (result,) = outcome.jobs
        assert result.error is not None
        assert (result.error.kind, result.error.stage, result.error.exit_code) == ("ParityError", Stage.PROVE, 1)
        assert not (tmp_path / "out/m/manifest.json").exists()
        assert statuses(convert("auto")) == {"m": "skipped"}
        assert statuses(convert("never")) == {"m": "converted"}
        values = convert("never").to_json()["jobs"][0]["proof"]
        assert values["level"] == Proof.NONE.value
