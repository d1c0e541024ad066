"""The interface of the engines that run the jobs of a batch."""

from __future__ import annotations

import abc
import queue
from collections.abc import Callable, Sequence
from typing import Any

from onnx_bridge.batch.events import LAST, Converted, Event, Failed, StageBegun, Task
from onnx_bridge.batch.failure import Failure
from onnx_bridge.batch.journal import Journal
from onnx_bridge.core.progress import Stage
from onnx_bridge.migraphx.machine import Machine

Publish = Callable[[Any], None]
"""Publishes the staged bundle of a job."""


class Engine(abc.ABC):
    """Runs jobs, and reports their events through a queue; all methods except `post` are called in one thread.

    ``remote`` says whether jobs run on other machines, which see only the files of this one that are shared with them.
    """

    remote: bool

    def __init__(self) -> None:
        self._events: queue.SimpleQueue[tuple[Any, Event]] = queue.SimpleQueue()

    @abc.abstractmethod
    def machine(self, target: str) -> tuple[Machine, str]:
        """Return the machine for jobs of a target, and the resolved target; raises RuntimeNotFound if there is none."""

    @abc.abstractmethod
    def open(self, journal: Journal, publish: Publish) -> None:
        """Prepare for jobs.

        Args:
            publish: called with each converted job before `wait` returns its event, in a thread of the engine; it may
                take long, and its exception is the failure of the job.
        """

    @abc.abstractmethod
    def choose(self, sizes: Sequence[int]) -> int | None:
        """Return the index of the job to submit now, given their predicted bytes, ascending; None means to wait."""

    @abc.abstractmethod
    def submit(self, job: Any, task: Task, size: int) -> None:
        """Start a job of a predicted ``size`` in bytes; `wait` returns the job with each event."""

    @abc.abstractmethod
    def close(self) -> None:
        """Stop all jobs."""

    @property
    def notes(self) -> list[str]:
        return []

    def post(self, job: Any, event: Event) -> None:
        """Add an event to the queue, from any thread."""
        self._events.put((job, event))

    def wait(self) -> tuple[Any, Event]:
        """Wait for the next event, and return it with its job."""
        return self._events.get()


class Attempt:
    """One attempt at a job, whose bundle is published before its event is delivered."""

    def __init__(self, job: Any, publish: Publish) -> None:
        self.job = job
        self.stage: str = Stage.LOAD
        self._publish = publish
        self._failure: Failure | None = None

    def handle(self, event: Event) -> Event | None:
        """Return the event to deliver, if any; if the bundle cannot be published, only the last event is left."""
        if isinstance(event, StageBegun):
            self.stage = event.stage
        elif isinstance(event, Converted):
            try:
                self._publish(self.job)
            except Exception as error:  # whatever it is, it fails this job only
                self._failure = Failure.of(error, Stage.SAVE)
        if self._failure is None:
            return event
        return Failed(self._failure) if isinstance(event, LAST) else None
