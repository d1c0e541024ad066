"""The cache folder: where it is, and what clearing it removes and leaves."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from typer.testing import CliRunner

from onnx_bridge.cli.setup.cache import app
from onnx_bridge.core.files.user_cache import BuiltKind, cache_dir, clear, keep_recent
from onnx_bridge.core.native_code import kept_folder

CACHED = ("verdicts/2.14.0-abc.jsonl", "torch/abc/0/m.mxr", "bundles/abc/m.mxr", "rehearsal/2.14.0/a.so", "quark-0.13")
KEPT = ("runtimes/7.1.1/runtime.json", "batches/abc/journal.jsonl", "mine.txt")


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Some of everything that a cache folder holds."""
    monkeypatch.setenv("ONNX_BRIDGE_CACHE", str(tmp_path))
    for name in (*CACHED, *KEPT):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(b"x" * 5000)
    return tmp_path


def files(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


def test_its_place() -> None:
    assert cache_dir({"ONNX_BRIDGE_CACHE": "/somewhere"}) == Path("/somewhere")
    assert cache_dir({}).name == "onnx-bridge"


def test_clear_leaves_installations_and_journals(cache: Path) -> None:
    cleared = clear()
    assert files(cache) == set(KEPT)
    assert {path.name for path in cache.iterdir()} == {"runtimes", "batches", "mine.txt"}
    assert set(cleared.sizes) == {name.split("/")[0] for name in CACHED}
    assert all(size >= 5000 for size in cleared.sizes.values())
    assert clear().sizes == {}


@pytest.mark.parametrize("kind", ["emulation", "gpu-stub", "kernels", "provider", "rehearsal"])
def test_what_is_built_is_cleared(kind: BuiltKind, cache: Path) -> None:
    built = kept_folder(kind, "of some sources", lambda folder: (folder / "library.so").write_bytes(b"x"))
    assert built.is_relative_to(cache)
    assert kind in clear().sizes
    assert not built.exists()


def test_a_dry_run_removes_nothing(cache: Path) -> None:
    cleared = clear(dry_run=True)
    assert files(cache) == {*CACHED, *KEPT}
    assert cleared.sizes == clear().sizes


def test_hard_links_count_once(cache: Path) -> None:
    before = clear(dry_run=True).sizes
    os.link(cache / "bundles/abc/m.mxr", cache / "bundles/abc/same.mxr")
    assert clear(dry_run=True).sizes == before


def test_a_folder_that_is_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ONNX_BRIDGE_CACHE", str(tmp_path / "absent"))
    assert clear().sizes == {}
    assert not (tmp_path / "absent").exists()


def test_the_verbs(cache: Path) -> None:
    run = CliRunner().invoke
    assert run(app, ["dir"]).output.strip() == str(cache)
    assert json.loads(run(app, ["dir", "--json"]).output) == {"folder": str(cache)}
    planned = json.loads(run(app, ["clear", "--dry-run", "--json"]).output)
    assert planned["bytes"] == sum(planned["sizes"].values()) > 0
    assert "freed" in run(app, ["clear"]).output
    assert files(cache) == set(KEPT)


def test_files_that_were_used_least_recently_are_removed(tmp_path: Path) -> None:
    files = [tmp_path / name for name in "abcd"]
    for used, path in enumerate(files):
        path.write_bytes(bytes(8192))
        os.utime(path, (used, used))
    os.utime(files[0])  # it was used again
    keep_recent([*files, tmp_path / "removed meanwhile"], most_bytes=2 * 8192)
    assert sorted(tmp_path.iterdir()) == [files[0], files[3]]
    keep_recent(files, most_bytes=2 * 8192)
    assert len(list(tmp_path.iterdir())) == 2
