"""A symptom: what is wrong with a model on MIGraphX, and how to tell whether a smaller model shows the same."""

from __future__ import annotations

import enum
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from onnx_bridge.core.errors import MigraphxError, OutOfMemory, RuntimeFailure, Step, WorkerCrashed, WorkerTimeout
from onnx_bridge.reference.comparison.compare import Comparison
from onnx_bridge.samples.inputs import Sample
from passes.core.errors import BridgeError
from passes.isolation.failure import NativeFailure
from passes.isolation.process import Reason


class SymptomKind(enum.Enum):
    """A kind of defect of a model on a runtime."""

    WRONG = "wrong"
    """Numbers, shapes, dtypes or the number of outputs differ."""
    REJECTED = "rejected"
    CRASHES = "crashes"
    TIMEOUT = "timeout"
    MEMORY = "memory"
    """It exceeded the memory limit."""

    @classmethod
    def of(cls, error: BridgeError) -> SymptomKind:
        """Return the kind of a failure; a failure of no known type is a rejection."""
        if isinstance(error, NativeFailure):
            return {Reason.TIMEOUT: cls.TIMEOUT, Reason.MEMORY: cls.MEMORY}.get(error.reason, cls.CRASHES)
        return next((kind for error_type, kind in KIND_OF.items() if isinstance(error, error_type)), cls.REJECTED)

    @property
    def phrase(self) -> str:
        """A clause on what MIGraphX does, with ``{}`` for the node or the model."""
        return _PHRASES[self]

    @property
    def is_limit(self) -> bool:
        """Return whether a limit was exceeded, so that each further attempt may take as long, or as much memory."""
        return self in (SymptomKind.TIMEOUT, SymptomKind.MEMORY)


_PHRASES = {
    SymptomKind.WRONG: "computes {} wrongly",
    SymptomKind.REJECTED: "rejects {}",
    SymptomKind.CRASHES: "crashes on {}",
    SymptomKind.TIMEOUT: "times out on {}",
    SymptomKind.MEMORY: "runs out of memory on {}",
}
KIND_OF: Mapping[type[RuntimeFailure], SymptomKind] = {
    MigraphxError: SymptomKind.REJECTED,
    WorkerCrashed: SymptomKind.CRASHES,
    WorkerTimeout: SymptomKind.TIMEOUT,
    OutOfMemory: SymptomKind.MEMORY,
}
FAILURES: tuple[type[BridgeError], ...] = (*KIND_OF, NativeFailure)
"""The failures that are symptoms."""


@dataclass(frozen=True)
class Symptom:
    """A defect of a model or a submodel on a runtime.

    Attributes:
        step: the step of MIGraphX in which it shows; None on ONNX Runtime.
        message: MIGraphX's or ONNX Runtime's message, or how outputs differ.
        sample: the number of the first sample that shows it; None if it shows before any is run.
        comparison: the comparison of that sample's outputs, if they are wrong.
    """

    kind: SymptomKind
    step: Step | None
    message: str
    sample: int | None = None
    comparison: Comparison | None = field(default=None, repr=False)
    outputs: Sample | None = field(default=None, repr=False)

    @classmethod
    def of_failure(cls, error: BridgeError, step: Step, sample: int | None = None) -> Symptom:
        """Return the symptom of a step that failed."""
        return cls(SymptomKind.of(error), step, error.what, sample)

    @classmethod
    def of_comparison(
        cls, comparison: Comparison, sample: int, *, step: Step | None = None, outputs: Sample | None = None
    ) -> Symptom:
        """Return the symptom of outputs that differ."""
        message = "; ".join(f"{output.name}: {output.reason}" for output in comparison.outputs if output.reason)
        return cls(SymptomKind.WRONG, step, message, sample, comparison, outputs)

    def matches(self, other: Symptom) -> bool:
        """Return whether both are the same fault: in another submodel, numbers and names in a message differ."""
        if (self.kind, self.step) != (other.kind, other.step):
            return False
        if self.kind is SymptomKind.WRONG:
            return self._has_wrong_elements == other._has_wrong_elements
        return self.kind is not SymptomKind.REJECTED or _normalized(self.message) == _normalized(other.message)

    @property
    def _has_wrong_elements(self) -> bool:
        """Return whether elements are wrong, rather than shapes, dtypes or the number of outputs."""
        outputs = self.comparison.outputs if self.comparison else ()
        return any(output.mismatched for output in outputs)

    @property
    def error(self) -> float | None:
        """The largest absolute error of the outputs that differ."""
        outputs = self.comparison.outputs if self.comparison else ()
        errors = (output.max_abs for output in outputs if not output.passed)
        return max((error for error in errors if error is not None), default=None)


def worse(symptom: Symptom | None, other: Symptom) -> Symptom:
    """Return the symptom with the larger error; the first of equal ones."""
    return other if symptom is None or (other.error or 0) > (symptom.error or 0) else symptom


def _normalized(message: str) -> str:
    """Return the first line of a message with a # for each number and for each text in quotes or brackets.

    An address is one number: which of its digits are letters differs from run to run.
    """
    return re.sub(r"0x[0-9a-f]+|\d+|\[[^\]]*\]|\{[^}]*\}|'[^']*'|\"[^\"]*\"", "#", message.partition("\n")[0])
