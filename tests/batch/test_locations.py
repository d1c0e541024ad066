"""Remote models and bundles: found, hashed, converted, resumed from another machine, and never incomplete."""

from __future__ import annotations

import hashlib
import json
import os
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import onnx
import pytest

import onnx_bridge
from onnx_bridge.batch import journal as journals
from onnx_bridge.batch import remote_journal
from onnx_bridge.batch.engines.job_process import perform
from onnx_bridge.batch.events import Event, Failed, Task
from onnx_bridge.batch.jobs import gather
from onnx_bridge.batch.model_info import read_model_info
from onnx_bridge.batch.outcome import Outcome
from onnx_bridge.batch.output import output_at
from onnx_bridge.core.errors import BridgeError, InputError, Unreachable
from onnx_bridge.core.files.locations import RemotePath, parse_location
from onnx_bridge.migraphx.runtime import Runtime
from onnx_bridge.model import io as models
from onnx_bridge.requests.batch import JobRequest
from tests.batch.inline import Inline
from tests.batch.requests import convert_all, job
from tests.batch.test_batch import statuses, write

REF = job(target="ref")


@pytest.fixture
def root() -> Iterator[RemotePath]:
    """A remote folder for this test."""
    found = RemotePath(f"memory://test-{uuid.uuid4().hex}")
    yield found
    found.remove()


@pytest.fixture
def machine(runtime: Runtime, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """``machine(name)``: continue as another machine, with a cache folder of its own."""
    monkeypatch.setenv("ONNX_BRIDGE_RUNTIME", str(runtime.path))

    def become(name: str) -> None:
        monkeypatch.setenv("ONNX_BRIDGE_CACHE", str(tmp_path / "machines" / name))

    become("first")
    return become


def upload(path: Path, target: RemotePath) -> None:
    for each in [path] if path.is_file() else sorted(path.rglob("*")):
        if each.is_file():
            (target if path.is_file() else target / each.relative_to(path).as_posix()).upload(each)


def with_data(path: Path) -> Path:
    """A model with external data in two files."""
    model = onnx.load(write(path, 3, "a = MatMul(x, w) y = Add(a, b)"))
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.arange(4, dtype=np.float32), "b"))
    for tensor, name in zip(model.graph.initializer, ("w.bin", "sub/b.bin"), strict=True):
        file = path.parent / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(tensor.raw_data)
        tensor.data_location = onnx.TensorProto.EXTERNAL
        tensor.external_data.add(key="location", value=name)
        tensor.ClearField("raw_data")
    path.write_bytes(model.SerializeToString())
    return path


def convert(root: RemotePath, request: JobRequest = REF, source: str = "models", **options: Any) -> Outcome:
    return convert_all([root / source], root / "out", request, engine=Inline(), **options)


def events(root: RemotePath) -> list[tuple[str, str]]:
    """The events in the copies of the journal."""
    folder = root / "out/.batch/journal"
    lines = [line for data in folder.read_many(sorted(folder.files())).values() for line in data.splitlines()]
    records = [journals.decode_record(line) for line in lines]
    return [(each["event"], each.get("job", "")) for each in records if each is not None]


class TestRemotePath:
    def test_parsing(self) -> None:
        assert parse_location("a/b.onnx") == Path("a/b.onnx")
        assert parse_location("file:///a/b.onnx") == Path("/a/b.onnx")
        assert parse_location("s3://bucket/a/") == RemotePath("s3://bucket/a")
        assert parse_location(Path("a")) == Path("a")
        with pytest.raises(InputError):
            parse_location("")

    def test_parts(self) -> None:
        model = RemotePath("s3://bucket/models/net.v2.onnx")
        assert (model.name, model.stem, model.suffix) == ("net.v2.onnx", "net.v2", ".onnx")
        assert model.parts == ("s3://bucket", "models", "net.v2.onnx")
        assert model.parent / "../x/y.bin" == RemotePath("s3://bucket/x/y.bin")
        assert model.with_suffix("").relative_to(RemotePath("s3://bucket")) == Path("models/net.v2")

    def test_a_missing_file(self, root: RemotePath) -> None:
        assert not root.exists()
        assert root.files() == {}
        assert root.fingerprint() is None
        root.remove()
        with pytest.raises(InputError, match="the file does not exist"):
            root.read_bytes()

    def test_files(self, root: RemotePath, tmp_path: Path) -> None:
        (root / "a/b.txt").write_bytes(b"one")
        before = (root / "a/b.txt").fingerprint()
        listed = root.files()
        assert {name: each[:2] for name, each in listed.items()} == {"a/b.txt": (f"{root}/a/b.txt", 3)}
        assert root.files() == listed
        assert (root / "a/b.txt").digest() == hashlib.sha256(b"one").hexdigest()
        assert (root / "a").is_dir()
        (root / "a/b.txt").write_bytes(b"two")
        assert (root / "a/b.txt").fingerprint() != before
        assert root.files() != listed
        (root / "c").copy_from(root / "a", ["b.txt"])
        assert (root / "c/b.txt").read_text() == "two"
        (root / "c/b.txt").download(tmp_path / "new/b.txt")
        assert (tmp_path / "new/b.txt").read_text() == "two"
        assert [each.name for each in (root / "*/b.txt").glob()] == ["b.txt", "b.txt"]
        assert root.read_many(["a/b.txt", "gone"]) == {"a/b.txt": b"two"}

    def test_an_unknown_scheme(self) -> None:
        with pytest.raises(InputError, match="nosuch"):
            RemotePath("nosuch://a/b").exists()

    def test_errors_of_a_file_system_are_transient(self, root: RemotePath, monkeypatch: Any) -> None:
        def broken(*_arguments: Any, **_options: Any) -> None:
            raise ConnectionResetError("the line is cut")

        with monkeypatch.context() as cut, pytest.raises(Unreachable, match="the line is cut"):
            cut.setattr(type(fsspec.filesystem("memory")), "info", broken)
            root.fingerprint()

    def test_without_the_extra(self, root: RemotePath, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(__import__("sys").modules, "fsspec.core", None)
        with pytest.raises(InputError, match=r"onnx-bridge\[ray\]"):
            root.exists()


class TestModels:
    def test_jobs(self, root: RemotePath, tmp_path: Path) -> None:
        for name in ("a.onnx", "sub/b.ONNX", ".hidden/c.onnx", "bundle/manifest.json", "bundle/d.onnx", "out/e.onnx"):
            (root / name).write_bytes(b"x")
        (root / "all.txt").write_bytes(f"sub/b.ONNX\n{root}/a.onnx # a URL\n{tmp_path}/here.onnx".encode())
        (root / "jobs.toml").write_bytes(b'[[jobs]]\nmodel = "a.onnx"\nname = "mine"\n[[jobs]]\nmodel = "sub"\n')

        def found(*sources: RemotePath) -> dict[str, str]:
            return {each.name: str(each.source) for each in gather(sources, root / "out")}

        both = {"a": f"{root}/a.onnx", "sub/b": f"{root}/sub/b.ONNX"}
        assert found(root) == both
        assert list(found(root / "*.onnx")) == ["a"]
        assert list(found(root / "all.txt")) == ["b", "a", "here"]
        assert list(found(root / "jobs.toml")) == ["mine", "b"]
        with pytest.raises(InputError, match="no file matches"):
            found(root / "*.pb")

    @pytest.mark.parametrize("external", [False, True])
    def test_keys_are_those_of_a_local_copy(self, root: RemotePath, tmp_path: Path, external: bool) -> None:
        path = (with_data if external else write)(tmp_path / "m.onnx")
        upload(tmp_path, root / "models")
        here, there = read_model_info(path), read_model_info(root / "models/m.onnx")
        assert there.digest == here.digest == models.digest(path)
        assert (there.bytes, there.inputs, there.symbols) == (here.bytes, here.inputs, here.symbols)
        assert len(there.files) == (3 if external else 1)
        assert read_model_info(root / "models/m.onnx", there.to_json()) == there
        (root / "models/w.bin" if external else root / "models/m.onnx").remove()
        assert read_model_info(root / "models/m.onnx", there.to_json()).problem is not None

    def test_an_invalid_model(self, root: RemotePath) -> None:
        (root / "m.onnx").write_bytes(b"no model")
        found = read_model_info(root / "m.onnx")
        assert found.digest is not None
        assert found.problem is not None
        assert found.problem.where == f"{root}/m.onnx"
        assert read_model_info(root / "absent.onnx").digest is None


class TestBatches:
    @pytest.fixture(autouse=True)
    def _machine(self, machine: Any) -> None:
        """All tests run on one machine unless they change it."""

    def test_resuming_on_another_machine(self, root: RemotePath, machine: Any, tmp_path: Path) -> None:
        write(tmp_path / "models/a.onnx", 0)
        with_data(tmp_path / "models/sub/b.onnx")
        (tmp_path / "models/c.onnx").write_text("no model")
        upload(tmp_path / "models", root / "models")
        checked = job(target="ref", check=True)
        assert statuses(convert(root, checked)) == {"a": "converted", "c": "failed", "sub/b": "converted"}
        there = (root / "out").files()
        assert {each for each in there if not each.startswith(".batch")} == {
            f"{name}/{file}" for name, stem in (("a", "a"), ("sub/b", "b"))
            for file in ("manifest.json", f"{stem}.onnx", f"{stem}.mxr")
        }  # fmt: skip
        assert [each for each in there if each.startswith(".batch")] == [
            each for each in there if each.startswith(".batch/journal/")
        ]
        manifest = json.loads((root / "out/sub/b/manifest.json").read_bytes())
        assert manifest["source"]["path"] == f"{root}/models/sub/b.onnx"
        upload_back = tmp_path / "back"
        for name in (root / "out/sub/b").files():
            (root / "out/sub/b" / name).download(upload_back / name)
        assert onnx_bridge.load(upload_back)({"x": np.ones((1, 4), np.float32)})["y"].shape == (1, 4)  # type: ignore[union-attr]
        before = events(root)
        machine("second")
        (root / "models/a2.onnx").write_bytes((root / "models/a.onnx").read_bytes())
        (root / "models/a.onnx").remove()
        outcome = convert(root, checked)
        assert statuses(outcome) == {"a2": "reused", "c": "skipped", "sub/b": "kept"}
        new = [each for each in events(root)[len(before) :] if each[0] != "seen"]
        assert new == [("run", ""), ("done", "a2"), ("end", "")]
        manifest = json.loads((root / "out/a2/manifest.json").read_bytes())
        assert manifest["source"]["path"] == f"{root}/models/a2.onnx"
        assert (root / "out/a2/a.mxr").exists()

    def test_without_a_journal_manifests_are_read(self, root: RemotePath, machine: Any, tmp_path: Path) -> None:
        """Also with what a killed machine left incomplete."""
        upload(write(tmp_path / "a.onnx"), root / "models/a.onnx")
        upload(write(tmp_path / "b.onnx", 1), root / "models/b.onnx")
        assert convert(root).passed
        (root / "out/.batch").remove()
        (root / "out/b/b.mxr").write_bytes(b"x")
        (root / "out/.batch/staging/0123/a.mxr").write_bytes(b"left by one that was killed")
        machine("second")
        assert statuses(convert(root)) == {"a": "kept", "b": "converted"}
        assert not (root / "out/.batch/staging").exists()

    def test_records_that_were_not_copied(self, root: RemotePath, monkeypatch: Any, tmp_path: Path) -> None:
        """The last records of a killed program are copied by the next one on that machine, once."""
        upload(write(tmp_path / "a.onnx"), root / "models/a.onnx")
        with monkeypatch.context() as cut:
            cut.setattr(remote_journal.RemoteJournal, "_copy", lambda _self: None)
            convert(root)
        assert events(root) == []
        convert(root)
        assert [each for each in events(root) if each[0] == "done"] == [("done", "a")]
        assert len(events(root)) == len(output_at(root / "out").records())

    def test_buckets(self, root: RemotePath, tmp_path: Path) -> None:
        upload(write(tmp_path / "a.onnx"), root / "models/a.onnx")
        request = job(target="ref", buckets={"batch": (1, 4)}, check=True)
        assert statuses(convert(root, request)) == {"a": "converted"}
        assert statuses(convert(root, request)) == {"a": "kept"}
        assert (root / "out/a/batch=4/manifest.json").exists()
        request = job(target="ref", buckets={"batch": (1, 2)})
        assert statuses(convert(root, request)) == {"a": "converted"}
        assert not [each for each in (root / "out/a").files() if "batch=4" in each]

    def test_only_the_tolerance(self, root: RemotePath, tmp_path: Path) -> None:
        upload(write(tmp_path / "a.onnx"), root / "models/a.onnx")
        assert convert(root).passed
        program = (root / "out/a/a.mxr").fingerprint()
        assert statuses(convert(root, job(target="ref", check=True, atol=0.5))) == {"a": "checked"}
        assert (root / "out/a/a.mxr").fingerprint() == program

    def test_other_files_are_not_overwritten(self, root: RemotePath, tmp_path: Path) -> None:
        upload(write(tmp_path / "a.onnx"), root / "models/a.onnx")
        (root / "out/a/a.onnx").write_bytes(b"mine")
        outcome = convert(root)
        assert "no conversion wrote" in outcome.jobs[0].reason
        assert (root / "out/a/a.onnx").read_bytes() == b"mine"
        assert not (root / "out/a/manifest.json").exists()

    def test_local_models_with_remote_bundles_and_vice_versa(self, root: RemotePath, tmp_path: Path) -> None:
        path = write(tmp_path / "a.onnx")
        assert convert_all([path], root / "out", REF, engine=Inline()).passed
        upload(path, root / "models/a.onnx")
        outcome = convert_all([root / "models"], tmp_path / "out", REF, engine=Inline())
        assert outcome.passed
        bundle = onnx_bridge.load(tmp_path / "out/a")
        assert bundle.manifest.source["path"] == f"{root}/models/a.onnx"
        assert not (tmp_path / "out/.batch/staging").exists()
        assert statuses(convert_all([root / "models"], tmp_path / "out", REF, engine=Inline())) == {"a": "kept"}

    def test_a_dry_run_writes_nothing(self, root: RemotePath, tmp_path: Path) -> None:
        upload(write(tmp_path / "a.onnx"), root / "models/a.onnx")
        assert statuses(convert(root, dry_run=True)) == {"a": "planned"}
        assert list(root.files()) == ["models/a.onnx"]

    @pytest.mark.parametrize("fails", range(3))
    def test_a_bundle_is_whole_or_absent(self, root: RemotePath, monkeypatch: Any, tmp_path: Path, fails: int) -> None:
        """Whichever write fails, however often: there is no manifest without all of its files."""
        upload(write(tmp_path / "a.onnx"), root / "models/a.onnx")
        assert convert(root).passed
        upload(write(tmp_path / "a.onnx", 1), root / "models/a.onnx")
        copy_from, count = RemotePath.copy_from, iter(range(1000))

        def failing(self: RemotePath, other: RemotePath, names: list[str]) -> None:
            for each in names:
                if next(count) % 3 == fails:
                    raise Unreachable("the line is cut", where=self.url)
                copy_from(self, other, [each])

        with monkeypatch.context() as cut:
            cut.setattr(RemotePath, "copy_from", failing)
            outcome = convert(root)
        assert "the line is cut" in outcome.jobs[0].reason
        assert not (root / "out/a/manifest.json").exists()
        assert events(root).count(("again", "a")) == 2
        assert statuses(convert(root)) == {"a": "converted"}
        assert set((root / "out/a").files()) == {"a.onnx", "a.mxr", "manifest.json"}
        assert not (root / "out/.batch/publishing").exists()

    def test_a_second_program_on_this_machine(self, root: RemotePath, machine: Any, monkeypatch: Any) -> None:
        monkeypatch.setattr(journals, "_LOCK_SECONDS", 0.0)
        with output_at(root / "out").locked() as journal:
            journal.add("run")
            again = output_at(root / "out").locked()
            with pytest.raises(InputError, match="another batch"), again:
                pass
        with output_at(root / "out").locked() as journal:
            assert [each["event"] for each in journal.records] == ["run"]

    def test_records_are_copied_while_the_batch_runs(self, root: RemotePath, machine: Any, monkeypatch: Any) -> None:
        monkeypatch.setattr(remote_journal, "_COPY_SECONDS", 0.01)
        with output_at(root / "out").locked() as journal:
            journal.add("run")
            deadline = time.monotonic() + 10
            while not events(root) and time.monotonic() < deadline:
                time.sleep(0.01)
            machine("second")
            assert [each["event"] for each in output_at(root / "out").records()] == ["run"]

    @pytest.mark.parametrize("what", ["source", "data", "passes", "staging"])
    def test_files_that_a_node_does_not_have(self, tmp_path: Path, what: str) -> None:
        """The failure is transient: another node may have the file."""
        emitted: list[Event] = []
        model, gone = write(tmp_path / "a.onnx"), tmp_path / "gone"
        (tmp_path / "out/.batch").mkdir(parents=True)
        task = Task(
            source=str(gone if what == "source" else model),
            bundle=str(tmp_path / "out/a"),
            staging=str((gone if what == "staging" else tmp_path) / "out/.batch/staging/0"),
            request=job(target="ref", pipeline="minimal", inputs=gone if what == "data" else None).to_json(),
            convert=True,
            check=False,
            reuse=False,
            log=os.devnull,
            passes=(str(gone),) if what == "passes" else (),
        )
        perform(task, emitted.append)
        assert isinstance(last := emitted[-1], Failed)
        assert (last.failure.kind, last.failure.transient) == ("Unreachable", True)
        assert "gone" in str(last.failure.where)
        assert "every node sees it" in str(last.failure.hint)

    def test_a_location_that_does_not_respond(self, root: RemotePath, monkeypatch: Any) -> None:
        def broken(*_arguments: Any, **_options: Any) -> None:
            raise ConnectionResetError("the line is cut")

        with monkeypatch.context() as cut, pytest.raises(BridgeError, match="the line is cut"):
            cut.setattr(type(fsspec.filesystem("memory")), "find", broken)
            convert(root)
