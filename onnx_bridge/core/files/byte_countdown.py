"""Progress through bytes that are read, with the time that is left."""

from __future__ import annotations

import hashlib
from io import BufferedReader
from pathlib import Path
from typing import Any

from onnx_bridge.core.countdown import Countdown
from onnx_bridge.core.files.regular_file import open_regular
from onnx_bridge.core.progress import Progress, silent

_STEP = 16 << 20
"""Bytes between two lines."""


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
