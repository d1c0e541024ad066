"""What a batch keeps: bundles that `verify` finds intact, by their digests, without reading each file every time."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import onnx_bridge
from onnx_bridge.batch.events import Task
from onnx_bridge.bundle.files.verify import verify
from onnx_bridge.core.files import known_digests
from onnx_bridge.core.files.locations import RemotePath
from onnx_bridge.migraphx.runtime import Runtime
from tests.batch.inline import Inline
from tests.batch.requests import convert_all, job
from tests.batch.test_batch import REF, statuses, write
from tests.batch.test_locations import root, upload

__all__ = ["root"]

PLAIN = ["manifest.json", "m.mxr", "m.onnx"]
WITH_BUCKETS = ["manifest.json", "m.onnx", "batch=1/manifest.json", "batch=1/m.mxr", "batch=4/m.onnx"]
BUCKETS = job(target="ref", buckets={"batch": (1, 4)})


def change_one_byte(path: Path) -> None:
    """Change a byte in the middle of a file, where a manifest stays valid JSON."""
    content = bytearray(path.read_bytes())
    at = content.find(b"MIGraphX") if path.suffix == ".json" else len(content) // 2
    content[at if at > 0 else content.index(b"e")] ^= 1
    with path.open("r+b") as file:
        file.write(content)


@pytest.fixture
def cache(monkeypatch: Any, tmp_path: Path) -> Iterator[Path]:
    """Record digests in a folder of the test, also of files that were just written."""
    folder = tmp_path / "cache"
    monkeypatch.setattr(known_digests, "cache_dir", lambda: folder)
    monkeypatch.setattr(known_digests, "_TIMESTAMP_NANOSECONDS", 0)
    yield folder


@pytest.fixture(scope="session")
def made(runtime: Runtime, tmp_path_factory: Any) -> Path:
    folder: Path = tmp_path_factory.mktemp("kept")
    model = write(folder / "m.onnx")
    assert convert_all([model], folder / "plain", REF, engine=Inline()).passed
    assert convert_all([model], folder / "buckets", BUCKETS, engine=Inline()).passed
    return folder


@pytest.fixture
def copy(made: Path, tmp_path: Path) -> Path:
    """Without journals, which know the models by their paths."""
    return Path(shutil.copytree(made, tmp_path / "copy", ignore=shutil.ignore_patterns(".batch")))


@pytest.mark.parametrize(
    ("out", "file"), [*(("plain", each) for each in PLAIN), *(("buckets", each) for each in WITH_BUCKETS)]
)
def test_a_changed_byte_is_found(copy: Path, cache: Path, out: str, file: str) -> None:
    request = REF if out == "plain" else BUCKETS
    whole = convert_all([copy / "m.onnx"], copy / out, request, dry_run=True)
    assert statuses(whole) == {"m": "kept"}
    change_one_byte(copy / out / "m" / file)
    assert verify(copy / out / "m", here=False).problems
    planned = convert_all([copy / "m.onnx"], copy / out, request, dry_run=True)
    assert statuses(planned) == {"m": "planned"}


@pytest.mark.parametrize(("out", "file"), [("plain", "m.onnx"), ("buckets", "batch=1/m.mxr")])
def test_what_was_changed_is_converted_again(copy: Path, out: str, file: str) -> None:
    change_one_byte(copy / out / "m" / file)
    outcome = convert_all([copy / "m.onnx"], copy / out, REF if out == "plain" else BUCKETS, engine=Inline())
    assert statuses(outcome) == {"m": "converted"}
    assert verify(copy / out / "m").passed


def test_a_damaged_bundle_is_not_copied(copy: Path) -> None:
    assert statuses(convert_all([copy / "m.onnx"], copy / "plain", REF)) == {"m": "kept"}
    shutil.copyfile(copy / "m.onnx", copy / "twin.onnx")
    change_one_byte(copy / "plain/m/m.mxr")
    planned = convert_all([copy / "twin.onnx"], copy / "plain", REF, dry_run=True)
    assert statuses(planned) == {"twin": "planned"}
    assert statuses(convert_all([copy / "m.onnx"], copy / "plain", REF, engine=Inline())) == {"m": "converted"}
    assert statuses(convert_all([copy / "twin.onnx"], copy / "plain", REF, engine=Inline())) == {"twin": "reused"}


def test_files_are_read_once(copy: Path, cache: Path, monkeypatch: Any) -> None:
    read: list[str] = []
    digest = known_digests.file_digest
    monkeypatch.setattr(known_digests, "file_digest", lambda path: (read.append(path.name), digest(path))[1])
    for _ in range(3):
        assert statuses(convert_all([copy / "m.onnx"], copy / "plain", REF, dry_run=True)) == {"m": "kept"}
    assert sorted(read) == ["m.mxr", "m.onnx"]


def test_all_are_read_when_asked(copy: Path, cache: Path, monkeypatch: Any) -> None:
    """Damage that no state of a file shows, as that of a disk."""
    monkeypatch.setattr(known_digests, "file_state", lambda path: (path, 0, 0, 0, 0))
    sources, out = [copy / "m.onnx"], copy / "plain"
    assert statuses(convert_all(sources, out, REF, dry_run=True)) == {"m": "kept"}
    change_one_byte(out / "m/m.mxr")
    assert statuses(convert_all(sources, out, REF, dry_run=True)) == {"m": "kept"}
    assert statuses(convert_all(sources, out, REF, dry_run=True, verify=True)) == {"m": "planned"}


class TestRemote:
    def test_a_changed_byte_is_found(self, root: RemotePath, runtime: Runtime, tmp_path: Path) -> None:
        upload(write(tmp_path / "m.onnx"), root / "models/m.onnx")

        def status() -> str:
            return statuses(convert_all([root / "models"], root / "out", REF, engine=Inline()))["m"]

        assert [status(), status()] == ["converted", "kept"]
        content = bytearray((root / "out/m/m.mxr").read_bytes())
        content[len(content) // 2] ^= 1
        (root / "out/m/m.mxr").write_bytes(bytes(content))
        assert [status(), status()] == ["converted", "kept"]

    def test_files_are_read_once(self, root: RemotePath, runtime: Runtime, tmp_path: Path, monkeypatch: Any) -> None:
        upload(write(tmp_path / "m.onnx"), root / "models/m.onnx")
        read: list[str] = []
        digest = RemotePath.digest
        monkeypatch.setattr(RemotePath, "digest", lambda self: (read.append(self.name), digest(self))[1])
        for _ in range(4):
            assert convert_all([root / "models"], root / "out", REF, engine=Inline()).passed
        assert sorted(read) == ["m.mxr", "m.onnx"]

    @pytest.mark.parametrize("copied", [False, True])
    def test_published_manifests_have_their_checksum(
        self, root: RemotePath, runtime: Runtime, tmp_path: Path, copied: bool
    ) -> None:
        """Manifests whose source was renamed."""
        upload(write(tmp_path / "m.onnx"), root / "models/m.onnx")
        assert convert_all([root / "models"], root / "out", REF, engine=Inline()).passed
        name = "m"
        if copied:
            upload(tmp_path / "m.onnx", root / "models/twin.onnx")
            assert statuses(convert_all([root / "models"], root / "out", REF, engine=Inline()))["twin"] == "reused"
            name = "twin"
        for each in (root / "out" / name).files():
            (root / "out" / name / each).download(tmp_path / name / each)
        assert verify(tmp_path / name).passed
        bundle = onnx_bridge.load(tmp_path / name)
        assert bundle.manifest.source["path"] == f"{root}/models/{name}.onnx"


def test_jobs_that_wait_for_a_model_which_changes_meanwhile_are_done(runtime: Runtime, tmp_path: Path) -> None:
    """They wait for the job that makes the same, and it makes something else."""
    paths = [write(tmp_path / f"{name}.onnx") for name in "abc"]

    class Changing(Inline):
        changed = ""

        def submit(self, job: Any, task: Task, size: int) -> None:
            if not self.changed:
                self.changed = Path(task.source).stem
                write(Path(task.source), seed=1)
            super().submit(job, task, size)

    engine = Changing()
    outcome = convert_all(paths, tmp_path / "out", REF, engine=engine)
    assert sorted(statuses(outcome).values()) == ["converted", "converted", "reused"]
    assert statuses(outcome)[engine.changed] == "converted"
    other = next(name for name in "abc" if name != engine.changed)
    digests = {json.loads((tmp_path / f"out/{name}/manifest.json").read_text())["source"]["sha256"] for name in "abc"}
    assert len(digests) == 2
    assert statuses(convert_all(paths, tmp_path / "out", REF, dry_run=True)) == dict.fromkeys("abc", "kept")
    assert verify(tmp_path / "out" / other).passed
