"""Counts of a model's nodes by how far their numbers are known."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from passes.rewriting.base import Obstacle, Proof, Verdict


@dataclass(frozen=True)
class ProofCounts:
    """Nodes by what the verdicts on their numbers rest on.

    Attributes:
        run: compared at real size.
        witness: compared by a witness.
        unproven: not compared, by the reason (an `Obstacle`'s value).
    """

    run: int = 0
    witness: int = 0
    unproven: dict[str, int] = field(default_factory=dict)

    @classmethod
    def of(cls, verdicts: Iterable[Verdict]) -> ProofCounts:
        """Count verdicts of nodes that the runtime accepts."""
        known = list(verdicts)
        counts = Counter(verdict.proof for verdict in known)
        reasons = [verdict.unproven for verdict in known if verdict.proof is Proof.NONE]
        obstacles = Counter(reason.obstacle for reason in reasons if reason)
        unproven = {obstacle.value: obstacles[obstacle] for obstacle in Obstacle if obstacles[obstacle]}
        return cls(counts[Proof.RUN], counts[Proof.WITNESS], unproven)

    def __add__(self, other: ProofCounts) -> ProofCounts:
        unproven = dict(Counter(self.unproven) + Counter(other.unproven))
        return ProofCounts(self.run + other.run, self.witness + other.witness, unproven)

    def to_json(self) -> dict[str, Any]:
        """Return the counts by `Proof`, and those without one by reason."""
        counts = {Proof.RUN: self.run, Proof.WITNESS: self.witness, Proof.NONE: sum(self.unproven.values())}
        return {**{proof.value: count for proof, count in counts.items()}, "unproven": self.unproven}

    def __str__(self) -> str:
        unproven = f"{sum(self.unproven.values())} unproven"
        if self.unproven:
            unproven += f": {', '.join(f'{count} {reason}' for reason, count in self.unproven.items())}"
        return f"{self.run} proven at real size, {self.witness} by a witness, {unproven}"
