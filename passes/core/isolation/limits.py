"""Limits of time and memory."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Limits:
    """The limits of one request; None is no limit.

    Attributes:
        timeout: seconds.
        memory: bytes of anonymous memory of the whole worker process.
    """

    timeout: float | None = None
    memory: int | None = None

    @classmethod
    def of(cls, timeout: float | None, gibibytes: float | None) -> Limits:
        """Limits from the units of the API: seconds and GiB."""
        return cls(timeout, None if gibibytes is None else int(gibibytes * 2**30))
