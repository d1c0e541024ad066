"""A check of what was just proven runs neither MIGraphX nor the reference again; of what has changed, both."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import onnx
import pytest
from onnx import parser

import onnx_bridge
from onnx_bridge.bundle.bundle import Bundle
from onnx_bridge.core.errors import InputError
from onnx_bridge.core.files import kept_runs
from onnx_bridge.migraphx.runtime import Runtime
from onnx_bridge.reference.reference import Reference


@pytest.fixture(autouse=True)
def empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept_runs, "cache_dir", lambda: tmp_path / "cache")


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What runs, one after the other."""
    calls: list[str] = []

    def count(kind: type, method: str) -> None:
        run: Callable[..., object] = getattr(kind, method)
        monkeypatch.setattr(kind, method, lambda self, *given: calls.append(kind.__name__) or run(self, *given))

    count(Bundle, "__call__")
    count(Reference, "_run")
    return calls


@pytest.fixture
def model(tmp_path: Path) -> Path:
    text = '<ir_version: 8, opset_import: ["": 18]> g (float[n, 8] x) => (float[n, 8] y) { a = Exp(x) y = Tanh(a) }'
    onnx.save(parser.parse_model(text), tmp_path / "m.onnx")
    return tmp_path / "m.onnx"


def test_a_check_after_a_conversion(runtime: Runtime, model: Path, tmp_path: Path, runs: list[str]) -> None:
    bundle = onnx_bridge.convert(model, tmp_path / "out", target="ref")
    runs.clear()

    def checked(**options: bool | int) -> list[str]:
        assert onnx_bridge.check(bundle, **options).passed  # type: ignore[arg-type]
        made = sorted(set(runs))
        runs.clear()
        return made

    assert checked() == ["Reference"]  # the cleaned model's, which proves nothing of MIGraphX
    assert checked() == []
    assert checked(fresh=True) == ["Bundle", "Reference"]
    assert checked(seed=1) == ["Bundle", "Reference"]
    assert checked(seed=1) == []


def test_a_damaged_program_is_refused(runtime: Runtime, model: Path, tmp_path: Path) -> None:
    bundle = onnx_bridge.convert(model, tmp_path / "out", target="ref")
    (tmp_path / "out/m.mxr").write_bytes(b"")
    with pytest.raises(InputError):
        onnx_bridge.check(bundle)


def test_buckets(runtime: Runtime, model: Path, tmp_path: Path, runs: list[str]) -> None:
    bundle = onnx_bridge.convert(model, tmp_path / "out", target="ref", buckets={"n": [2, 4]})
    assert onnx_bridge.check(bundle).passed
    runs.clear()
    assert onnx_bridge.check(bundle).passed
    assert not runs
    assert onnx_bridge.check(bundle, fresh=True).passed
    assert {"Bundle", "Reference"} <= set(runs)


def test_a_changed_model_is_run_by_the_reference(
    runtime: Runtime, model: Path, tmp_path: Path, runs: list[str]
) -> None:
    onnx_bridge.convert(model, tmp_path / "out", target="ref")
    other = onnx.load(model)
    other.graph.node[1].op_type = "Erf"
    onnx.save(other, model)
    assert onnx_bridge.check(onnx_bridge.convert(model, tmp_path / "out", target="ref")).passed
    assert "Reference" in runs


def test_those_that_were_used_last_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Among some runs are several whose keys tell them to look for what goes."""
    monkeypatch.setattr(kept_runs, "_OF_ALL", 8 * kept_runs._AT_LEAST)
    monkeypatch.setattr(kept_runs, "_EVERY", 4)
    folder, written = tmp_path / "cache" / "runs", dict[Path, int]()
    for number in range(32):
        kept_runs.KeptRuns({"number": number}).outputs({}, dict)
        written.update({path: path.stat().st_mtime_ns for path in folder.iterdir()})
    left = [path for path in written if path.exists()]
    assert len(written) == 32
    assert 8 <= len(left) < 32
    assert min(written[path] for path in left) >= max(written[path] for path in written.keys() - left)
