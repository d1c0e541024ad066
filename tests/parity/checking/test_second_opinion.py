"""ONNX's own evaluator is asked where ONNX Runtime differs from a bundle, by `check` as by `convert`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest

import onnx_bridge
from onnx_bridge.conversion.proving import comparison
from onnx_bridge.core.files import kept_runs
from onnx_bridge.reference import second_opinion
from onnx_bridge.reference.evaluations import NoReference
from onnx_bridge.reference.reference import Reference
from tests.passes.helpers import tiny


@pytest.fixture
def model(tmp_path: Path) -> Path:
    onnx.save(ir.to_proto(tiny("(float[4] x) => (float[4] y) { y = Neg(x) }")), tmp_path / "m.onnx")
    return tmp_path / "m.onnx"


@pytest.fixture(autouse=True)
def empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept_runs, "cache_dir", lambda: tmp_path / "cache")


def moved(outputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {name: array + 0.1 for name, array in outputs.items()}


def no_evaluator(*_: Any, **__: Any) -> Any:
    raise NoReference("it takes too long", is_limit=True)


def with_wrong_sessions(monkeypatch: pytest.MonkeyPatch) -> None:
    run = Reference._run
    monkeypatch.setattr(Reference, "_run", lambda self, sample: moved(run(self, sample)))


def test_check(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bundle = onnx_bridge.convert(model, tmp_path / "b", target="ref")
    with_wrong_sessions(monkeypatch)
    report = onnx_bridge.check(bundle, fresh=True)
    assert report.passed and report.largest_error == 0
    assert [note for note in report.notes if second_opinion.BY_ONNX in note]
    monkeypatch.setattr(second_opinion, "run_file", no_evaluator)
    assert not onnx_bridge.check(bundle, fresh=True).passed


def test_convert_says_so(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with_wrong_sessions(monkeypatch)
    run = comparison.run_file
    monkeypatch.setattr(comparison, "run_file", lambda *given, **options: [*map(moved, run(*given, **options))])
    proof = onnx_bridge.convert(model, tmp_path / "b", target="ref", reuse=False).manifest.proof
    assert proof.what == f"{second_opinion.BY_ONNX}, at real size" and proof.error == 0
