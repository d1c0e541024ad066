"""The result of a search for the fastest conversion."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from onnx_bridge.core.schema import JsonRecord
from onnx_bridge.search.pareto import Candidate, Trial, explain, pareto_front, winner


@dataclass(frozen=True)
class Tuning(JsonRecord):
    """The result of `tune`.

    Attributes:
        model: the model's file.
        target: what was compiled for.
        trials: the trials, in the order in which they were run.
        resumed: the number of trials that are from the journal.
        left: the candidates that were not tried within the budget.
        job: the job file of the winner; None if no trial passed.
        sizes: the sizes of inputs, by dimension; empty without buckets.
    """

    in_json = ("winner", "passed")

    model: Path
    target: str
    trials: tuple[Trial, ...]
    resumed: int
    left: tuple[Candidate, ...]
    job: Path | None
    sizes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)

    @property
    def winner(self) -> Trial | None:
        return winner(self.trials)

    @property
    def passed(self) -> bool:
        return self.winner is not None

    def to_json(self) -> dict[str, Any]:
        front = pareto_front(self.trials)
        trials = [
            {**trial.to_json(), "front": trial in front, "why": explain(trial, self.trials)} for trial in self.trials
        ]
        return super().to_json() | {"trials": trials}
