"""A failure of MIGraphX as something that was found: in which step it was, of what kind, and in whose words."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from onnx_bridge.core.errors import RuntimeFailure
from onnx_bridge.parity.trial import Kind

STEPS = ("parse", "quantize", "compile", "save", "load", "run")
"""What MIGraphX does with a model, in order. A failure before says nothing of the model."""
_SAYS = {
    Kind.REJECTED: "fails",
    Kind.CRASHES: "crashes",
    Kind.HANGS: "does not come to an end",
    Kind.MEMORY: "runs out of memory",
}
_LINES = 20
"""Of what MIGraphX printed, the last so many are kept."""


@dataclass(frozen=True)
class Failure:
    """Why there is no answer.

    Attributes:
        step: one of `STEPS`.
        error: as it was raised.
        sample: the number of the sample that was run; None where it shows before any is.
    """

    step: str
    error: RuntimeFailure
    sample: int | None = None

    @property
    def kind(self) -> Kind:
        """In a word."""
        return Kind.of(self.error)

    @property
    def summary(self) -> str:
        """What happened, without the words of MIGraphX."""
        return f"{_SAYS[self.kind]} in the step {self.step}"

    @property
    def printed(self) -> str:
        """The last of what MIGraphX printed."""
        return "\n".join(self.error.output.strip().splitlines()[-_LINES:])

    def __str__(self) -> str:
        of = "" if self.sample is None else f", sample {self.sample}"
        return f"{self.step}{of}: {self.error.what}" + (f" ({self.error.where})" if self.error.where else "")

    def to_json(self) -> dict[str, Any]:
        """As JSON values."""
        error = self.error
        told = {"what": error.what, "where": error.where, "hint": error.hint, "printed": self.printed}
        return {"step": self.step, "kind": self.kind.value, "sample": self.sample, **told}
