"""A part of the zoo: PyTorch to MIGraphX through both exporters; ``make suite NAME=zoo`` runs all of it."""

from __future__ import annotations

import dataclasses

import pytest

from fixtures.suites.zoo import run
from fixtures.suites.zoo.registry import ZOO
from onnx_bridge.migraphx.runtime import Runtime

ALL = run.load(optional=False)
CHOSEN = [each.name for each in ALL.values() if each.in_tests]
NOT_EXPORTED = {(name, "torchscript"): "dynamo-optimized function" for name in ("conditional", "while-loop")}
"""What an exporter cannot, and a part of what it says."""


def test_the_zoo_is_large_and_of_many_kinds() -> None:
    assert ZOO is ALL
    assert len(ALL) >= 60
    assert {each.kind for each in ALL.values()} >= {
        "vision",
        "detection",
        "segmentation",
        "depth",
        "encoder",
        "decoder",
        "decoder with cache",
        "mixture of experts",
        "state space",
        "speech",
        "diffusion",
        "recurrent",
        "control flow",
        "fourier",
        "grid sampling",
        "scatter and gather",
    }
    assert sum(bool(each.dynamic) for each in ALL.values()) >= 8


@pytest.mark.parametrize("exporter", ["dynamo", "torchscript"])
@pytest.mark.parametrize("name", CHOSEN)
def test_migraphx_agrees_with_pytorch(runtime: Runtime, name: str, exporter: str) -> None:
    row = run.run(name, exporter, beside_stock=False)
    if row.ours is None:
        assert NOT_EXPORTED[name, exporter] in row.refusal
        return
    assert (row.ours.verdict, row.ours.why) == ("right", "")
    assert row.ours.share >= 0.95
    assert (name, exporter) not in NOT_EXPORTED


def test_lines_and_sums() -> None:
    right, wrong = run.Outcome("right", 1e-7), run.Outcome("wrong", 2.0, "y: differs")
    row = run.Row("net", "vision", "dynamo", True, 12, "", right, wrong, 1.0)
    assert (
        " ".join(run.SUITE.line(row).split())
        == "net (open sizes) dynamo 12 100.0% 1.0e-07 right (stock MIGraphX: wrong)"
    )
    lost = run.Row("net", "vision", "dynamo", False, 0, "no", None, None, 0.0)
    assert "not exported: no" in run.SUITE.line(lost)
    assert run.host_shares([row, lost]) == "all work on MIGraphX except in 0 exports"
    partly = dataclasses.replace(row, ours=run.Outcome("right", share=0.97))
    assert run.host_shares([row, partly]).endswith("except in 1 exports: at least 97.00% of the work, for net")
    rows = [row, dataclasses.replace(row, ours=wrong), lost]
    assert run.SUITE.counts(rows) == "zoo: right 1, wrong 1, refused 0, of 2"
