"""A part of the ONNX standard's backend tests through the public API; the suite ``conformance`` runs all."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from fixtures.suites.conformance import rules, run, suite
from onnx_bridge.migraphx.runtime import Runtime

PARTS = 6
EVERY = 16
"""One test in so many is taken, over all operators, since names begin with the operator's."""


@pytest.fixture(scope="module")
def chosen() -> list[suite.Case]:
    return suite.cases()[::EVERY]


@pytest.mark.parametrize("part", range(PARTS))
def test_a_part(runtime: Runtime, chosen: list[suite.Case], part: int) -> None:
    """What ONNX Runtime gets right is right here, most of it on MIGraphX alone, and nothing crashes."""
    rows = [run.test(case) for case in chosen[part::PARTS]]
    assert not [(row.name, row.ours) for row in rows if row.reference.right and not row.ours.right]
    assert not [(row.name, row.ours) for row in rows if row.stock.right and not row.ours.right]
    assert not [(row.name, row.ours) for row in rows if row.ours.outcome == "crashed"]
    wholly = [row for row in rows if row.ours.outcome in ("wholly", "frozen")]
    assert len(wholly) >= 0.75 * len(rows), run.summary("conformance", (row.ours for row in rows))


def test_difference() -> None:
    """What counts as a difference: dtype, shape, length, presence, and numbers beyond the suite's tolerance."""
    one = np.ones(2, np.float32)
    assert suite.difference(one, one) is None
    assert suite.difference(one + 1e-3, one) is None
    assert suite.difference(one + 2e-3, one) == "largest difference 0.002"
    assert suite.difference(one.astype(np.float64), one) == "float64[2] instead of float32[2]"
    assert suite.difference(np.ones((2, 1), np.float32), one) == "float32[2, 1] instead of float32[2]"
    assert suite.difference([one], [one, one]) == "2 elements are expected"
    assert suite.difference(None, one) == "one of the two is empty"
    assert suite.difference(np.array(["a"]), np.array(["b"], object)) == "other strings"
    assert suite.difference(np.array([1, 2]), np.array([1, 3])) == "1 of 2 elements differ"
    assert suite.difference(np.float32([np.nan]), np.float32([np.nan])) is None


def test_what_can_be_drawn() -> None:
    """Of random tests: zeros and ones, or what Dropout keeps and drops, and the mask of that."""
    cases = {case.name: case for case in suite.cases()}

    def said(name: str, change: Callable[[list[np.ndarray]], object]) -> str | None:
        inputs, expected = cases[name].samples()[0]
        actual = [each.copy() for each in expected]
        change(actual)
        return cases[name].difference(inputs, actual, expected)

    for name in ("test_bernoulli", "test_bernoulli_seed_expanded", "test_training_dropout_default_mask"):
        assert said(name, lambda actual: None) is None
        assert said(name, lambda actual: actual[0].fill(0.5)) == "numbers that cannot be drawn"
    assert said("test_bernoulli", lambda actual: actual[0].fill(1)) is None
    assert said("test_training_dropout_default_mask", lambda actual: actual[0].fill(0)) == "another mask"
    assert "instead of" in (said("test_bernoulli", lambda actual: actual.append(actual[0])) or "")
    same = said("test_training_dropout_zero_ratio", lambda actual: actual[0].fill(0))
    assert same is not None and "difference" in same


def test_the_table_of_rules(tmp_path: Path) -> None:
    """Rules that a version no longer needs come first."""
    file = tmp_path / "results.json"
    file.write_text('[{"ours": {"rules": {"a": 2, "b": 1}}}, {"ours": {"rules": {"a": 1}}}, {"ours": {"rules": {}}}]')
    assert rules.applied(file) == {"a": 3, "b": 1}
    lines = rules.table({"2.14": rules.applied(file), "2.16": {"a": 1}}).splitlines()
    assert [line.split() for line in lines] == [
        ["rule", "2.14", "2.16"],
        ["b", "1", "0"],
        ["a", "3", "1"],
        ["all", "4", "1"],
    ]


def test_outcomes() -> None:
    """An error of ours is a refusal; a worker that dies, or any other exception, is a crash."""
    from onnx_bridge.core.errors import InputError, WorkerCrashed

    def raising(error: Exception) -> run.Outcome:
        def fail() -> run.Outcome:
            raise error

        return run.attempt(fail)

    assert raising(InputError("no")).outcome == "refused"
    assert raising(WorkerCrashed("parsing", returncode=-6)).outcome == "crashed"
    assert raising(KeyError("x")) == run.Outcome("crashed", "KeyError: 'x'")
    outcomes = [run.Outcome("wholly"), run.Outcome("frozen"), run.Outcome("host"), run.Outcome("refused")]
    assert run.summary("conformance", outcomes) == (
        "conformance: wholly 2 (frozen 1), with host 1, wrong 0, refused 1, crashed 0, of 4"
    )
