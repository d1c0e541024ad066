"""Progress of a batch: a live table in a terminal, otherwise a line for each finished job."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Iterator
from typing import TextIO

from rich.console import Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from onnx_bridge.batch.outcome import Observer, Result
from onnx_bridge.core.progress import Stage, clock
from onnx_bridge.views.terminal.tables import console
from passes.core.text import counted, printable

_INSTANT = ("kept", "skipped", "reused", "planned")
"""Statuses of jobs that take no time, and are left out of the estimate of the remaining time."""
_STAGES = list(Stage)


@contextlib.contextmanager
def observer(quiet: bool) -> Iterator[Observer]:
    """Yield the observer for standard error; if ``quiet``, one that prints nothing."""
    if quiet:
        yield Observer()
    elif not sys.stderr.isatty():
        yield Lines(sys.stderr)
    else:
        table = LiveTable()
        with Live(console=console(stderr=True), get_renderable=table.render, refresh_per_second=8, transient=True):
            yield table


class Lines(Observer):
    """Prints a line for each job that ends to a stream."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._total = self._done = 0

    def begin(self, total: int) -> None:
        self._total = total

    def ended(self, result: Result) -> None:
        self._done += 1
        width = len(str(self._total))
        why = f": {result.reason}" if result.failed else ""
        text = f"[{self._done:{width}}/{self._total}] {result.name} {result.status} ({result.seconds:.2f} s){why}"
        print(printable(text), file=self._stream, flush=True)


class LiveTable(Observer):
    """Shows the running jobs with their stages, and the progress of the batch."""

    def __init__(self) -> None:
        self._total = self._done = self._failed = self._instant = 0
        self._begun = time.monotonic()
        self._end: float | None = None
        self._running: dict[str, tuple[float, Stage, str]] = {}

    def begin(self, total: int) -> None:
        self._total, self._begun = total, time.monotonic()

    def stage(self, name: str, stage: Stage, detail: str) -> None:
        started = self._running[name][0] if name in self._running else time.monotonic()
        self._running[name] = (started, stage, detail)

    def ended(self, result: Result) -> None:
        self._running.pop(result.name, None)
        self._done += 1
        self._failed += result.failed
        self._instant += result.status in _INSTANT
        now, timed = time.monotonic(), self._done - self._instant
        if timed:
            self._end = now + (now - self._begun) / timed * (self._total - self._done)

    @property
    def remaining(self) -> float | None:
        """The seconds until the end, as estimated when the last job ended; None before, and if they have passed."""
        return None if self._end is None or (left := self._end - time.monotonic()) < 0 else left

    def render(self) -> RenderableType:
        now = time.monotonic()
        grid = Table.grid(padding=(0, 2))
        for name, (started, stage, detail) in list(self._running.items()):
            bar = ProgressBar(len(_STAGES), _STAGES.index(stage), width=14)
            more = detail if detail != stage else ""
            grid.add_row(name, bar, stage, f"{now - started:.0f} s", Text(more, style="dim"))
        left = self.remaining
        eta = "" if left is None else f", about {clock(left)} to go"
        failed = f", {self._failed} failed" if self._failed else ""
        line = f"{self._done} of {counted(self._total, 'job')}{failed}, {clock(now - self._begun)}{eta}"
        return Group(grid, ProgressBar(max(1, self._total), self._done, width=60), line)
