"""The result of a check: legs × samples × outputs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from onnx_bridge.core.errors import NOT_DETERMINED, RuntimeFailure, RuntimeNotFound, Step
from onnx_bridge.core.schema import JsonRecord
from onnx_bridge.core.values import Value
from onnx_bridge.parity.bisect.bisection import Bisection
from onnx_bridge.parity.checking.evidence import Evidence
from onnx_bridge.parity.failure import Failure
from onnx_bridge.parity.layers.report import LayerReport
from onnx_bridge.reference.comparison.compare import Comparison, OutputComparison
from onnx_bridge.reference.comparison.dependence import SAYS_NOTHING
from passes.core.text import counted

REFERENCE = "ONNX Runtime"
"""The name of the reference in evidence."""


@dataclass(frozen=True)
class Leg(JsonRecord):
    """One thing that was compared with the reference.

    Attributes:
        name: "cleaned on ONNX Runtime", "MIGraphX ref", …
        comparisons: one for each sample that was run.
        failure: why not all samples could be run.
    """

    in_json = ("passed", "largest_error", "error")

    name: str
    comparisons: tuple[Comparison, ...] = ()
    failure: Failure | None = None

    @classmethod
    def of_bundle(cls, name: str, comparisons: Iterable[Comparison]) -> Leg:
        """Return the leg of lazy comparisons, up to a failure of MIGraphX; raises RuntimeNotFound without MIGraphX."""
        made: list[Comparison] = []
        try:
            for comparison in comparisons:
                made.append(comparison)  # what was compared before a failure is kept
        except RuntimeNotFound:
            raise
        except RuntimeFailure as error:
            return cls(name, tuple(made), Failure(Step.RUN, error, len(made)))
        return cls(name, tuple(made))

    @property
    def passed(self) -> bool:
        """Return whether it ran and every output of every sample agrees; False without a sample."""
        return self.failure is None and self.compared and all(comparison.passed for comparison in self.comparisons)

    @property
    def compared(self) -> bool:
        """Return whether there is an output of every sample that was run; False without a sample."""
        return bool(self.comparisons) and all(comparison.outputs for comparison in self.comparisons)

    @property
    def largest_error(self) -> float | None:
        """The largest |actual − expected|; None if no numbers were compared."""
        outputs = (output for comparison in self.comparisons for output in comparison.outputs)
        return max((output.max_abs for output in outputs if output.max_abs is not None), default=None)

    @property
    def differs(self) -> bool:
        """Return whether it ran and an output is wrong, or nothing was compared."""
        differs = any(comparison.differs for comparison in self.comparisons)
        return self.failure is None and (not self.compared or differs)

    @property
    def error(self) -> str | None:
        return None if self.failure is None else str(self.failure)

    def to_json(self) -> dict[str, Any]:
        values = super().to_json()
        compared = len(self.comparisons) if self.compared else 0
        return {"samples": values.pop("comparisons"), "compared": compared} | values


@dataclass(frozen=True)
class CheckReport(JsonRecord):
    """The result of `onnx_bridge.check`.

    Attributes:
        model: the name of the model.
        legs: what was compared with the reference.
        seed: the seed of the generated samples; None if samples were given.
        versions: the versions of ONNX Runtime and MIGraphX, by name.
        notes: sentences for the user ("the reference is the cleaned model").
        samples: the inputs, in order; not part of the JSON.
        layers: the comparison of every layer, if requested. The verdict is that of the outputs.
        bisection: the nodes that MIGraphX fails on, if it fails.
        evidence: the outputs and graphs, if requested; not part of the JSON.
        unproven: the outputs that are the same numbers on all generated samples, of which nothing is proven.
    """

    in_json = ("passed", "verdict", "sample_count")

    model: str
    legs: tuple[Leg, ...]
    seed: int | None = None
    versions: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    samples: tuple[Mapping[str, Value], ...] = field(default=(), repr=False, compare=False)
    layers: LayerReport | None = None
    bisection: Bisection | None = None
    evidence: Evidence | None = field(default=None, repr=False, compare=False)
    unproven: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Return all but the samples and the evidence as JSON values; empty members are left out."""
        absent = {name for name in ("layers", "bisection", "unproven") if not getattr(self, name)}
        return {name: value for name, value in super().to_json().items() if name not in absent}

    @property
    def sample_count(self) -> int:
        return len(self.samples)

    @property
    def passed(self) -> bool:
        """Return whether every leg passed; False without any leg."""
        return bool(self.legs) and all(leg.passed for leg in self.legs)

    @property
    def exit_code(self) -> int:
        """The exit code of the command line: 0 if it passed, 1 if numbers differ, 3 if MIGraphX failed, else 4."""
        if self.not_determined:
            return NOT_DETERMINED
        failed = any(leg.failure is not None for leg in self.legs)
        return 0 if self.passed else RuntimeFailure.exit_code if failed else 1

    @property
    def not_determined(self) -> bool:
        """Return whether nothing is known to be wrong, but the reference does not determine an output."""
        ran = bool(self.legs) and all(leg.failure is None and not leg.differs for leg in self.legs)
        return ran and not self.passed

    @property
    def verdict(self) -> str:
        """``agrees``, ``differs``, ``not determined``, or ``fails`` if MIGraphX did."""
        if any(leg.failure is not None for leg in self.legs):
            return "fails"
        return "agrees" if self.passed else "not determined" if self.not_determined else "differs"

    def raise_failure(self) -> None:
        """Raise the first failure of a leg, a RuntimeFailure."""
        for leg in self.legs:
            if leg.failure is not None:
                raise leg.failure.error

    @property
    def blame(self) -> str | None:
        """The nodes that MIGraphX fails on, in a sentence."""
        fault = None if self.bisection is None else self.bisection.fault
        return None if fault is None else fault.sentence

    @property
    def largest_error(self) -> float | None:
        """The largest |actual − expected| of all outputs; None if nothing of a leg was compared."""
        if not all(leg.compared for leg in self.legs):
            return None
        return max((leg.largest_error for leg in self.legs if leg.largest_error is not None), default=None)

    @property
    def summary(self) -> str:
        """The result in one sentence."""
        outputs = [output for *_, output in self.outputs()]
        differing = sum(output.differs for output in outputs)
        largest = "" if self.largest_error is None else f"; largest error {self.largest_error:.3g}"
        if self.passed:
            same = f"{', '.join(self.unproven)}: {SAYS_NOTHING}; give inputs of its real use with --inputs"
            unproven = f"; unproven: {same}" if self.unproven else ""
            return f"{self.model}: parity holds in all {counted(len(outputs), 'comparison')}{largest}{unproven}"
        open_ones = [output for output in outputs if output.undetermined is not None]
        if self.not_determined:
            share = f"{len(open_ones)} of {counted(len(outputs), 'comparison')}"
            return f"{self.model}: parity is not determined in {share}{largest}: {open_ones[0].undetermined}"
        causes = [f"{differing} of {counted(len(outputs), 'comparison')} differ"] if differing else []
        causes += [self._failure_of(leg, leg.failure) for leg in self.legs if leg.failure is not None]
        causes += [f"{leg.name}: nothing was compared" for leg in self.legs if leg.differs and not leg.compared]
        return f"{self.model}: parity fails: {', '.join(causes) or 'nothing was compared'}{largest}"

    def _failure_of(self, leg: Leg, failure: Failure) -> str:
        """Return how a leg failed, and what was compared until then."""
        done = "of which nothing was compared"
        if leg.compared:
            error = "" if leg.largest_error is None else f" with a largest error of {leg.largest_error:.3g}"
            done = f"after {len(leg.comparisons)} of {counted(len(self.samples), 'sample')}{error}"
        return f"{leg.name} {failure.summary}, {done}"

    def outputs(self) -> Iterator[tuple[Leg, int, OutputComparison]]:
        """Yield the comparison of each output, with its leg and the number of its sample."""
        for leg in self.legs:
            for sample, comparison in enumerate(leg.comparisons):
                for output in comparison.outputs:
                    yield leg, sample, output
