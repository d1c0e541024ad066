"""Tasks in forks of the worker process: a task that corrupts its memory does not affect the next fork.

A fork takes about 5 ms, a new worker process 300 ms. A failure of a task that is alone in its fork is its own; many
tasks in one fork are a hundred times as fast, but those without an answer have to be run again. Several forks run at a
time, so that they keep several cores busy.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import gc
import os
import select
import signal
import socket
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from onnx_bridge.migraphx.process.protocol import TensorMessage, pack, unpack
from passes.isolation import messages

Task = Callable[[], TensorMessage]
_PR_SET_PDEATHSIG = 1
_PRINTED = 64 << 10
"""The most bytes of what a fork has printed that are told."""
_PAUSE = 0.02
"""The pause before a late task that wants a processor is looked at again, as a share of its time limit."""


def run_in_forks(groups: Sequence[Sequence[Task]], timeout: float, at_a_time: int) -> list[list[TensorMessage]]:
    """Run groups of tasks, each in a fork of this process, which must have no thread that holds a lock.

    Args:
        groups: what a fork does one after the other; no task may raise. What they print goes to a memory file.
        timeout: seconds for each task, without those in which it waits for a processor.
        at_a_time: how many forks run beside each other.

    Returns:
        For each group what its tasks returned, in order. If the fork ended before all were done, the last answer is
        that of the task that it was running: ``{"died": returncode, "printed": text}``, the code as
        `subprocess.Popen.returncode`, or ``{"timeout": seconds, "idle": whether it computed for less than these}``.
    """
    gc.freeze()  # or the first collection in a fork would copy every page
    waiting = [_Fork(tasks, timeout) for tasks in groups]
    forks = list(waiting)
    running: list[_Fork] = []
    try:
        while waiting or running:
            while waiting and len(running) < at_a_time:
                waiting[0].start()
                running.append(waiting.pop(0))
            pause = min(fork.deadline for fork in running) - time.monotonic()
            ready, _, _ = select.select(running, [], [], max(0.0, pause))
            for fork in ready or [fork for fork in running if fork.deadline <= time.monotonic()]:
                fork.take(ready=bool(ready))
            running = [fork for fork in running if not fork.ended]
    finally:
        for fork in running:
            fork.end()
    return [fork.answers for fork in forks]


class _Fork:
    """A fork that runs tasks; its ``fileno`` is readable when there is an answer, or it has died."""

    def __init__(self, tasks: Sequence[Task], timeout: float) -> None:
        self.answers: list[TensorMessage] = []
        self.deadline = 0.0
        self.ended = False
        self._tasks, self._timeout = tasks, timeout

    def start(self) -> None:
        self._connection, remote = messages.connect()
        self._output = os.memfd_create("fork", os.MFD_CLOEXEC)
        fcntl.fcntl(self._output, fcntl.F_SETFL, os.O_APPEND)
        parent = os.getpid()
        self._child = os.fork()
        if self._child == 0:
            _run(self._tasks, remote, self._output, parent)
        remote.close()
        self._begin()

    def _begin(self) -> None:
        """Note the time of the fork when its next task begins."""
        self._begun, self._before = time.monotonic(), _Times.of(self._child)
        self.deadline = self._begun + self._timeout

    def fileno(self) -> int:
        return self._connection.fileno()

    def take(self, *, ready: bool) -> None:
        """Take the next answer, if it is ready, or that there is none."""
        if not ready:
            if not self._may_continue():
                idle = _Times.of(self._child).computed - self._before.computed < self._timeout
                self.answers.append(({"timeout": self._timeout, "idle": idle}, {}))
                self.end()
            return
        try:
            self.answers.append(unpack(*messages.receive(self._connection)))
        except (EOFError, ConnectionError):
            _, status = os.waitpid(self._child, 0)
            self._child = 0
            self.answers.append(({"died": os.waitstatus_to_exitcode(status), "printed": self._printed()}, {}))
            self.end()
            return
        self._begin()
        if len(self.answers) == len(self._tasks):
            self.end()

    def _may_continue(self) -> bool:
        """Return whether a late task has waited for a processor, or still does; if so, give it more time."""
        now, times = time.monotonic(), _Times.of(self._child)
        left = self._timeout - (now - self._begun - (times.waited - self._before.waited))
        if left <= 0 and not (times.wants_processor and times.computed - self._before.computed < self._timeout):
            return False
        self.deadline = now + max(left, _PAUSE * self._timeout)
        return True

    def end(self) -> None:
        self.ended = True
        if self._child:
            os.kill(self._child, signal.SIGKILL)
            os.waitpid(self._child, 0)
        self._connection.close()
        os.close(self._output)

    def _printed(self) -> str:
        size = os.fstat(self._output).st_size
        return os.pread(self._output, _PRINTED, max(0, size - _PRINTED)).decode(errors="replace")


@dataclass(frozen=True)
class _Times:
    """The seconds that a process has computed, and that its threads have waited for processors at the most.

    A wait is counted when it ends; a thread that waits, or computes, wants a processor.
    """

    computed: float = 0.0
    waited: float = 0.0
    wants_processor: bool = False

    @classmethod
    def of(cls, process: int) -> _Times:
        """Return the times of a process; none if it is gone."""
        computed, waited, wants_processor = 0.0, 0.0, False
        for thread in Path(f"/proc/{process}/task").glob("*"):
            with contextlib.suppress(OSError):  # it has ended, or the system does not count waits
                wants_processor |= (thread / "stat").read_bytes().rpartition(b")")[2].split()[0] == b"R"
                ran, waited_for = (int(count) / 1e9 for count in (thread / "schedstat").read_bytes().split()[:2])
                computed, waited = computed + ran, max(waited, waited_for)
        return cls(computed, waited, wants_processor)


def _run(tasks: Sequence[Task], connection: socket.socket, output: int, parent: int) -> None:
    """Do all of a fork's work; it ends with its parent, also in the middle of a call."""
    try:
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() == parent:
            os.dup2(output, 1)
            os.dup2(output, 2)
            for task in tasks:
                messages.send(connection, *pack(*task()))
    finally:
        os._exit(1)
