"""The share of a model's work that runs on MIGraphX, to the extent that sizes are known."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

Bound = Literal["exactly", "at least", "at most", "unknown"]


@dataclass(frozen=True)
class WorkShare:
    """A share of the estimated work: of the nodes if no work is estimated.

    Work that is not known, since a size is not, is counted as the least that it can be. So the share is a lower bound
    where such work is on MIGraphX, an upper bound where it is on the host, and unknown where it is on both.

    Attributes:
        value: from 0 to 1; None if it is unknown.
        bound: what the value says of the share.
    """

    value: float | None
    bound: Bound = "exactly"

    @classmethod
    def of(cls, parts: Iterable[tuple[bool, int, int, int]]) -> WorkShare:
        """Return the share of some parts.

        Args:
            parts: of each: whether it is on MIGraphX, its number of nodes, its work, and how many of its nodes have
                work that is not known.
        """
        found = list(parts)
        device = [each for each in found if each[0]]
        host = [each for each in found if not each[0]]
        nodes = sum(each[1] for each in found)
        if not host or not nodes:
            return cls(1.0)
        if not device:
            return cls(0.0)
        below, above = (any(each[3] for each in side) for side in (device, host))
        if below and above:
            return cls(None, "unknown")
        total = sum(each[2] for each in found)
        value = sum(each[2] for each in device) / total if total else sum(each[1] for each in device) / nodes
        return cls(value, "at least" if below else "at most" if above else "exactly")

    @property
    def rest(self) -> WorkShare:
        """The share on the host."""
        if self.value is None:
            return self
        opposite: dict[Bound, Bound] = {"at least": "at most", "at most": "at least"}
        return WorkShare(1 - self.value, opposite.get(self.bound, self.bound))

    def __str__(self) -> str:
        return format(self, ".1%")

    def __format__(self, spec: str) -> str:
        if self.value is None:
            return "an unknown share"
        return f"{'' if self.bound == 'exactly' else f'{self.bound} '}{self.value:{spec}}"

    def to_json(self) -> dict[str, Any]:
        return {"value": None if self.value is None else round(self.value, 6), "bound": self.bound}
