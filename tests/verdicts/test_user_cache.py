"""The cache folder: what is in it is known, what is damaged is found, and what nobody can use goes."""

from __future__ import annotations

import hashlib
import json
import os
import zipfile
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper, parser

import onnx_bridge
from onnx_bridge.core.errors import InputError
from onnx_bridge.migraphx.runtime import Runtime
from onnx_bridge.migraphx.runtime_record import File, Package, Record
from onnx_bridge.verdicts import user_cache
from passes.core.base import Status

LINE = json.dumps(["signature", Status.OK.value, "", None, True]).encode() + b"\n"
DAY = 86400


def installed(folder: Path, identity: str, content: bytes = b"library") -> Path:
    """A runtime's folder, with its record."""
    (folder / "usr/lib").mkdir(parents=True)
    (folder / "usr/lib/libmigraphx.so").write_bytes(content)
    file = File("usr/lib/libmigraphx.so", len(content), hashlib.sha256(content).hexdigest())
    Record("sid", "Debian", "ref", "2026-01-01", identity, (Package("migraphx", "7.1.1-8", ""),), (file,)).write(folder)
    return folder


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Something of everything, all of it whole; of two runtimes the second is the current one."""
    folder = tmp_path / "cache"
    monkeypatch.setenv("ONNX_BRIDGE_CACHE", str(folder))
    monkeypatch.delenv("ONNX_BRIDGE_RUNTIME", raising=False)
    for name in ("old", "current"):
        installed(folder / f"runtimes/{name}", f"{name:0<10}".replace("o", "0").replace("l", "1")[:10])
    (folder / "runtimes/.lock").touch()
    (folder / "verdicts").mkdir()
    (folder / "verdicts/2.14.0-somewhere.jsonl").write_bytes(LINE * 3)
    entry = folder / "torch/abc"
    entry.mkdir(parents=True)
    (entry / "entry.json").write_text(json.dumps({"format": 1, "buckets": []}))
    with zipfile.ZipFile(entry / "samples.pt", "w") as samples:
        samples.writestr("data.pkl", b"x" * 100)
    (folder / "torch/abc.lock").touch()
    (folder / "gpu-view/headers-7.1.1-8").mkdir(parents=True)
    (folder / "gpu-view/2.14.0-abc-def").write_bytes(b"program")
    (folder / "mine.txt").write_text("mine")
    monkeypatch.setattr(user_cache, "_used", lambda: {"current"})
    return folder


def names(found: user_cache.Cache) -> set[str]:
    return {each.path.name for each in found.entries}


def aged(path: Path, days: float) -> None:
    """Let it be long ago that something was used."""
    for each in [path, *path.rglob("*")]:
        state = each.stat()
        os.utime(each, (state.st_atime - days * DAY, state.st_mtime - days * DAY))


def test_everything_is_listed(cache: Path) -> None:
    found = user_cache.entries()
    kinds = {each.path.name: each.kind for each in found.entries}
    assert kinds == {
        "old": "runtime",
        "current": "runtime",
        "2.14.0-somewhere.jsonl": "verdicts",
        "abc": "programs",
        "headers-7.1.1-8": "tool",
        "2.14.0-abc-def": "tool",
        "mine.txt": "unknown",
    }
    assert found.bytes == sum(each.bytes for each in found.entries) > 0
    assert all(each.purpose for each in found.entries)
    assert json.loads(json.dumps(found.to_json()))["folder"] == str(cache)


def test_an_empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ONNX_BRIDGE_CACHE", str(tmp_path / "absent"))
    assert user_cache.entries().entries == ()
    assert user_cache.prune(older_than=0).entries == ()
    assert user_cache.verify().passed
    assert not (tmp_path / "absent").exists()


def test_what_is_whole_is_sound(cache: Path) -> None:
    found = user_cache.verify()
    assert found.passed, found.render()
    assert {path.name for path in found.unchecked} == {"headers-7.1.1-8", "2.14.0-abc-def", "mine.txt"}


@pytest.mark.parametrize(
    ("name", "data", "words"),
    [
        ("runtimes/old/usr/lib/libmigraphx.so", b"librarY", "missing or changed"),
        ("runtimes/old/runtime.json", b"{", "no record"),
        ("verdicts/2.14.0-somewhere.jsonl", LINE + LINE[:-9], "cannot be read"),
        ("verdicts/2.14.0-somewhere.jsonl", LINE + LINE[:-1], "cut short"),
        ("verdicts/2.14.0-somewhere.jsonl", b"[1, 2]\n" + LINE, "1 lines"),
        ("torch/abc/samples.pt", b"no zip", "cannot be read"),
        ("torch/abc/entry.json", b"{}", "cannot be read"),
    ],
)
def test_what_is_damaged(cache: Path, name: str, data: bytes, words: str) -> None:
    (cache / name).write_bytes(data)
    found = user_cache.verify()
    assert not found.passed
    assert words in found.render()
    user_cache.prune()
    assert user_cache.verify().passed
    if "verdicts" in name:  # of which the rest is good
        assert set((cache / name).read_bytes().splitlines()) == {LINE.strip()}
    else:
        assert not (cache / name).exists()


def test_looking_leaves_no_trace(cache: Path) -> None:
    aged(cache, 40)
    before = {each.path: each.used for each in user_cache.entries().entries}
    user_cache.verify()
    assert {each.path: each.used for each in user_cache.entries().entries} == before


class TestPrune:
    def test_nothing_that_somebody_can_use(self, cache: Path) -> None:
        before = names(user_cache.entries())
        assert user_cache.prune().entries == ()
        assert names(user_cache.entries()) == before

    def test_what_was_not_used_for_long(self, cache: Path) -> None:
        aged(cache, 40)
        would = user_cache.prune(older_than=user_cache.seconds("30d"), keep_runtimes=["old"], dry_run=True)
        assert would.did == "would remove"
        assert names(would) == {"2.14.0-somewhere.jsonl", "abc", "headers-7.1.1-8", "2.14.0-abc-def"}
        assert len(user_cache.entries().entries) == 7
        gone = user_cache.prune(older_than=user_cache.seconds("30d"))
        assert names(gone) == names(would) | {"old"}
        assert names(user_cache.entries()) == {"current", "mine.txt"}
        assert gone.passed

    def test_what_was_used_since(self, cache: Path) -> None:
        aged(cache, 40)
        library = cache / "runtimes/old/usr/lib/libmigraphx.so"
        os.utime(library, (library.stat().st_atime + 39 * DAY, library.stat().st_mtime))  # read, not written
        assert "old" not in names(user_cache.prune(older_than=user_cache.seconds("30d")))

    def test_verdicts_of_a_runtime_that_is_gone(self, cache: Path) -> None:
        (cache / "verdicts/2.14.0-0123456789-abcdef.jsonl").write_bytes(LINE)
        assert names(user_cache.prune()) == {"2.14.0-0123456789-abcdef.jsonl"}

    def test_what_killed_processes_left(self, cache: Path) -> None:
        for name in ("bundles/.unpacking-x", "gpu-view/.new-y"):
            (cache / name).mkdir(parents=True)
            (cache / name / "half").write_bytes(b"half")
        assert user_cache.prune().entries == ()  # somebody may be at it
        aged(cache / "bundles/.unpacking-x", 1)
        assert names(user_cache.prune()) == {".unpacking-x"}

    def test_what_cannot_be_removed(self, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        def refuse(entry: user_cache.Entry) -> None:
            raise PermissionError(13, "Permission denied", str(entry.path))

        monkeypatch.setattr(user_cache, "_remove", refuse)
        done = user_cache.prune(older_than=0)
        assert not done.passed
        assert {each.path.name for each, _ in done.failed} >= {"abc"}
        assert "Permission denied" in str(done.to_json()["failed"])

    def test_a_runtime_that_is_not_there(self, cache: Path) -> None:
        with pytest.raises(InputError, match="did you mean current"):
            user_cache.prune(keep_runtimes=["curent"])


@pytest.mark.parametrize(("text", "expected"), [("30d", 30 * DAY), ("12h", DAY / 2), ("90m", 5400), ("2w", 14 * DAY)])
def test_times(text: str, expected: float) -> None:
    assert user_cache.seconds(text) == expected


@pytest.mark.parametrize("text", ["", "30", "d", "-1d", "1y"])
def test_what_is_no_time(text: str) -> None:
    with pytest.raises(InputError, match="is no time"):
        user_cache.seconds(text)


def test_an_unpacked_bundle(runtime: Runtime, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The real thing: what `load` unpacks is listed by its model's name, verified, and removed when it is damaged."""
    monkeypatch.setenv("ONNX_BRIDGE_RUNTIME", str(runtime.path))
    monkeypatch.setenv("ONNX_BRIDGE_CACHE", str(tmp_path / "cache"))
    proto = parser.parse_model(
        '<ir_version: 8, opset_import: ["": 17]> g (float[2] x) => (float[2] y) { y = Add(x, w) }'
    )
    proto.graph.initializer.append(numpy_helper.from_array(np.ones(2, np.float32), "w"))
    onnx.save(proto, tmp_path / "little.onnx")
    onnx_bridge.convert(tmp_path / "little.onnx", tmp_path / "out", target="ref")
    onnx_bridge.pack(tmp_path / "out", tmp_path / "little.onnxbridge")
    onnx_bridge.load(tmp_path / "little.onnxbridge")
    (entry,) = (each for each in user_cache.entries().entries if each.kind == "bundle")
    assert entry.purpose.endswith("little")
    assert user_cache.verify().passed
    (entry.path / "little.mxr").write_bytes(b"")
    assert "little.mxr" in user_cache.verify().render()
    assert entry.path.name in names(user_cache.prune())
    onnx_bridge.load(tmp_path / "little.onnxbridge")  # unpacked again
