"""Progress through a number of equal steps, or through bytes that are read, with the time that is left."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from io import BufferedReader
from pathlib import Path
from typing import Any

from onnx_bridge.core.files.regular_file import open_regular
from onnx_bridge.core.progress import QUIET_SECONDS, Progress, TimedProgress, silent

_STEP = 16 << 20
"""Bytes between two lines."""


@dataclass
class Countdown:
    """Tells how many steps are done and, once two seconds have passed, how long the others will take.

    Attributes:
        tell: called with a line before each step.
        what: the name of the work.
        total: the number of steps; None if it is unknown. A search may take more.
        estimate: the seconds that all steps were estimated to take; None without an estimate.
        clock: returns the time in seconds.
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


class ByteCountdown:
    """Tells how many of a number of bytes are read, in mebibytes.

    Args:
        tell: called with a line now and then; None tells nothing.
        what: the name of the work.
        total: the number of bytes.
    """

    def __init__(self, tell: Progress | None, what: str, total: int) -> None:
        self._countdown = Countdown(tell or silent, what, max(1, total >> 20), step_name="MiB")
        self._untold = 0

    def count(self, read: int) -> None:
        """Count bytes that were read."""
        self._untold += read
        if self._untold >= _STEP:
            self._countdown.step(self._untold >> 20)
            self._untold %= 1 << 20

    def open(self, path: Path) -> BufferedReader:
        """Return a regular file, whose bytes are counted as they are read; raises OSError."""
        return _Counted(open_regular(path), self)

    def digest(self, path: Path) -> str:
        """Return the SHA-256 of a regular file, in hexadecimal; raises OSError."""
        with self.open(path) as file:
            return hashlib.file_digest(file, "sha256").hexdigest()


class _Counted(BufferedReader):
    def __init__(self, file: BufferedReader, countdown: ByteCountdown) -> None:
        super().__init__(file.detach())
        self._countdown = countdown

    def read(self, size: int | None = -1, /) -> bytes:
        content = super().read(size)
        self._countdown.count(len(content))
        return content

    def readinto(self, buffer: Any, /) -> int:
        count = super().readinto(buffer)
        self._countdown.count(count)
        return count
