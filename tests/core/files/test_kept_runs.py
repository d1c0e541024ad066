"""Outputs of runs that are kept: for the same thing and the same inputs alone, and while there is room."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from onnx_bridge.core.files import kept_runs
from onnx_bridge.core.files.kept_runs import KeptRuns
from onnx_bridge.core.values import Value, flat

OUTPUTS: dict[str, Value] = {
    "floats": np.array([[1.5, np.nan]], np.float32),
    "halves": np.array([0.25], ml_dtypes.bfloat16),
    "nibbles": np.array([-3, 7], ml_dtypes.int4),
    "scalar": np.array(7),
    "empty": np.zeros((0, 3), np.int8),
    "strings": np.array(["ä", ""], object),
    "sequence": [np.arange(3), np.arange(2)],
    "none": None,
}
SAMPLE = {"x": np.arange(4.0)}


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ONNX_BRIDGE_CACHE", str(tmp_path))
    return tmp_path / "runs"


def is_run(runs: KeptRuns, sample: dict[str, Any] = SAMPLE, outputs: dict[str, Value] = OUTPUTS) -> bool:
    """Return whether outputs are computed, which have to be the same."""
    calls: list[int] = []
    result = runs.outputs(sample, lambda: calls.append(0) or outputs)
    assert result.keys() == outputs.keys()
    assert flat(result).keys() == flat(outputs).keys()
    for name, array in flat(outputs).items():
        assert flat(result)[name].dtype == array.dtype
        np.testing.assert_array_equal(flat(result)[name], array)
    return bool(calls)


def test_the_second_run_is_kept() -> None:
    assert is_run(KeptRuns({"model": "a"}))
    runs = KeptRuns({"model": "a"})
    assert not is_run(runs)
    assert runs.used == 1


@pytest.mark.parametrize(
    ("of", "sample"),
    [
        ({"model": "b"}, SAMPLE),
        ({"model": "a"}, {"y": SAMPLE["x"]}),
        ({"model": "a"}, {"x": SAMPLE["x"].astype(np.float32)}),
        ({"model": "a"}, {"x": SAMPLE["x"].reshape(2, 2)}),
        ({"model": "a"}, {"x": SAMPLE["x"] + 1}),
        ({"model": "a"}, {"x": list(SAMPLE["x"])}),
        (None, SAMPLE),
    ],
)
def test_what_differs_is_run(of: dict[str, Any] | None, sample: dict[str, Any]) -> None:
    assert is_run(KeptRuns({"model": "a"}))
    assert is_run(KeptRuns(of), sample)


def test_fresh_runs_again_and_replaces() -> None:
    assert is_run(KeptRuns({"model": "a"}))
    other: dict[str, Value] = {"y": np.zeros(2)}
    assert is_run(KeptRuns({"model": "a"}, fresh=True), outputs=other)
    assert not is_run(KeptRuns({"model": "a"}), outputs=other)


@pytest.mark.parametrize(
    "damage", [lambda data: data[:-1], lambda data: b"", lambda data: data[:99] + b"?" + data[100:]]
)
def test_a_damaged_file_is_ignored(cache: Path, damage: Any) -> None:
    assert is_run(KeptRuns({"model": "a"}))
    (path,) = cache.iterdir()
    path.write_bytes(damage(path.read_bytes()))
    assert is_run(KeptRuns({"model": "a"}))


def test_what_was_not_read_for_the_longest_time_goes(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    outputs: dict[str, Value] = {"y": np.zeros(1000)}
    monkeypatch.setattr(kept_runs, "_OF_ALL", 2 * kept_runs._AT_LEAST)  # however small they are
    monkeypatch.setattr(kept_runs, "_EVERY", 1)
    for name in ("a", "b"):
        is_run(KeptRuns({"model": name}), outputs=outputs)
    for age, path in enumerate(sorted(cache.iterdir(), key=lambda path: path.stat().st_mtime_ns)):
        os.utime(path, (age, age))
    assert not is_run(KeptRuns({"model": "a"}), outputs=outputs)
    is_run(KeptRuns({"model": "c"}), outputs=outputs)
    assert [is_run(KeptRuns({"model": name}), outputs=outputs) for name in ("a", "c")] == [False, False]
    assert is_run(KeptRuns({"model": "b"}), outputs=outputs)


def test_a_run_in_some_looks_at_all_of_them(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept_runs, "_OF_ALL", kept_runs._AT_LEAST)
    monkeypatch.setattr(kept_runs, "_EVERY", 4)
    before: set[str] = set()
    looked = []
    for name in "abcdefghijkl":
        is_run(KeptRuns({"model": name}))
        now = {path.name for path in cache.iterdir()}
        (new,) = now - before
        looked.append(int(new, 16) % 4 == 0)
        assert now == ({new} if looked[-1] else before | {new})
        before = now
    assert 0 < sum(looked) < len(looked)


def test_large_outputs_are_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept_runs, "_OF_A_RUN", 10)
    assert [is_run(KeptRuns({"model": "a"})) for _ in range(2)] == [True, True]
