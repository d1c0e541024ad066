"""The processes of this machine that perform jobs, seen from the program that gives them out.

What they tell comes out of one queue, in the order in which it came in; the end of a process is told like everything
else. None outlives the program: the kernel ends them when the lifeline, which the program alone holds, is closed.
"""

from __future__ import annotations

import bisect
import contextlib
import functools
import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from onnx_bridge.batch.engine import Attempt, Engine, Event, Land, ended
from onnx_bridge.batch.journal import Journal
from onnx_bridge.core.memory import available_bytes
from onnx_bridge.migraphx import runtime as runtimes
from onnx_bridge.migraphx.machine import Machine
from onnx_bridge.migraphx.targets import resolve_target

_ROOT = Path(__file__).resolve().parents[2]
_BOOT = (
    "import sys; sys.path.insert(0, {root!r}); from onnx_bridge.core import deferred; deferred.defer_sympy(); "
    "from onnx_bridge.batch import job_process; job_process.main{ends!r}"
)
_SHARE = 0.9
"""Of the free memory, how much may be taken."""


class Performer:
    """One process.

    Args:
        told: takes its events, each with the performer, in a thread; ``ended`` is the last.
        lock: a descriptor that it is to hold as long as it lives, if any.
        temporary: the folder for its temporary files.
        output: a file for what it prints while it has no job.

    Attributes:
        task: what it is at; None while it has nothing to do.
    """

    def __init__(
        self, told: Callable[[Performer, Event], None], lock: int | None, temporary: Path, output: Path
    ) -> None:
        self._told = told
        self.task: Any = None
        ours, theirs = socket.socketpair()
        lifeline, self._lifeline = os.pipe2(os.O_CLOEXEC)
        code = _BOOT.format(root=str(_ROOT), ends=(theirs.fileno(), lifeline))
        try:
            with output.open("ab") as file:
                self._process = subprocess.Popen(
                    [sys.executable, "-P", "-c", code],
                    stdin=subprocess.DEVNULL,
                    stdout=file,
                    stderr=file,
                    pass_fds=(theirs.fileno(), lifeline, *([] if lock is None else [lock])),
                    env={**os.environ, "TMPDIR": str(temporary)},
                    start_new_session=True,  # the terminal's Ctrl-C is for the program to handle
                )
        finally:
            theirs.close()
            os.close(lifeline)
        self._events, self._tasks = ours.makefile("r", encoding="utf-8"), ours.makefile("w", encoding="utf-8")
        ours.close()  # the streams hold it
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    @property
    def pid(self) -> int:
        """The process's id."""
        return self._process.pid

    def give(self, task: Any, message: Mapping[str, Any]) -> None:
        """Give it something to do; if it has ended meanwhile, that is told."""
        self.task = task
        with contextlib.suppress(OSError):
            self._tasks.write(json.dumps(message) + "\n")
            self._tasks.flush()

    def close(self) -> None:
        """End it, whatever it is doing."""
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()
        self._reader.join()
        for stream in (self._events, self._tasks):
            with contextlib.suppress(OSError):
                stream.close()
        os.close(self._lifeline)

    def _read(self) -> None:
        with contextlib.suppress(OSError, ValueError):
            for line in self._events:
                self._told(self, json.loads(line))
        if self._process.poll() is None:
            self._process.kill()  # it has closed its end, and is of no more use
        self._told(self, {"event": "ended", "status": self._process.wait()})


class Pool(Engine):
    """Processes on this machine.

    Args:
        jobs: how many jobs at a time, if their memory allows it; default: one for each core.
    """

    far = False

    def __init__(self, jobs: int | None = None) -> None:
        super().__init__()
        self._most = jobs or len(os.sched_getaffinity(0))
        self._memory = available_bytes() * _SHARE
        self._performers: list[Performer] = []
        self._sizes: dict[Performer, int] = {}

    def machine(self, target: str) -> tuple[Machine, str]:
        """This machine."""
        runtime = runtimes.find()
        return Machine.here(runtime), resolve_target(target, runtime)

    def open(self, journal: Journal, land: Land) -> None:
        """Get ready; processes are started as they are needed."""
        self._land = land
        output, temporary = journal.folder / "processes.log", (journal.folder / "tmp").absolute()
        self._new = functools.partial(Performer, self._tell, journal.lock, temporary, output)

    def choose(self, sizes: Sequence[int]) -> int | None:
        """The largest that fits beside those under way; what is too large for the memory is tried alone."""
        if not sizes or len(self._sizes) >= self._most:
            return None
        fitting = bisect.bisect(sizes, self._memory - sum(self._sizes.values()))
        if not fitting and self._sizes:
            return None
        return (fitting or len(sizes)) - 1

    def submit(self, job: Any, task: Mapping[str, Any], size: int) -> None:
        """Give it to a process."""
        idle = [each for each in self._performers if each.task is None]
        if not idle:
            idle = [self._new()]
            self._performers += idle
        self._sizes[idle[0]] = size
        idle[0].give(Attempt(job, self._land), task)

    def wait(self) -> tuple[Any, Event]:
        """The next event, with its job."""
        while True:
            who, event = super().wait()
            if not isinstance(who, Performer):
                return who, event
            attempt: Attempt | None = who.task
            if event["event"] in ("finished", "failed", "ended"):
                who.task = None
                self._sizes.pop(who, None)
            if event["event"] == "ended":
                self._performers.remove(who)
                who.close()
                event = ended(event["status"], attempt.stage if attempt else "")
            if attempt is not None:
                return attempt.job, event

    def close(self) -> None:
        """End all processes, whatever they are doing."""
        for performer in self._performers:
            performer.close()
        self._performers, self._sizes = [], {}

    def _tell(self, performer: Performer, event: Event) -> None:
        """In the performer's thread."""
        if event["event"] != "ended" and performer.task is not None:
            event = performer.task.told(event)
        if event is not None:
            self._events.put((performer, event))
