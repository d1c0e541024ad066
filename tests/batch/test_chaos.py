"""A small batch under fire (`make suite NAME=chaos` is the large one)."""

from __future__ import annotations

from pathlib import Path

import pytest

from fixtures.suites.aimed_kills import KINDS, Aimed
from fixtures.suites.chaos import run_with_kills
from onnx_bridge.migraphx.runtime import Runtime


def test_nothing_is_lost_and_nothing_is_done_twice(runtime: Runtime, tmp_path: Path) -> None:
    account = run_with_kills(tmp_path, models=30, broken=6, kills=4, seed=0)
    assert (len(account.done), len(account.told)) == (24, 6)
    assert not account.lost
    assert not account.repeated
    assert account.kills.total() >= 3  # the last one may come too late


@pytest.mark.slow
def test_kills_aimed_at_publishing(runtime: Runtime, tmp_path: Path) -> None:
    """One of each kind; `make suite NAME=chaos` aims 50."""
    aimed = Aimed(tmp_path)
    aimed.run(3)
    assert aimed.kills == dict.fromkeys(KINDS, 1)
    assert aimed.damaged == 0
