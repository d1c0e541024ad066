"""The results of `check_data`: metrics over a dataset, of the reference, the cleaned model and the bundle."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from onnx_bridge.core.errors import RuntimeFailure
from onnx_bridge.core.schema import JsonRecord
from onnx_bridge.parity.failure import Failure
from onnx_bridge.reference.comparison.scores import Score
from onnx_bridge.samples.files import described


@dataclass(frozen=True)
class AccuracyReport(JsonRecord):
    """The result of `onnx_bridge.check_data`.

    Attributes:
        model: the name of the model.
        scores: the scores by side, output and metric.
        samples: how many were run: the rows of all batches.
        batches: in how many batches.
        failures: the failures of the sides that did not run all samples.
        versions: the versions of ONNX Runtime and MIGraphX, by name.
        notes: sentences for the user.
    """

    in_json = ("passed",)

    model: str
    scores: tuple[Score, ...]
    samples: int
    batches: int
    failures: Mapping[str, Failure] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    @property
    def passed(self) -> bool:
        """Return whether everything ran, and no score is below its minimum."""
        return bool(self.scores) and not self.failures and all(score.passed for score in self.scores)

    @property
    def exit_code(self) -> int:
        """0 if it passed, 1 if a score is below its minimum, 3 if MIGraphX failed."""
        return 0 if self.passed else RuntimeFailure.exit_code if self.failures else 1

    @property
    def summary(self) -> str:
        """The result in one sentence."""
        ran = described(self.samples, self.batches)
        if self.failures:
            side, failure = next(iter(self.failures.items()))
            return f"{self.model}: {side} {failure.summary}, after {failure.sample or 0} of {self.batches} runs"
        low = [score for score in self.scores if not score.passed]
        if low:
            worst = low[0]
            more = f", and {len(low) - 1} more" if len(low) > 1 else ""
            what = f"{worst.metric} of {worst.output} on {worst.side} is {worst.shown}, {worst.beyond} {worst.least:g}"
            return f"{self.model}: {what}{more} ({ran})"
        asked = any(score.least is not None for score in self.scores)
        return f"{self.model}: {'nothing is below its minimum' if asked else 'measured'} ({ran})"

    def table(self) -> tuple[list[str], list[list[tuple[str, bool]]]]:
        """Return the sides, and a row for each output and metric: its name, what it is against, and each side's value.

        Every cell has its text, and whether it is below its minimum.
        """
        sides = list(dict.fromkeys(score.side for score in self.scores))
        rows = []
        for output, metric in dict.fromkeys((score.output, score.metric) for score in self.scores):
            row = {score.side: score for score in self.scores if (score.output, score.metric) == (output, metric)}
            least = next((score.least for score in row.values() if score.least is not None), None)
            against = "labels" if any(score.against == "labels" for score in row.values()) else "reference"
            cells = [(row[side].shown, not row[side].passed) if side in row else ("–", False) for side in sides]
            rows.append(
                [(output, False), (metric, False), (against, False), *cells, (f"{least:g}" if least else "", False)]
            )
        return sides, rows
