"""How much time and memory a request to MIGraphX may take."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Limits:
    """What one request may use; None is no limit.

    Attributes:
        timeout: seconds.
        memory: bytes of anonymous memory of the whole worker process.
    """

    timeout: float | None = None
    memory: int | None = None

    @classmethod
    def of(cls, timeout: float | None, gibibytes: float | None) -> Limits:
        """From what users give: seconds and GiB."""
        return cls(timeout, None if gibibytes is None else int(gibibytes * 2**30))
