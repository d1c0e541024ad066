"""Exceptions and output of third-party code: one line of text for the former, and nothing for the latter."""

from __future__ import annotations

import contextlib
import io
import logging
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from typing import Any, TextIO

_LENGTH = 240


def shorten(text: str, length: int = _LENGTH) -> str:
    """Return the text, cut to a number of characters with an ellipsis."""
    return text if len(text) <= length else f"{text[: length - 1]}…"


def describe(error: BaseException) -> str:
    """Return an exception in one line: its type, and the first line of its message."""
    line = next((line.strip() for line in str(error).splitlines() if line.strip()), "")
    return shorten(f"{type(error).__name__}: {line}" if line else type(error).__name__)


class _Discard(io.StringIO):
    """A stream that discards what is written; rich's consoles still reach the terminal behind it."""

    def __init__(self, stream: TextIO) -> None:
        super().__init__()
        self.rich_proxied_file: Any = getattr(stream, "rich_proxied_file", stream)

    def write(self, text: str) -> int:
        return len(text)


class ProcessState:
    """A context that changes the whole process: the first of concurrent users enters it, the last one leaves it."""

    def __init__(self, make: Callable[[], contextlib.AbstractContextManager[None]]) -> None:
        self._make, self._lock, self._users = make, threading.Lock(), 0

    @contextlib.contextmanager
    def __call__(self) -> Iterator[None]:
        """Enter the context, or share it with its present users."""
        with self._lock:
            if not self._users:
                self._context = self._make()
                self._context.__enter__()
            self._users += 1
        try:
            yield
        finally:
            with self._lock:
                self._users -= 1
                if not self._users:
                    self._context.__exit__(None, None, None)


@contextlib.contextmanager
def _suppressed_output() -> Iterator[None]:
    level = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with (
            warnings.catch_warnings(),
            contextlib.redirect_stdout(_Discard(sys.stdout)),
            contextlib.redirect_stderr(_Discard(sys.stderr)),
        ):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(level)


suppressed_output = ProcessState(_suppressed_output)
"""Discard what Python prints, logs or warns of, in all threads, while the context lasts."""
