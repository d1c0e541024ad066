"""An engine without processes."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import Any

from onnx_bridge.batch.engines.base import LAST_EVENTS, Attempt, Engine, OnEvent
from onnx_bridge.batch.engines.job_process import perform
from onnx_bridge.batch.engines.local import Pool
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

    def open(self, journal: Journal, on_event: OnEvent) -> None:
        self._on_event = on_event

    def choose(self, sizes: Sequence[int]) -> int | None:
        return len(sizes) - 1 if sizes and not self._busy else None

    def submit(self, job: Any, task: Mapping[str, Any], size: int) -> None:
        self._busy = True
        attempt = Attempt(job, self._on_event)

        def emit(event: dict[str, Any]) -> None:
            if (handled := attempt.handle(event)) is not None:
                self.post(job, handled)

        threading.Thread(target=perform, args=(task, emit), daemon=True).start()

    def wait(self) -> tuple[Any, dict[str, Any]]:
        job, event = super().wait()
        self._busy = self._busy and event["event"] not in LAST_EVENTS
        return job, event

    def close(self) -> None:
        """Nothing outlives it."""
