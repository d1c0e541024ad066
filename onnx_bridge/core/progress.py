"""Progress of long work: the stages of a conversion, and free text between them."""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum


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


Progress = Callable[[str], None]
"""A progress callback. A `Stage` announces the next phase; any other text is a detail of the current one."""


def silent(_message: str) -> None:
    """Ignore progress."""
