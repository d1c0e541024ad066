"""Progress of long work: the stages of a conversion, and free text between them."""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum

from passes.core.text import counted as counted  # with the words of progress


class Stage(StrEnum):
    """A phase of a conversion; a progress callback gets the member as the phase begins."""

    LOAD = "load"
    REUSE = "reuse"
    CLEAN = "clean"
    LEGALIZE = "legalize"
    WRITE = "write"
    START = "start"
    PARSE = "parse"
    QUANTIZE = "quantize"
    COMPILE = "compile"
    SAVE = "save"
    PROVE = "prove"
    FINISH = "finish"
    CHECK = "check"


QUIET_SECONDS = 2.0
"""The seconds that something takes before its remaining time is told."""
Progress = Callable[[str], None]
"""A progress callback. A `Stage` announces the next phase; any other text is a detail of the current one."""


class TimedProgress(str):
    """A detail (``what``) with the seconds that are left, as estimated; a terminal counts down."""

    what: str
    seconds: float

    def __new__(cls, what: str, seconds: float) -> TimedProgress:
        progress = super().__new__(cls, f"{what}, about {duration(seconds)} left")
        progress.what, progress.seconds = what, seconds
        return progress

    def __getnewargs__(self) -> tuple[str, float]:  # type: ignore[override]
        return self.what, self.seconds


def duration(seconds: float) -> str:
    """Return seconds in words, to two digits, or from 100 on as a clock, which does not stand still."""
    return f"{seconds:.2g} s" if seconds < 99.5 else f"{clock(seconds)} {'min' if seconds < 3599.5 else 'h'}"


def clock(seconds: float) -> str:
    """Return seconds as minutes and seconds, with hours if there are any."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def silent(_message: str) -> None:
    """Ignore progress."""
