"""A bundle in the place of an earlier one, and a kill anywhere in between."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper, parser

import onnx_bridge
from onnx_bridge.batch.output import LocalOutput
from onnx_bridge.bundle.manifest.entries import FileInfo
from onnx_bridge.bundle.manifest.manifest import Manifest
from onnx_bridge.bundle.manifest.text import manifest_path
from onnx_bridge.conversion import staging
from onnx_bridge.conversion.programs import instances as converting
from onnx_bridge.conversion.programs.bucket_staging import bucket_staging
from onnx_bridge.conversion.steps.run import run as convert_one
from onnx_bridge.core.errors import InputError
from onnx_bridge.migraphx.runtime import Runtime


class Killed(BaseException):
    """Stands for the end of the process."""


def model(path: Path, seed: int, rows: int | str = 4, columns: int = 8) -> Path:
    path.parent.mkdir(exist_ok=True)
    made = parser.parse_model(
        '<ir_version: 8, opset_import: ["": 17]> '
        f"g (float[{rows}, 16] x) => (float[{rows}, {columns}] y) {{ y = MatMul(x, w) }}"
    )
    weights = np.random.default_rng(seed).standard_normal((16, columns), np.float32)
    made.graph.initializer.append(numpy_helper.from_array(weights, "w"))
    onnx.save(made, path)
    return path


STEPS = ((Path, "replace"), (Path, "rename"), (Path, "chmod"), (os, "link"), (staging, "exchange"), (shutil, "rmtree"))
"""What replacing a bundle calls."""


def killed_at(step: int, patch: pytest.MonkeyPatch) -> None:
    """Let the process end before one of the calls."""
    left = iter(range(step))

    def instrumented(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **options: Any) -> Any:
            if next(left, None) is None:
                raise Killed
            return function(*args, **options)

        return call

    for owner, name in STEPS:
        patch.setattr(owner, name, instrumented(getattr(owner, name)))


@pytest.fixture(scope="module")
def bundles(runtime: Runtime, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two models whose programs have the same size, each as a folder and as a single program."""
    home = tmp_path_factory.mktemp("bundles")
    for seed, name in enumerate(("old", "new")):
        source = model(home / f"{name}/m.onnx", seed)
        onnx_bridge.convert(source, home / name / "out", target="ref")
        onnx_bridge.convert(source, home / name / "out.mxr", target="ref")
    return home


def replacements(
    bundles: Path, tmp_path: Path, name: str, patch: pytest.MonkeyPatch, *, folders: bool = False
) -> Iterator[Path]:
    """The path of the old bundle after it was replaced by the new one, and the process killed before each step."""
    other = bundles / "new" / name
    manifest = Manifest.read(manifest_path(other))
    for step in range(50):
        home = tmp_path / str(step)
        shutil.copytree(bundles / "old", home)
        (home / "out" / "notes.txt").write_text("mine")
        if folders:
            (home / "out" / "mine").mkdir()
        killed = True
        with contextlib.suppress(Killed), staging.staging_folder(home / name) as folder:
            for each in manifest.files:
                shutil.copyfile(manifest_path(other).parent / each.file, folder / each.file)
            with patch.context() as inner:
                killed_at(step, inner)
                staging.move_into_place(home / name, folder, manifest)
            killed = False
        yield home / name
        if not killed:
            return
    raise AssertionError("it never ended")


def state(out: Path, bundles: Path) -> str:
    """Return which of the bundles is in a place, whole; empty if none is."""
    if onnx_bridge.verify(out, here=False).problems:
        return ""
    found = Manifest.read(manifest_path(out))
    return next(each for each in ("old", "new") if Manifest.read(manifest_path(bundles / each / out.name)) == found)


@pytest.mark.parametrize("name", ["out", "out.mxr"])
def test_a_kill_leaves_the_old_or_the_new(
    name: str, bundles: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    states = []
    for out in replacements(bundles, tmp_path, name, monkeypatch):
        states.append(state(out, bundles))
        assert (out.parent / "out/notes.txt").read_text() == "mine"
        assert onnx_bridge.check(onnx_bridge.load(out), reference=bundles / states[-1] / "m.onnx").passed
        with staging.staging_folder(out):  # sweeps what the killed process left
            assert len(list(out.parent.glob(".converting-*"))) == (name != "out")
    assert states == sorted(states, reverse=True)
    assert (states[0], states[-1]) == ("old", "new")
    assert len(states) > 3


def test_a_kill_while_a_batch_publishes(bundles: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a job wrote to a staging folder, on another machine or of a model behind a URL."""
    states = []
    for step in range(50):
        home = tmp_path / str(step)
        shutil.copytree(bundles / "old/out", home / "out")
        staged = Path(shutil.copytree(bundles / "new/out", home / "staged"))
        with monkeypatch.context() as inner, contextlib.suppress(Killed):
            killed_at(step, inner)
            LocalOutput(home).publish("out", staged, bundles / "new/m.onnx")
        states.append(state(home / "out", bundles))
        if not staged.exists():
            break
    assert states == sorted(states, reverse=True)
    assert (states[0], states[-1]) == ("old", "new")
    assert len(states) > 3


@pytest.fixture(scope="module")
def buckets(runtime: Runtime, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two models of an open size, each converted for two sizes."""
    home = tmp_path_factory.mktemp("buckets")
    for seed, name in enumerate(("old", "new")):
        source = model(home / f"{name}/m.onnx", seed, rows="n", columns=2000)
        onnx_bridge.convert(source, home / name / "out", buckets={"n": [1, 2]}, target="ref")
    return home


def replacing(source: str, target: str) -> None:
    """Copy a file as conversions write them: what it replaces may be linked elsewhere."""
    Path(target).unlink(missing_ok=True)
    shutil.copyfile(source, target)


def test_a_kill_while_buckets_are_replaced(buckets: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    manifests = [(buckets / each / "out/manifest.json").read_bytes() for each in ("old", "new")]
    states = []
    for step in range(50):
        out = Path(shutil.copytree(buckets / "old/out", tmp_path / str(step)))
        (out / "notes.txt").write_text("mine")
        (out / "n=1/notes.txt").write_text("mine")
        killed = True
        with monkeypatch.context() as inner, contextlib.suppress(Killed):
            with bucket_staging(out, ["n=1", "n=2"], "m.onnx.data") as folder:
                shutil.copytree(buckets / "new/out", folder, dirs_exist_ok=True, copy_function=replacing)
                killed_at(step, inner)
            killed = False
        assert not onnx_bridge.verify(out, here=False).problems
        assert (out / "notes.txt").read_text() == (out / "n=1/notes.txt").read_text() == "mine"
        states.append(manifests.index((out / "manifest.json").read_bytes()))
        if not killed:
            break
    assert states == sorted(states)
    assert (states[0], states[-1]) == (0, 1)
    assert len(states) > 3
    assert sorted(each.name for each in out.iterdir() if each.is_dir()) == ["n=1", "n=2"]


@pytest.mark.parametrize("end", [Killed, InputError])
def test_buckets_that_are_finished_when_a_conversion_ends(
    end: type[BaseException], buckets: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are there for the next one, unless it failed; and the earlier bundle is whole until then."""
    out = Path(shutil.copytree(buckets / "old/out", tmp_path / "out"))
    before = (out / "manifest.json").read_bytes()
    converted: list[str] = []

    def run(source: Any, folder: Path, *rest: Any) -> Any:
        if converted == ["n=1"]:
            converted.append("ended")
            raise end("a bucket fails")
        converted.append(folder.name)
        return convert_one(source, folder, *rest)

    monkeypatch.setattr(converting, "run", run)
    with pytest.raises(end, match="a bucket fails"):
        onnx_bridge.convert(buckets / "new/m.onnx", out, buckets={"n": [1, 2]}, target="ref")
    assert (out / "manifest.json").read_bytes() == before
    assert not onnx_bridge.verify(out, here=False).problems
    assert (out / ".unfinished").exists() == (end is Killed)
    onnx_bridge.convert(buckets / "new/m.onnx", out, buckets={"n": [1, 2]}, target="ref")
    assert converted == ["n=1", "ended", *(["n=1"] if end is InputError else []), "n=2"]
    assert not onnx_bridge.verify(out, here=False).problems
    assert not (out / ".unfinished").exists()


@pytest.mark.parametrize("folders", [True, False])
def test_where_folders_cannot_be_exchanged(
    folders: bool, bundles: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The user has folders in the bundle, or the file system cannot do it: a bundle moved in part is damaged."""
    if not folders:
        monkeypatch.setattr(staging, "exchange", lambda *_: False)
    places = replacements(bundles, tmp_path, "out", monkeypatch, folders=folders)
    states = [state(out, bundles) for out in places]
    assert "" in states
    assert states[-1] == "new"


def test_the_mode_of_the_folder_and_links_to_it(bundles: Path, tmp_path: Path) -> None:
    shutil.copytree(bundles / "old/out", tmp_path / "out")
    (tmp_path / "out").chmod(0o750)
    (tmp_path / "link").symlink_to("out")
    onnx_bridge.convert(bundles / "new/m.onnx", tmp_path / "link", target="ref")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "out").stat().st_mode & 0o777 == 0o750
    assert sorted(each.name for each in (tmp_path / "out").iterdir()) == ["m.mxr", "m.onnx", "manifest.json"]
    assert onnx_bridge.check(tmp_path / "out", reference=bundles / "new/m.onnx").passed


def test_a_second_name_for_external_data(tmp_path: Path) -> None:
    """onnx takes a file of weights that has several names for an attack, so each bundle has its own."""
    source, out = model(tmp_path / "m.onnx", 0), tmp_path / "out"
    manifest = onnx_bridge.convert(source, out, target="ref").manifest
    cleaned = onnx.load(out / "m.onnx")
    onnx.save(cleaned, out / "m.onnx", save_as_external_data=True, location="m.onnx.data", size_threshold=0)
    files = tuple(FileInfo.of(out / name) for name in ("m.onnx", "m.onnx.data"))
    program = replace(manifest.program, model=files)
    replace(manifest, model=files, programs=(program,)).write(manifest_path(out))
    staging.adopt(out, tmp_path / "other", tmp_path / "n.onnx")
    for each in (out, tmp_path / "other"):
        onnx.load(each / "m.onnx")
        assert onnx_bridge.check(onnx_bridge.load(each), reference=source).passed
    assert (out / "m.mxr").samefile(tmp_path / "other/m.mxr")
