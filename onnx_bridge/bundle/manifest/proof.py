"""The extent to which the numbers of a bundle are known: what was compared with the reference, and how."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from onnx_bridge.verdicts.proof_counts import ProofCounts
from passes.rewriting.base import Proof


@dataclass(frozen=True)
class BundleProof:
    """The grounds on which the numbers of a bundle are trusted.

    Attributes:
        level: compared in a run at real size, in a run of a witness of the whole model, or not compared.
        what: what was compared, as one sentence; empty if nothing was.
        error: the largest absolute difference from the reference; None without any.
        samples: the number of seeded samples.
        seconds: the duration, the conversion of a witness included.
        unproven: why the bundle was not compared at real size; empty if it was.
        nodes: the number of its nodes on MIGraphX that are proven by themselves, by level.
        comparable: whether the reference runs the model, to the extent that it was asked to; if the model as a whole is
            too large, each of its nodes.
        in_doubt: whether anything in the conversion lacked time or memory, and may be better the next time.
    """

    level: Proof = Proof.NONE
    what: str = ""
    error: float | None = None
    samples: int = 0
    seconds: float = 0.0
    unproven: str = ""
    nodes: ProofCounts = field(default_factory=ProofCounts)
    comparable: bool = True
    in_doubt: bool = False

    @property
    def label(self) -> str:
        """The title of `line`."""
        return "unproven" if self.level is Proof.NONE else "proven"

    @property
    def line(self) -> str:
        """One line for a summary."""
        if self.level is Proof.NONE:
            return f"the model as a whole was not compared: {self.unproven}; its nodes: {self.nodes}"
        error = "" if self.error is None else f", largest error {self.error:.3g}"
        why = f"; not at real size: {self.unproven}" if self.unproven else ""
        return f"{self.what}{error}{why}"

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "level": self.level.value}

    def satisfies(self, asked: str, wanted: str) -> bool:
        """Return whether a bundle converted with ``prove=asked`` suffices for a conversion with ``wanted``."""
        if self.in_doubt:
            return False
        match wanted:
            case "never":
                return True
            case "always":
                return self.level is Proof.RUN or asked == "always"
        return asked != "never"


_STRENGTH = (Proof.NONE, Proof.WITNESS, Proof.RUN)


def together(proofs: Mapping[str, BundleProof]) -> BundleProof:
    """Return the proof of several bundles, by name: the weakest level, the largest error, and all of the time."""
    if not proofs:
        return BundleProof()
    weakest = min(proofs.values(), key=lambda proof: _STRENGTH.index(proof.level))
    errors = [proof.error for proof in proofs.values() if proof.error is not None]
    reasons = [f"{name}: {proof.unproven}" for name, proof in proofs.items() if proof.unproven]
    levels = Counter(proof.level.value for proof in proofs.values())
    listed = ", ".join(f"{count} by {level}" for level, count in levels.items())
    return BundleProof(
        weakest.level,
        weakest.what if len(levels) == 1 else f"compared with ONNX Runtime: {listed}",
        max(errors, default=None),
        sum(proof.samples for proof in proofs.values()),
        round(sum(proof.seconds for proof in proofs.values()), 4),
        "; ".join(reasons),
        sum((proof.nodes for proof in proofs.values()), ProofCounts()),
        all(proof.comparable for proof in proofs.values()),
        any(proof.in_doubt for proof in proofs.values()),
    )
