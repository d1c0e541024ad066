"""A failure of MIGraphX as a result of a check: the step, the kind, and the message."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from onnx_bridge.core.errors import RuntimeFailure, Step
from onnx_bridge.parity.symptoms.symptom import SymptomKind

_SAYS = {
    SymptomKind.REJECTED: "fails",
    SymptomKind.CRASHES: "crashes",
    SymptomKind.TIMEOUT: "times out",
    SymptomKind.MEMORY: "runs out of memory",
}
_LINES = 20
"""The number of lines that are kept of what MIGraphX printed."""


@dataclass(frozen=True)
class Failure:
    """The reason why a leg has no outputs; ``sample`` is None if it shows before any sample is run."""

    step: Step
    error: RuntimeFailure
    sample: int | None = None

    @classmethod
    def of(cls, error: RuntimeFailure) -> Failure:
        """Return the failure of a conversion; it is one of parsing if no request to MIGraphX failed."""
        cause: BaseException | None = error
        while cause is not None:
            if isinstance(cause, RuntimeFailure) and cause.step is not None:
                return cls(cause.step, error)
            cause = cause.__cause__
        return cls(Step.PARSE, error)

    @property
    def kind(self) -> SymptomKind:
        """The kind of the error."""
        return SymptomKind.of(self.error)

    @property
    def summary(self) -> str:
        """The failure without MIGraphX's message."""
        return f"{_SAYS[self.kind]} in the step {self.step}"

    @property
    def printed(self) -> str:
        """The last lines that MIGraphX printed."""
        return "\n".join(self.error.output.strip().splitlines()[-_LINES:])

    def __str__(self) -> str:
        of = "" if self.sample is None else f", sample {self.sample}"
        return f"{self.step}{of}: {self.error.what}" + (f" ({self.error.where})" if self.error.where else "")

    def to_json(self) -> dict[str, Any]:
        """Return the attributes as JSON values."""
        error = self.error
        values = {"what": error.what, "where": error.where, "hint": error.hint, "printed": self.printed}
        return {"step": self.step, "kind": self.kind.value, "sample": self.sample, **values}
