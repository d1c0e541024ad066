"""A batch as it goes: a live table in a terminal, a line for each job elsewhere."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Protocol, TextIO

from onnx_bridge.batch.outcome import Result
from onnx_bridge.batch.stages import STAGES

if TYPE_CHECKING:
    from rich.console import RenderableType

_QUICK = ("kept", "told", "reused", "planned")
"""What takes no time, and says nothing of how long the rest will take."""


class Watcher(Protocol):
    """Who is told what happens."""

    def begin(self, total: int) -> None:
        """There are so many jobs."""

    def stage(self, name: str, stage: str, detail: str) -> None:
        """A job is now at a stage (`STAGES`)."""

    def ended(self, result: Result, weight: int) -> None:
        """A job is over; ``weight`` says how large it was among the others."""


class Silent:
    """A watcher that says nothing."""

    def begin(self, total: int) -> None:
        """Nothing."""

    def stage(self, name: str, stage: str, detail: str) -> None:
        """Nothing."""

    def ended(self, result: Result, weight: int) -> None:
        """Nothing."""


@contextlib.contextmanager
def watching(quiet: bool) -> Iterator[Watcher]:
    """The watcher for this terminal, or for what is in its place.

    Args:
        quiet: say nothing.
    """
    if quiet:
        yield Silent()
    elif not sys.stderr.isatty():
        yield Lines(sys.stderr)
    else:
        from rich.console import Console
        from rich.live import Live

        table = Table()
        with Live(console=Console(stderr=True), get_renderable=table.render, refresh_per_second=8, transient=True):
            yield table


class Lines:
    """A line for each job that ends.

    Args:
        stream: where they go.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._total = self._done = 0

    def begin(self, total: int) -> None:
        """Say how many."""
        self._total = total

    def stage(self, name: str, stage: str, detail: str) -> None:
        """Nothing: what is under way is not told in lines."""

    def ended(self, result: Result, weight: int) -> None:
        """Say what became of one."""
        self._done += 1
        width = len(str(self._total))
        why = f": {result.reason}" if result.failed else ""
        text = f"[{self._done:{width}}/{self._total}] {result.name} {result.status} ({result.seconds:.2f} s){why}"
        print(text, file=self._stream, flush=True)


class Table:
    """What is under way, job by job with its stage, and how far the whole is."""

    def __init__(self) -> None:
        self._total = self._done = self._failed = 0
        self._begun = time.monotonic()
        self._running: dict[str, tuple[float, str, str]] = {}
        self._weights: list[int] = []
        self._quick = 0

    def begin(self, total: int) -> None:
        """There are so many jobs."""
        self._total, self._begun = total, time.monotonic()

    def stage(self, name: str, stage: str, detail: str) -> None:
        """A job is now at a stage."""
        started = self._running[name][0] if name in self._running else time.monotonic()
        self._running[name] = (started, stage, detail)

    def ended(self, result: Result, weight: int) -> None:
        """A job is over."""
        self._running.pop(result.name, None)
        self._done += 1
        self._failed += result.failed
        if result.status in _QUICK:
            self._quick += 1
        else:
            self._weights.append(weight)

    @property
    def remaining(self) -> float | None:
        """Seconds until the end, from what the jobs so far took; None where none was done yet."""
        done = len(self._weights)
        if not done:
            return None
        each = (time.monotonic() - self._begun) / done
        return each * (self._total - self._quick - done)

    def render(self) -> RenderableType:
        """For rich."""
        from rich.console import Group
        from rich.progress_bar import ProgressBar
        from rich.table import Table as Grid
        from rich.text import Text

        now = time.monotonic()
        grid = Grid.grid(padding=(0, 2))
        for name, (started, stage, detail) in list(self._running.items()):
            bar = ProgressBar(len(STAGES), STAGES.index(stage), width=14)
            said = detail if detail != stage else ""
            grid.add_row(Text(name), bar, Text(stage), Text(f"{now - started:.0f} s"), Text(said, style="dim"))
        left = self.remaining
        eta = "" if left is None else f", about {_clock(left)} to go"
        failed = f", {self._failed} failed" if self._failed else ""
        line = Text(f"{self._done} of {self._total} jobs{failed}, {_clock(now - self._begun)}{eta}")
        return Group(grid, ProgressBar(max(1, self._total), self._done, width=60), line)


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
