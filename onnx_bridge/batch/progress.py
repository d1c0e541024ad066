"""Progress of a batch: a live table in a terminal, otherwise a line for each finished job."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, TextIO

from onnx_bridge.batch.outcome import Result
from onnx_bridge.core.console import console
from onnx_bridge.core.progress import Stage
from passes.core.text import printable

if TYPE_CHECKING:
    from rich.console import RenderableType

_INSTANT = ("kept", "skipped", "reused", "planned")
"""Statuses of jobs that take no time, and are left out of the estimate of the remaining time."""
_STAGES = list(Stage)


class Observer:
    """Receives the progress of a batch; this one ignores it."""

    def begin(self, total: int) -> None:
        """The batch has this many jobs."""

    def stage(self, name: str, stage: Stage, detail: str) -> None:
        """A job is at a stage."""

    def ended(self, result: Result) -> None:
        """A job has ended."""


@contextlib.contextmanager
def observer(quiet: bool) -> Iterator[Observer]:
    """The observer for standard error.

    Args:
        quiet: print nothing.
    """
    if quiet:
        yield Observer()
    elif not sys.stderr.isatty():
        yield Lines(sys.stderr)
    else:
        from rich.live import Live

        table = Table()
        with Live(console=console(stderr=True), get_renderable=table.render, refresh_per_second=8, transient=True):
            yield table


class Lines(Observer):
    """Prints a line for each job that ends.

    Args:
        stream: the file to print to.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._total = self._done = 0

    def begin(self, total: int) -> None:
        """The batch has this many jobs."""
        self._total = total

    def ended(self, result: Result) -> None:
        self._done += 1
        width = len(str(self._total))
        why = f": {result.reason}" if result.failed else ""
        text = f"[{self._done:{width}}/{self._total}] {result.name} {result.status} ({result.seconds:.2f} s){why}"
        print(printable(text), file=self._stream, flush=True)


class Table(Observer):
    """Shows the running jobs with their stages, and the progress of the batch."""

    def __init__(self) -> None:
        self._total = self._done = self._failed = self._instant = 0
        self._begun = time.monotonic()
        self._running: dict[str, tuple[float, Stage, str]] = {}

    def begin(self, total: int) -> None:
        """The batch has this many jobs."""
        self._total, self._begun = total, time.monotonic()

    def stage(self, name: str, stage: Stage, detail: str) -> None:
        """A job is at a stage."""
        started = self._running[name][0] if name in self._running else time.monotonic()
        self._running[name] = (started, stage, detail)

    def ended(self, result: Result) -> None:
        self._running.pop(result.name, None)
        self._done += 1
        self._failed += result.failed
        self._instant += result.status in _INSTANT

    @property
    def remaining(self) -> float | None:
        """The estimated seconds until the end, from the average so far; None if no job has been done yet."""
        done = self._done - self._instant
        if not done:
            return None
        return (time.monotonic() - self._begun) / done * (self._total - self._done)

    def render(self) -> RenderableType:
        from rich.console import Group
        from rich.progress_bar import ProgressBar
        from rich.table import Table as Grid
        from rich.text import Text

        now = time.monotonic()
        grid = Grid.grid(padding=(0, 2))
        for name, (started, stage, detail) in list(self._running.items()):
            bar = ProgressBar(len(_STAGES), _STAGES.index(stage), width=14)
            more = detail if detail != stage else ""
            grid.add_row(Text(name), bar, Text(stage), Text(f"{now - started:.0f} s"), Text(more, style="dim"))
        left = self.remaining
        eta = "" if left is None else f", about {_clock(left)} to go"
        failed = f", {self._failed} failed" if self._failed else ""
        line = Text(f"{self._done} of {self._total} jobs{failed}, {_clock(now - self._begun)}{eta}")
        return Group(grid, ProgressBar(max(1, self._total), self._done, width=60), line)


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
