"""What a batch expects of the engine that runs its jobs."""

from __future__ import annotations

import abc
import queue
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from onnx_bridge.batch.failure import Failure
from onnx_bridge.batch.journal import Journal
from onnx_bridge.core.progress import Stage
from onnx_bridge.migraphx.machine import Machine

Event = dict[str, Any]
OnEvent = Callable[[Any, Event], None]

LAST_EVENTS = ("finished", "failed")


class Engine(abc.ABC):
    """Runs jobs, and reports their events (`onnx_bridge.batch.engines.job_process`) through a queue.

    The last event of each job is one of `LAST_EVENTS`. All methods but `post` are called in one thread.

    Attributes:
        remote: whether jobs run on other machines, which see of this one only what they share with it.
    """

    remote: bool

    def __init__(self) -> None:
        self._events: queue.SimpleQueue[tuple[Any, Event]] = queue.SimpleQueue()

    @abc.abstractmethod
    def machine(self, target: str) -> tuple[Machine, str]:
        """The machine that jobs for a target (``auto``, ``gpu``, ``ref``) run on, and the resolved target.

        Raises:
            RuntimeNotFound: there is no MIGraphX, or none for the target.
        """

    @abc.abstractmethod
    def open(self, journal: Journal, on_event: OnEvent) -> None:
        """Prepare for jobs.

        Args:
            journal: of the batch.
            on_event: called with each job and event before `wait` returns it, in a thread of the engine, where it may
                take long; an exception from it is the failure of the job.
        """

    @abc.abstractmethod
    def choose(self, sizes: Sequence[int]) -> int | None:
        """The index of the job to submit now; None to wait.

        Args:
            sizes: the predicted memory of the ready jobs in bytes, ascending.
        """

    @abc.abstractmethod
    def submit(self, job: Any, task: Mapping[str, Any], size: int) -> None:
        """Start a job.

        Args:
            job: what `wait` returns with each event.
            task: for `onnx_bridge.batch.engines.job_process.perform`.
            size: the predicted memory in bytes.
        """

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
        """The next event, with its job."""
        return self._events.get()


class Attempt:
    """One attempt at a job, whose events pass through ``on_event``.

    Attributes:
        job: that of `Engine.submit`.
        stage: the current stage.
    """

    def __init__(self, job: Any, on_event: OnEvent) -> None:
        self.job = job
        self.stage: str = Stage.LOAD
        self._on_event = on_event
        self._failure: Failure | None = None

    def handle(self, event: Event) -> Event | None:
        """The event to deliver; None for none. Once ``on_event`` has raised, the only one left is ``failed``."""
        if event["event"] == "stage":
            self.stage = event["stage"]
        if self._failure is None:
            try:
                self._on_event(self.job, event)
                return event
            except Exception as error:  # whatever it is, it fails this job only
                self._failure = Failure.of(error, Stage.SAVE)
        return failed(self._failure) if event["event"] in LAST_EVENTS else None


def failed(failure: Failure) -> Event:
    """The event of a failure."""
    return {"event": "failed", "error": failure.to_json()}
