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
    if such work is on MIGraphX, an upper bound if it is on the host, and unknown if it is on both.

    Attributes:
        value: from 0 to 1; None if it is unknown.
        bound: what the value says of the share.
    """

    value: float | None
    bound: Bound = "exactly"

    @classmethod
    def of(cls, parts: Iterable[tuple[bool, int, int, int]]) -> WorkShare:
        """Return the share of parts: (whether on MIGraphX, nodes, work, nodes whose work is not known) each."""
        known = list(parts)
        device = [part for part in known if part[0]]
        host = [part for part in known if not part[0]]
        nodes = sum(part[1] for part in known)
        if not host or not nodes:
            return cls(1.0)
        if not device:
            return cls(0.0)
        below, above = (any(part[3] for part in side) for side in (device, host))
        if below and above:
            return cls(None, "unknown")
        total = sum(part[2] for part in known)
        value = sum(part[2] for part in device) / total if total else sum(part[1] for part in device) / nodes
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
