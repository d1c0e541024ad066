"""Where the jobs of a batch are performed: what a batch asks of processes here, and of a cluster alike."""

from __future__ import annotations

import abc
import queue
import signal
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from onnx_bridge.batch.job_process import described
from onnx_bridge.batch.journal import Journal
from onnx_bridge.batch.stages import STAGES
from onnx_bridge.migraphx.machine import Machine

Event = dict[str, Any]
Land = Callable[[Any, Event], None]


class Engine(abc.ABC):
    """Takes jobs, and tells what happens to them.

    What is told of a job ends with ``finished`` or ``failed``. All is called, and all is told, in one thread.

    Attributes:
        far: whether jobs are performed on other machines, which see of this one only what they share with it.
    """

    far: bool

    def __init__(self) -> None:
        self._events: queue.SimpleQueue[tuple[Any, Event]] = queue.SimpleQueue()

    @abc.abstractmethod
    def machine(self, target: str) -> tuple[Machine, str]:
        """The machines that jobs for a target (``auto``, ``gpu``, ``ref``) are performed on, and which target it is.

        Raises:
            RuntimeNotFound: there is no MIGraphX on any, or none for the target.
        """

    @abc.abstractmethod
    def open(self, journal: Journal, land: Land) -> None:
        """Get ready.

        Args:
            journal: of the batch.
            land: called with each job and event before that is told, in some thread, where it may take its time; an
                exception from it is the job's failure.
        """

    @abc.abstractmethod
    def choose(self, sizes: Sequence[int]) -> int | None:
        """Which job should be submitted now; None where none should.

        Args:
            sizes: bytes of memory that jobs are foreseen to take, in ascending order.
        """

    @abc.abstractmethod
    def submit(self, job: Any, task: Mapping[str, Any], size: int) -> None:
        """Take a job.

        Args:
            job: the batch's own, to be told of.
            task: what `onnx_bridge.batch.job_process.perform` is to do.
            size: bytes of memory that it is foreseen to take.
        """

    @abc.abstractmethod
    def close(self) -> None:
        """Stop whatever is still going on."""

    @property
    def notes(self) -> list[str]:
        """What the user should know, in sentences."""
        return []

    def post(self, job: Any, event: Event) -> None:
        """Have something told, from whatever thread."""
        self._events.put((job, event))

    def wait(self) -> tuple[Any, Event]:
        """The next event, with its job."""
        return self._events.get()


class Attempt:
    """One attempt at a job: what comes of it is handed on in order.

    Attributes:
        job: the batch's.
        stage: where it is.
    """

    def __init__(self, job: Any, land: Land) -> None:
        self.job = job
        self.stage = STAGES[0]
        self._land = land
        self._error: dict[str, Any] | None = None

    def told(self, event: Event) -> Event | None:
        """What to tell of an event; None where there is nothing to tell."""
        if event["event"] == "stage":
            self.stage = event["stage"]
        if self._error is None:
            try:
                self._land(self.job, event)
                return event
            except Exception as error:  # whatever it is, it is this job's
                self._error = described(error, "save")
        if event["event"] in ("finished", "failed"):
            return {"event": "failed", "error": self._error}
        return None


def ended(status: int, stage: str) -> Event:
    """The failure of a job whose process ended in the middle."""
    how = f"was killed by {signal.Signals(-status).name}" if status < 0 else f"exited with status {status}"
    killed = status == -signal.SIGKILL
    hint = "the system does that when memory is short: --jobs 1 leaves more to each" if killed else None
    return failure("Killed" if killed else "Crashed", f"the process that converted it {how}", stage, hint)


def failure(kind: str, what: str, stage: str, hint: str | None = None, where: str | None = None) -> Event:
    """A failure that says nothing of the model: another attempt may well go otherwise."""
    error = {"kind": kind, "what": what, "where": where, "hint": hint, "stage": stage, "exit_code": 3, "chance": True}
    return {"event": "failed", "error": error}
