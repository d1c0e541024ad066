"""Text that comes from others, made fit to print: names of models, nodes and files may have any characters."""

from __future__ import annotations

import re

_CONTROLS = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
"""Control characters, ends of lines, marks that change the direction of text, and halves of surrogate pairs."""


def printable(text: str) -> str:
    r"""Return the text in one line that a terminal shows unchanged: control characters become ``\n`` or ``\x1b``."""
    return _CONTROLS.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


def counted(count: int, noun: str) -> str:
    """Return a number with its noun in the singular or the plural."""
    return f"{count:,} {noun}{'s' * (count != 1)}"


def first_line(error: Exception) -> str:
    """Return the first line of an exception's message."""
    return str(error).strip().partition("\n")[0]
