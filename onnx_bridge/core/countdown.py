"""Progress through a number of equal steps, with the time that is left."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from onnx_bridge.core.progress import QUIET_SECONDS, Progress, TimedProgress


@dataclass
class Countdown:
    """Tells how many steps are done and, once two seconds have passed, how long the others will take.

    Attributes:
        tell: called with a line before each step.
        what: the name of the work.
        total: the number of steps; None if it is unknown. A search may take more.
        estimate: the seconds that all steps were estimated to take; None without an estimate.
        clock: returns the time in seconds.
        step_name: the name of a step.
    """

    tell: Progress
    what: str
    total: int | None
    estimate: float | None = None
    clock: Callable[[], float] = time.monotonic
    step_name: str = "sample"
    done: int = 0
    _started: float = field(init=False)

    def __post_init__(self) -> None:
        self._started = self.clock()
        self.tell(self._line())

    def step(self, count: int = 1) -> None:
        """Count steps that are done."""
        self.done += count
        if self.done != self.total:
            self.tell(self._line())

    def _line(self) -> str:
        of = "" if self.total is None or self.done >= self.total else f" of {self.total}"
        counted = self.what if self.total == 1 else f"{self.what}: {self.step_name} {self.done + 1}{of}"
        left = self._left()
        return counted if left is None else TimedProgress(counted, left)

    def _left(self) -> float | None:
        """Return the seconds that are left; None if that is unknown or not worth telling."""
        passed = self.clock() - self._started
        if not self.done:
            return self.estimate if self.estimate is not None and self.estimate > QUIET_SECONDS else None
        if self.total is None or self.done >= self.total or passed < QUIET_SECONDS:
            return None
        return passed / self.done * (self.total - self.done)
