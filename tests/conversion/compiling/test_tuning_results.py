"""Tuning results in a bundle: kept, reused, and ignored if they are for another GPU or release."""

from __future__ import annotations

import os
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import onnx_bridge
from onnx_bridge.bundle.manifest.entries import FileInfo, PartitionInfo, ProgramInfo
from onnx_bridge.bundle.manifest.manifest import Manifest
from onnx_bridge.conversion.compiling.tuning_results import Origin, TuningResults
from onnx_bridge.core.errors import InputError
from onnx_bridge.migraphx.runtime import Runtime
from onnx_bridge.model import io as models
from onnx_bridge.requests.conversion import ConvertRequest
from tests.passes.harness import model

GPU = Origin("gpu", "gfx942", "2.14.0")


def tuned(folder: Path, origin: Origin = GPU, **files: str) -> Path:
    """A bundle with results, as far as `TuningResults` looks at it."""
    folder.mkdir()
    with TuningResults("keep", origin) as results:
        cache = Path(results.environment["MIGRAPHX_PROBLEM_CACHE"])
        databases = Path(results.environment["MIOPEN_USER_DB_PATH"])
        assert databases.is_dir()
        cache.write_text(files.get("cache", "[]"))
        (databases / "gfx942.udb.txt").write_text(files.get("database", "found"))
        kept = results.keep(folder / "m.tuning.zip")
    assert not cache.parent.exists()
    partition = PartitionInfo((), (), 0, 0, FileInfo("m.mxr", 0, "0"))
    Manifest(
        name="m",
        created="",
        source={"path": None, "sha256": None},
        key=None,
        request=ConvertRequest(),
        model=(),
        target=origin.target,
        architecture=origin.architecture,
        versions={"onnx_bridge": "0.1.0", "migraphx": origin.migraphx},
        inputs=(),
        outputs=(),
        programs=(ProgramInfo({}, (), (), (partition,), (), "", [], tuning=kept),),
        timings={},
    ).write(folder / "manifest.json")
    return folder


def test_results_are_taken_from_an_earlier_bundle(tmp_path: Path) -> None:
    bundle = tuned(tmp_path / "a", cache='[["key", 3]]')
    with TuningResults(str(bundle), replace(GPU, migraphx="2.14.2")) as results:
        assert Path(results.environment["MIGRAPHX_PROBLEM_CACHE"]).read_text() == '[["key", 3]]'
        assert (Path(results.environment["MIOPEN_USER_DB_PATH"]) / "gfx942.udb.txt").read_text() == "found"
        assert results.notes == [f"tuning started from the results of {bundle} (2 files)"]
        again = results.keep(tmp_path / "b.tuning.zip")
    assert again is not None
    assert again.file == "b.tuning.zip"
    assert (tmp_path / "b.tuning.zip").stat().st_size == again.bytes


@pytest.mark.parametrize(
    ("here", "words"),
    [
        (
            Origin("gpu", "gfx1100", "2.14.0"),
            "are for gfx942 with MIGraphX 2.14, and this is gfx1100 with MIGraphX 2.14",
        ),
        (Origin("gpu", "gfx942", "2.16.0"), "are for gfx942 with MIGraphX 2.14, and this is gfx942 with MIGraphX 2.16"),
    ],
)
def test_results_for_another_gpu_or_release_are_not_taken(tmp_path: Path, here: Origin, words: str) -> None:
    with TuningResults(str(tuned(tmp_path / "a")), here) as results:
        assert not Path(results.environment["MIGRAPHX_PROBLEM_CACHE"]).exists()
        assert words in results.notes[0]


def test_no_results_no_archive(tmp_path: Path) -> None:
    with TuningResults("keep", GPU) as results:
        assert results.keep(tmp_path / "x.zip") is None
        assert results.notes == ["no tuning results are kept: compiling tuned nothing"]
    assert not (tmp_path / "x.zip").exists()
    with TuningResults("", GPU) as results:
        assert (results.environment, results.notes, results.keep(tmp_path / "x.zip")) == ({}, [], None)


def test_a_damaged_archive_is_an_error(tmp_path: Path) -> None:
    bundle = tuned(tmp_path / "a")
    with zipfile.ZipFile(bundle / "m.tuning.zip", "w") as archive:
        archive.writestr("../outside", "x")
    with pytest.raises(InputError, match="files that no conversion wrote"):
        TuningResults(str(bundle), GPU)
    (bundle / "m.tuning.zip").write_bytes(b"no archive")
    with pytest.raises(InputError, match="the tuning results cannot be read"):
        TuningResults(str(bundle), GPU)


@pytest.mark.parametrize("offset", [6, 8, 40], ids=["encrypted", "method", "data"])
def test_a_damaged_member_is_an_error(tmp_path: Path, offset: int) -> None:
    bundle = tuned(tmp_path / "a", cache="found " * 100)
    path = bundle / "m.tuning.zip"
    damaged = bytearray(path.read_bytes())
    damaged[offset] ^= 0x41
    if offset < 30:  # the central directory says the same
        damaged[damaged.index(b"PK\1\2") + offset + 2] ^= 0x41
    path.write_bytes(damaged)
    with pytest.raises(InputError, match="the tuning results cannot be read") as caught:
        TuningResults(str(bundle), GPU)
    assert caught.value.where == str(path)


def test_a_pipe_in_place_of_the_archive(tmp_path: Path) -> None:
    bundle = tuned(tmp_path / "a")
    (bundle / "m.tuning.zip").unlink()
    os.mkfifo(bundle / "m.tuning.zip")
    with pytest.raises(InputError, match="the path is not a regular file"):
        TuningResults(str(bundle), GPU)


def test_ref_keeps_no_results_with_a_note(runtime: Runtime, tmp_path: Path) -> None:
    weights: dict[str, Any] = {"w": np.ones((8, 8), np.float32)}
    models.save(model("(float[2,8] x) => (float[2,8] y) { y = MatMul(x, w) }", **weights), tmp_path / "m.onnx")
    bundle = onnx_bridge.convert(tmp_path / "m.onnx", tmp_path / "out", target="ref", options={"tuning": "keep"})
    assert "no tuning results are kept: the target ref tunes nothing" in bundle.manifest.notes
    assert bundle({"x": np.ones((2, 8), np.float32)})["y"].shape == (2, 8)  # type: ignore[union-attr]
    again = {"tuning": str(bundle.path)}
    assert onnx_bridge.convert(tmp_path / "m.onnx", tmp_path / "again", target="ref", options=again)
    with pytest.raises(InputError, match="no bundle to take tuning results from"):
        onnx_bridge.convert(tmp_path / "m.onnx", tmp_path / "no", target="ref", options={"tuning": "nowhere"})
    with pytest.raises(InputError, match="the option has no value"):
        onnx_bridge.convert(tmp_path / "m.onnx", tmp_path / "no", target="ref", options={"tuning": ""})


def test_the_archive_is_a_file_of_the_bundle(tmp_path: Path) -> None:
    weights: dict[str, Any] = {"w": np.ones((8, 8), np.float32)}
    models.save(model("(float[2,8] x) => (float[2,8] y) { y = MatMul(x, w) }", **weights), tmp_path / "m.onnx")
    bundle = onnx_bridge.convert(tmp_path / "m.onnx", tmp_path / "out", target="ref")
    program = replace(bundle.manifest.program, tuning=FileInfo("m.tuning.zip", 3, "0"))
    replace(bundle.manifest, programs=(program,)).write(tmp_path / "manifest.json")
    assert "m.tuning.zip" in [each.file for each in Manifest.read(tmp_path / "manifest.json").files]
