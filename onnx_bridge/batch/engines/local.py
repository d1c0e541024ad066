"""The engine of one machine: a pool of job processes."""

from __future__ import annotations

import bisect
import contextlib
import functools
import os
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from onnx_bridge.batch.engines.base import Attempt, Engine, Publish
from onnx_bridge.batch.events import LAST, Event, Exited, StageBegun, Task, read_event
from onnx_bridge.batch.failure import Failure
from onnx_bridge.batch.journal import Journal
from onnx_bridge.core.progress import Stage
from onnx_bridge.migraphx import runtime as runtimes
from onnx_bridge.migraphx.machine import Machine
from onnx_bridge.migraphx.targets import resolve_target
from passes.isolation import messages
from passes.isolation.limits import available_bytes
from passes.isolation.process import Child

_MEMORY_SHARE = 0.9
"""The part of the free memory that jobs may take."""


class JobProcess:
    """One process that performs tasks.

    Args:
        deliver: receives each event with this object, in a thread; the last one is `Exited`.
        lock: a descriptor that the process holds as long as it lives.
        temporary: the folder for its temporary files.
        output: a file for what it prints between tasks.
    """

    def __init__(
        self, deliver: Callable[[JobProcess, Event], None], lock: int | None, temporary: Path, output: Path
    ) -> None:
        self._deliver = deliver
        self.attempt: Attempt | None = None
        self._stage = Stage.LOAD
        self._killing = threading.Lock()
        with output.open("ab") as file:
            self._child = Child(
                "onnx_bridge.batch.engines.job_process",
                environment={**os.environ, "TMPDIR": str(temporary)},
                output=file.fileno(),
                inherited=() if lock is None else (lock,),
            )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    @property
    def pid(self) -> int:
        return self._child.pid

    def perform(self, attempt: Attempt | None, task: Task) -> None:
        """Send a task; a process that has exited meanwhile is reported by its last event."""
        self.attempt, self._stage = attempt, Stage.LOAD
        with contextlib.suppress(OSError):
            messages.send(self._child.connection, msgspec.to_builtins(task), {})

    def close(self) -> None:
        self._kill()
        self._reader.join()

    def _kill(self) -> None:
        with self._killing:  # both threads would close its descriptors
            self._child.kill()

    def _read(self) -> None:
        with contextlib.suppress(OSError, EOFError, ValueError):
            while True:
                message, _ = messages.receive(self._child.connection)
                event = read_event(message)
                if isinstance(event, StageBegun):
                    self._stage = event.stage
                self._deliver(self, event)
        self._kill()  # or wait, if it has exited
        assert self._child.returncode is not None
        self._deliver(self, Exited(Failure.of_exit(self._child.returncode, self._stage)))


class Pool(Engine):
    """Job processes on this machine.

    Args:
        jobs: how many run at a time at most, as memory allows; default: one for each core.
        runtime: the MIGraphX of the jobs, as `onnx_bridge.convert` takes it.
    """

    remote = False

    def __init__(self, jobs: int | None = None, runtime: str | None = None) -> None:
        super().__init__()
        self._runtime = runtime
        self._limit = jobs or len(os.sched_getaffinity(0))
        self._memory = available_bytes() * _MEMORY_SHARE
        self._processes: list[JobProcess] = []
        self._sizes: dict[JobProcess, int] = {}

    def machine(self, target: str) -> tuple[Machine, str]:
        runtime = runtimes.find(self._runtime)
        return Machine.here(runtime), resolve_target(target, runtime)

    def open(self, journal: Journal, publish: Publish) -> None:
        self._publish = publish
        output, temporary = journal.folder / "processes.log", (journal.folder / "tmp").absolute()
        self._start = functools.partial(JobProcess, self._deliver, journal.lock, temporary, output)

    def choose(self, sizes: Sequence[int]) -> int | None:
        """Return the largest job that fits beside those that run; one that is too large for the memory runs alone."""
        if not sizes or len(self._sizes) >= self._limit:
            return None
        fitting = bisect.bisect(sizes, self._memory - sum(self._sizes.values()))
        if not fitting and self._sizes:
            return None
        return (fitting or len(sizes)) - 1

    def submit(self, job: Any, task: Task, size: int) -> None:
        """Send the job to an idle process, which is started on demand."""
        process = next((process for process in self._processes if process.attempt is None), None)
        if process is None:
            process = self._start()
            self._processes.append(process)
        self._sizes[process] = size
        process.perform(Attempt(job, self._publish), task)

    def wait(self) -> tuple[Any, Event]:
        while True:
            sender, event = super().wait()
            if not isinstance(sender, JobProcess):
                return sender, event
            attempt = sender.attempt
            if isinstance(event, LAST):
                sender.attempt = None
                self._sizes.pop(sender, None)
            if isinstance(event, Exited):
                self._processes.remove(sender)
                sender.close()
            if attempt is not None:
                return attempt.job, event

    def close(self) -> None:
        for process in self._processes:
            process.close()
        self._processes, self._sizes = [], {}

    def _deliver(self, sender: JobProcess, event: Event) -> None:
        """Queue an event; called in the reader thread of the process."""
        delivered: Event | None = event
        if not isinstance(event, Exited) and sender.attempt is not None:
            delivered = sender.attempt.handle(event)
        if delivered is not None:
            self._events.put((sender, delivered))
