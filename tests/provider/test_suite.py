"""The suite of the provider itself: what it counts, what fails it, and what it makes of single models."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import parser

from fixtures.suites import provider as suite
from fixtures.suites.provider import SUITE, Outcome, Row
from fixtures.suites.rehearsal import Case
from onnx_bridge.migraphx.runtime import Runtime
from onnx_bridge.model import io as models
from onnx_bridge.reference.comparison.tolerances import Tolerances

WHOLE = Row("node", "whole", "whole", found=True)
NODES = {
    "whole": "float[2,3] y) { y = Relu(x) }",
    "part": "float[3,3] y) { t = Transpose(x) m = MatMul(t, x) y = Shrink(m) }",
    "cpu": "float[2,3] y) { y = Shrink(x) }",
    "session fails": "float[4,6] y) { k = Constant<value = int64[2] {4, 6}>()"
    ' y = Resize<mode = "linear", keep_aspect_ratio_policy = "stretch">(x, , , k) }',
    "wrong": "float y) { y = ReduceSum<keepdims = 0>(x) }",
}
"""Models by their outcome without a conversion."""


def saved(text: str, path: Path, also: str = "") -> Case:
    model = parser.parse_model(f'<ir_version: 8, opset_import: ["": 18]> g (float[2,3] x{also}) => ({text}')
    onnx.save(model, path)
    return Case(path, {"x": np.arange(-2, 4, dtype=np.float32).reshape(2, 3)})


def test_the_last_line_counts_models_and_programs() -> None:
    rows = [
        WHOLE,
        Row("node", "lost", "part", found=False),
        Row("zoo", "none", "cpu"),
        Row("node", "random", "left out"),
        Row("packaged", "fails", "session fails"),
    ]
    assert SUITE.counts(rows) == (
        "provider: whole 1, part 1, cpu 1, session fails 1, run fails 0, wrong 0, of 4; programs found 1 of 2"
    )
    assert "node: whole 1, part 1, cpu 0, session fails 0, run fails 0, wrong 0, of 2" in list(SUITE.notes(rows))


@pytest.mark.parametrize("outcome", ["session fails", "run fails", "wrong"])
def test_one_bad_model_is_too_many(outcome: str) -> None:
    assert SUITE.failed([*[WHOLE] * 99, Row("zoo", "bad", outcome)])


def test_few_whole_node_tests_and_lost_programs_fail() -> None:
    left = Row("node", "left", "cpu")
    assert not SUITE.failed([*[WHOLE] * 9, left, Row("node", "random", "left out")])
    assert SUITE.failed([*[WHOLE] * 8, left, left])
    assert not SUITE.failed([*[WHOLE] * 9, *[Row("node", "float8", "cpu", plain=False)] * 9])
    assert not SUITE.failed([Row("zoo", "left", "cpu")])
    assert SUITE.failed([*[WHOLE] * 9, Row("node", "lost", "whole", found=False)])


@pytest.mark.parametrize("outcome", NODES)
def test_outcomes_without_and_with_a_conversion(
    runtime: Runtime, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, outcome: str
) -> None:
    case = saved(NODES[outcome], tmp_path / "model.onnx")
    monkeypatch.setitem(suite.SOURCES, "node", (lambda _: case, list))  # type: ignore[arg-type]
    raw = suite.judged("node", "model", raw=True)
    assert (raw.outcome, raw.found) == (outcome, True if outcome in ("whole", "part", "wrong") else None)
    converted = suite.judged("node", "model", raw=False)
    assert converted.outcome in ("whole", "part", "cpu") and converted.found is not False, converted.why


def test_what_the_standard_records_is_right_too() -> None:
    (recorded,) = suite.recorded("node", "test_relu")
    (name, array), other = next(iter(recorded.items())), {"y": np.zeros(1, np.float32)}
    assert array.shape and not suite.recorded("zoo", "resnet")
    assert not suite._difference(recorded, [other, recorded], Tolerances())
    assert name in suite._difference(other, [recorded, {name: array + 1}], Tolerances())


@pytest.mark.parametrize(("open_outcome", "frozen"), [("cpu", ("n",)), ("part", ("n",)), ("wrong", ()), ("whole", ())])
def test_a_structural_input_is_frozen_if_the_model_is_whole_only_then(
    runtime: Runtime, tmp_path: Path, open_outcome: str, frozen: tuple[str, ...]
) -> None:
    case = saved("float[K] y) { y = Reshape(x, n) }", tmp_path / "model.onnx", also=", int64[1] n")
    sample = {**case.sample, "n": np.array([6])}
    outcome = suite.converted(
        Case(case.path, sample),
        models.load(case.path),
        lambda _path, _options, given: Outcome(open_outcome if "n" in given else "whole"),
    )
    assert (outcome.outcome, outcome.frozen) == ("whole" if frozen else open_outcome, frozen)
