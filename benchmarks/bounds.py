"""What the project's speed is held to: measured values beside their limits, most of which are ratios to a peer's."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Bound:
    """A measured value and the most that it may be.

    Attributes:
        what: what was measured.
        measured: the value.
        limit: the most that it may be.
        unit: the unit of both.
        rule: how the limit follows from what else was measured.
    """

    what: str
    measured: float
    limit: float
    unit: str
    rule: str

    @property
    def kept(self) -> bool:
        return self.measured <= self.limit

    def __str__(self) -> str:
        mark = "kept  " if self.kept else "MISSED"
        return f"  {mark} {self.what}: {self.measured:.4g} of {self.limit:.4g} {self.unit} ({self.rule})"


def report(bounds: Iterable[Bound]) -> int:
    """Print each bound; returns how many are missed."""
    listed = list(bounds)
    for each in listed:
        print(each, flush=True)
    return sum(not each.kept for each in listed)
