"""Race conditions: verdicts that no probe can give."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from onnx_bridge.migraphx.runtime import Runtime
from onnx_bridge.verdicts.probed_runtime import ProbedRuntime
from onnx_bridge.verdicts.race_conditions import race_condition
from passes.graphs.scopes import Scope
from passes.probing.probe import Probe
from passes.rewriting.base import Status
from passes.shapes import inference
from tests.passes.helpers import tiny

_LOOP = (
    "(float[{rows},8] x) => (y) {{ y = Loop<body = b (int64 n, bool go, float[{rows},8] s)"
    " => (bool on, float[{rows},8] t) {{ on = Identity(go) v, i = TopK(s, k) t = Add(s, i0) }}>(three, yes, x) }}"
)


def probe(text: str, **given: np.ndarray) -> Probe:
    model = tiny(text, k=np.array([2]), **given)
    inference.infer(model)
    return Probe.of(list(model.graph), Scope(model, model.graph))


def rows(text: str) -> Probe:
    return probe(f"(float{text} x) => (y, i) {{ y, i = TopK<axis=-1>(x, k) }}")


@pytest.fixture
def old(runtime: Runtime) -> Runtime:
    return dataclasses.replace(runtime, kind="private", version="2.15.0")


def test_rows_that_threads_share(old: Runtime) -> None:
    assert (
        race_condition(rows("[4,4,8]"), old, "ref") == "MIGraphX's threads sort the 16 rows of TopK in the same memory"
    )
    assert race_condition(rows("[15,80]"), old, "ref") is None
    assert race_condition(rows("[80]"), old, "ref") is None
    assert race_condition(probe("(float[90,8] x) => (y) { y = Softmax(x) z = Identity(k) }"), old, "ref") is None


def test_other_builds_share_any_rows(old: Runtime) -> None:
    system = dataclasses.replace(old, kind="system")
    assert race_condition(rows("[2,8]"), system, "ref") is not None
    assert race_condition(rows("[1,8]"), system, "ref") is None


def test_other_targets_and_later_versions_do_not(old: Runtime) -> None:
    assert race_condition(rows("[99,8]"), old, "gpu") is None
    assert race_condition(rows("[99,8]"), dataclasses.replace(old, version="2.16.0"), "ref") is None


def test_within_a_body(old: Runtime) -> None:
    given = {"three": np.array(3), "yes": np.array(True), "i0": np.ones(8, np.float32)}
    assert race_condition(probe(_LOOP.format(rows=40), **given), old, "ref") is not None
    assert race_condition(probe(_LOOP.format(rows=4), **given), old, "ref") is None


def test_verdict_of_a_race_condition(defective_runtime: Runtime) -> None:
    (verdict,) = ProbedRuntime(defective_runtime).verdicts([rows("[32,8]")])
    assert verdict.status is Status.WRONG
    assert "same memory" in verdict.message
    (verdict,) = ProbedRuntime(defective_runtime, compile_for="gpu").verdicts([rows("[33,1]")])
    assert verdict.status is Status.OK
