"""The errors of passes.

Every error for users says *what* is wrong, *where*, and what to do (*hint*), and has the exit code of the command. As
text it is one line, whatever names are in it; its fields are exact.
"""

from __future__ import annotations

import copyreg
import difflib
from collections.abc import Iterable
from typing import Any, ClassVar

from passes.core.text import printable


class BridgeError(Exception):
    """The base class of all errors for users.

    Args:
        what: what is wrong, as one sentence.
        where: the file, node or option.
        hint: what to do.
    """

    exit_code: ClassVar[int] = 2
    page: ClassVar[str | None] = None
    """The page of ``docs/`` that explains it; None where its line says all."""
    options: tuple[str, ...] = ()
    """The options of the command line with which the same command succeeds; empty if they are unknown."""

    def __init__(self, what: str, *, where: str | None = None, hint: str | None = None) -> None:
        super().__init__(what)
        self.what = what
        self.where = where
        self.hint = hint
        self.details: dict[str, Any] = {}

    def __str__(self) -> str:
        text = f"{self.where}: {self.what}" if self.where else self.what
        return printable(f"{text} ({self.hint})" if self.hint else text)

    def __reduce__(self) -> tuple[Any, ...]:
        """Copy the fields instead of calling ``__init__``, whose parameters subclasses choose."""
        return copyreg.__newobj__, (type(self), *self.args), self.__dict__  # type: ignore[attr-defined]


class InputError(BridgeError):
    """Bad input or usage: a broken file, an unknown name, a shape that does not fit."""


class PassError(BridgeError):
    """A defect of a pass, not of the input."""

    exit_code = 3
    page = "guides/passes.md#what-did-it-do-and-is-it-right"


def nearest(word: str, known: Iterable[str]) -> str | None:
    """Return the hint "did you mean …?" for an unknown ``word``, or None where nothing known resembles it."""
    close = difflib.get_close_matches(word, list(known), n=1, cutoff=0.5)
    return f"did you mean {close[0]}?" if close else None
