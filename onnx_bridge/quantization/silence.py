"""Quiet for libraries that print: what quantizers say goes nowhere, and never into a program's standard output.

Quark logs, prints tables, and shows bars of progress while it quantizes; it also changes the filters of warnings. All
of that is the whole process's, and put back afterwards. What rich draws on a terminal meanwhile gets through.
"""

from __future__ import annotations

import contextlib
import io
import logging
import sys
import warnings
from collections.abc import Iterator
from typing import Any, TextIO


class _Nowhere(io.StringIO):
    """A stream that forgets what is written, and that consoles of rich see through."""

    def __init__(self, real: TextIO) -> None:
        super().__init__()
        self.rich_proxied_file: Any = getattr(real, "rich_proxied_file", real)

    def write(self, text: str) -> int:
        """Forget it."""
        return len(text)


@contextlib.contextmanager
def silence() -> Iterator[None]:
    """Let nothing be printed, logged or warned of."""
    level = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with (
            warnings.catch_warnings(),
            contextlib.redirect_stdout(_Nowhere(sys.stdout)),
            contextlib.redirect_stderr(_Nowhere(sys.stderr)),
        ):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(level)


def told(error: BaseException, most: int = 240) -> str:
    """What an error of a library says, in one line."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    text = f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
    return text if len(text) <= most else f"{text[: most - 1]}…"
