"""Progress with the time that is left."""

from __future__ import annotations

import pickle
from pathlib import Path

from onnx_bridge.core.countdown import ByteCountdown, Countdown
from onnx_bridge.core.files.digest import file_digest
from onnx_bridge.core.progress import TimedProgress, duration


def told(total: int | None, seconds: float, steps: int, estimate: float | None = None) -> list[str]:
    """Return what is told of some steps that take as many seconds each."""
    lines: list[str] = []
    now = [0.0]
    countdown = Countdown(lines.append, "run", total, estimate, clock=lambda: now[0])
    for _ in range(steps):
        now[0] += seconds
        countdown.step()
    return lines


def test_the_time_left_after_two_seconds() -> None:
    lines = told(5, 1.5, 5)
    assert len(lines) == 5
    assert ["left" in each for each in lines] == [False, False, True, True, True]
    assert "4.5 s left" in lines[2]
    assert "1.5 s left" in lines[4]


def test_the_estimate_comes_before_the_first_step() -> None:
    assert "40 s left" in told(3, 1, 0, estimate=40)[0]
    assert "left" not in told(3, 1, 0, estimate=1)[0]


def test_an_unknown_number_of_steps() -> None:
    assert all("left" not in each and " of " not in each for each in told(None, 10, 3))


def test_timed_progress_is_text_that_can_be_sent() -> None:
    one = TimedProgress("run", 40.0)
    other = pickle.loads(pickle.dumps(one))
    assert (other, other.what, other.seconds) == (one, "run", 40.0)


def test_durations() -> None:
    assert [duration(each) for each in (0.5, 42, 240, 7200)] == ["0.5 s", "42 s", "4:00 min", "2:00:00 h"]


def test_a_search_that_takes_more_steps() -> None:
    lines = told(2, 3, 4)
    assert [" of 2" in each for each in lines] == [True, True, False, False]
    assert all("left" not in each for each in lines[2:])


def test_bytes_are_told_in_mebibytes(tmp_path: Path) -> None:
    with (path := tmp_path / "large").open("wb") as file:
        file.truncate(40 << 20)
        file.write(b"end")
    lines: list[str] = []
    countdown = ByteCountdown(lines.append, "reading", path.stat().st_size)
    assert countdown.digest(path) == file_digest(path)
    assert lines == ["reading: MiB 1 of 40", "reading: MiB 17 of 40", "reading: MiB 33 of 40"]
    with countdown.open(path) as opened:
        assert len(opened.read()) == path.stat().st_size
    assert lines[-1] == "reading: MiB 81"
