"""An engine without processes."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

from onnx_bridge.batch.engines.base import Attempt, Engine, Publish
from onnx_bridge.batch.engines.job_process import perform
from onnx_bridge.batch.engines.local import Pool
from onnx_bridge.batch.events import LAST, Event, Task
from onnx_bridge.batch.journal import Journal
from onnx_bridge.migraphx.machine import Machine


class Inline(Engine):
    """Runs one job at a time in this process, which owns ``memory://``."""

    remote = False

    def __init__(self) -> None:
        super().__init__()
        self._busy = False

    def machine(self, target: str) -> tuple[Machine, str]:
        return Pool().machine(target)

    def open(self, journal: Journal, publish: Publish) -> None:
        self._publish = publish

    def choose(self, sizes: Sequence[int]) -> int | None:
        return len(sizes) - 1 if sizes and not self._busy else None

    def submit(self, job: Any, task: Task, size: int) -> None:
        self._busy = True
        attempt = Attempt(job, self._publish)

        def emit(event: Event) -> None:
            if (handled := attempt.handle(event)) is not None:
                self.post(job, handled)

        threading.Thread(target=perform, args=(task, emit), daemon=True).start()

    def wait(self) -> tuple[Any, Event]:
        job, event = super().wait()
        self._busy = self._busy and not isinstance(event, LAST)
        return job, event

    def close(self) -> None:
        """Nothing outlives it."""
