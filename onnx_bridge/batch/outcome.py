"""The results of a batch, and who is told of them as they come."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Literal

from onnx_bridge.batch.failure import Failure
from onnx_bridge.bundle.manifest.proof import BundleProof
from onnx_bridge.core.errors import NOT_DETERMINED
from onnx_bridge.core.files.locations import Location
from onnx_bridge.core.progress import Stage
from onnx_bridge.core.schema import JsonRecord

Status = Literal["converted", "reused", "kept", "checked", "failed", "skipped", "planned"]
"""``reused``: copied from a bundle of the same content. ``kept``: the bundle of an earlier run. ``checked``: likewise,
but compared in this run. ``skipped``: it failed in an earlier run, and was not tried again. ``planned``: to be done, in
a dry run."""


@dataclass(frozen=True)
class Result(JsonRecord):
    """The result of one job.

    Attributes:
        name: the name of the bundle, under OUT.
        status: see `Status`.
        seconds: the duration in this run.
        check: the summary of the comparison with the reference.
        proof: how far the numbers of the bundle are known; None without one.
        chosen: the sizes that nobody chose, by dimension.
    """

    name: str
    source: Location
    status: Status
    seconds: float = 0.0
    error: Failure | None = None
    log: Location | None = None
    notes: tuple[str, ...] = ()
    check: str | None = None
    proof: BundleProof | None = None
    chosen: dict[str, int] = field(default_factory=dict)

    @property
    def failed(self) -> bool:
        """True if there is no bundle, or it differs from the reference."""
        return self.error is not None

    @property
    def reason(self) -> str:
        """The error in one line; empty if it did not fail."""
        if self.error is None:
            return ""
        where, what, hint = self.error.where, self.error.what, self.error.hint
        text = what if where in {str(self.source), self.source.name, None, ""} else f"{where}: {what}"
        return f"{text} ({hint})" if hint else text


@dataclass(frozen=True)
class Outcome(JsonRecord):
    """The result of a batch.

    Attributes:
        out: the folder of the bundles.
        jobs: the result of each, in the order of the sources.
        seconds: the duration.
        notes: sentences for the user.
    """

    out: Location
    jobs: tuple[Result, ...]
    seconds: float
    notes: tuple[str, ...] = ()

    in_json = ("passed", "counts")

    @property
    def passed(self) -> bool:
        """True if no job has failed."""
        return not any(result.failed for result in self.jobs)

    @property
    def exit_code(self) -> int:
        """The exit code of the command line: 1 if a job has failed, 4 if a bundle is not proven, else 0."""
        unproven = any(result.proof is not None and not result.proof.comparable for result in self.jobs)
        return 1 if not self.passed else NOT_DETERMINED if unproven else 0

    @property
    def counts(self) -> Counter[Status]:
        """The number of jobs by status."""
        return Counter(result.status for result in self.jobs)


class Observer:
    """Receives the progress of a batch; this one ignores it."""

    def begin(self, total: int) -> None:
        """Begin a batch of this many jobs."""

    def stage(self, name: str, stage: Stage, detail: str) -> None:
        """Report that a job is at a stage."""

    def ended(self, result: Result) -> None:
        """Report that a job has ended."""
