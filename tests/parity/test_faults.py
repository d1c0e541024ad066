"""Planted faults: a subset of the forty of ``make suite NAME=faults``."""

from __future__ import annotations

import pytest

from fixtures.models import small
from fixtures.suites import faults, harness
from onnx_bridge.parity.bisect.bisect import bisect

KINDS = {
    "mlp": ("weight", "operands", "rejected"),
    "convnet": ("nan", "attribute", "wrong"),
    "attention": ("edited", "crash"),
    "branches": ("operands", "overflow"),
    "quantized": ("weight", "crash"),
}


@pytest.fixture(scope="module", params=list(KINDS))
def plot(request: pytest.FixtureRequest) -> faults.Plot:
    return faults.Plot(request.param, small.MODELS[request.param]())


def test_every_fault_is_localized(plot: faults.Plot) -> None:
    for kind in KINDS[plot.name]:
        fault = plot.fault(kind, seed=11)
        assert fault is not None, kind
        found = bisect(fault.model, **fault.options)
        assert fault.named(found), f"{fault.name}: {found.summary}"


def test_no_false_alarms(plot: faults.Plot) -> None:
    for seed in (21, 22):
        found = bisect(plot.model, seed=seed, samples=2)
        assert found.passed, found.summary


def test_faults_are_the_same_each_time() -> None:
    first, second = (faults.Plot("mlp", small.mlp()) for _ in range(2))
    for kind in ("weight", "operands"):
        assert first.fault(kind, seed=3).name == second.fault(kind, seed=3).name  # type: ignore[union-attr]


def test_the_last_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert harness.run(faults.SUITE, ["--only", "mlp", "--each", "2"]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "faults: named 2 of 2, false alarms 0 of 2"
