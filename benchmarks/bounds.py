"""What the project's speed is held to: measured values beside their limits, most of which are ratios to a peer's."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

RESULTS = "ONNX_BRIDGE_BENCH_RESULTS"
"""The variable that names the file which `report` adds the bounds to, as lines of JSON."""


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
    """Print each bound, and add it to the file of results if there is one; return how many are missed."""
    listed = list(bounds)
    for bound in listed:
        print(bound, flush=True)
    if path := os.environ.get(RESULTS):
        with Path(path).open("a") as file:
            file.writelines(json.dumps({**asdict(bound), "kept": bound.kept}) + "\n" for bound in listed)
    return sum(not bound.kept for bound in listed)
