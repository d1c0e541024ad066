"""How much memory a control group leaves, and which limits come of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from passes.isolation import limits
from passes.isolation.limits import Limits, at_most, current, limited


@pytest.mark.parametrize(
    ("folder", "limit", "used", "prefix"),
    [("", "memory.max", "memory.current", ""), ("memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_")],
)
def test_copies_of_files_are_free(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, folder: str, limit: str, used: str, prefix: str
) -> None:
    """A group that has read and written many files is at its limit all the time."""
    monkeypatch.setattr(limits, "_CONTROL", tmp_path)
    (tmp_path / folder).mkdir(exist_ok=True)
    (tmp_path / folder / limit).write_text("1000000\n")
    (tmp_path / folder / used).write_text("990000\n")
    stat = f"anon 190000\nfile 800000\n{prefix}inactive_file 500000\n{prefix}active_file 200000\n"
    (tmp_path / folder / "memory.stat").write_text(stat)
    assert limits.available_bytes() == 710_000


def test_a_group_without_a_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    without = limits.available_bytes()
    monkeypatch.setattr(limits, "_CONTROL", tmp_path)
    files = {"memory.max": "max\n", "memory.current": "0\n", "memory.stat": "active_file 0\ninactive_file 0\n"}
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    assert limits.available_bytes() > 0.5 * without


def test_limits_of_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "available_bytes", lambda: 1000)
    assert current(5) == Limits(5, None, 800)
    assert at_most(7, 300) == Limits(7, None, 300)
    assert at_most(7, 900) == Limits(7, None, 800)
    with limited(Limits(growth=0)):  # nothing is free
        assert at_most(7, 300) == Limits(7, None, 0)
    with limited(Limits(3, 100)):
        assert current(5) == Limits(3, 100)
        assert at_most(2, 300) == Limits(2, 100, 300)
        with limited(at_most(7, 50)):
            assert current(5) == Limits(3, 100, 50)


def test_the_limit_of_a_process_that_has_some() -> None:
    assert Limits().memory_of(10) is None
    assert Limits(memory=100).memory_of(10) == 100
    assert Limits(growth=100).memory_of(10) == 110
    assert Limits(memory=50, growth=100).memory_of(10) == 50
