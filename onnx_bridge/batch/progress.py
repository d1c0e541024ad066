"""Who is told of the progress of a batch."""

from __future__ import annotations

from onnx_bridge.batch.outcome import Result
from onnx_bridge.core.progress import Stage


class Observer:
    """Receives the progress of a batch; this one ignores it."""

    def begin(self, total: int) -> None:
        """Begin a batch of this many jobs."""

    def stage(self, name: str, stage: Stage, detail: str) -> None:
        """Report that a job is at a stage."""

    def ended(self, result: Result) -> None:
        """Report that a job has ended."""
