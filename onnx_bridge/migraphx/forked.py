"""Tasks in forks of the worker process: a task that corrupts its memory does not affect the next fork.

A fork takes about 5 ms, a new worker process 300 ms. A failure of a task that is alone in its fork is its own; many
tasks in one fork are a hundred times as fast, but those without an answer have to be run again. Several forks run at a
time, so that they keep several cores busy.
"""

from __future__ import annotations

import ctypes
import fcntl
import gc
import os
import select
import signal
import socket
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from onnx_bridge.migraphx.protocol import TensorMessage, pack, unpack
from passes.isolation import messages

Task = Callable[[], TensorMessage]
_PR_SET_PDEATHSIG = 1
_PRINTED = 64 << 10
"""The most bytes of what a fork has printed that are told."""
_LEAST = 0.02
"""The share of the processor that a task takes at the least, if it computes."""


def run_in_forks(groups: Sequence[Sequence[Task]], timeout: float, at_a_time: int) -> list[list[TensorMessage]]:
    """Run groups of tasks, each in a fork of this process, which must have no thread that holds a lock.

    Args:
        groups: what a fork does one after the other; no task may raise. What they print goes to a memory file.
        timeout: seconds for each task; on a busy machine, of processor time.
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


_TICKS = os.sysconf("SC_CLK_TCK")


class _Fork:
    """A fork that runs tasks; its ``fileno`` is readable when there is an answer, or it has died."""

    def __init__(self, tasks: Sequence[Task], timeout: float) -> None:
        self.answers: list[TensorMessage] = []
        self.deadline = 0.0
        self._begun = 0.0  # seconds of processor time when the task began
        self._seen = 0.0  # and when it was late before
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
        self.deadline = time.monotonic() + self._timeout

    def fileno(self) -> int:
        return self._connection.fileno()

    def take(self, *, ready: bool) -> None:
        """Take the next answer, if it is ready, or that there is none."""
        if not ready:
            if not self._is_computing():
                idle = _computed(self._child) - self._begun < self._timeout
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
        self._begun = self._seen = _computed(self._child)
        self.deadline = time.monotonic() + self._timeout
        if len(self.answers) == len(self._tasks):
            self.end()

    def _is_computing(self) -> bool:
        """Return whether a late task has had too little processor time; if so, give it the rest."""
        now = _computed(self._child)
        left = self._timeout - (now - self._begun)
        if left <= 0 or now - self._seen < _LEAST * self._timeout:
            return False
        self._seen, self.deadline = now, time.monotonic() + max(left, _LEAST * self._timeout)
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


def _computed(process: int) -> float:
    """Return the processor time of a process in seconds; 0 if it is gone."""
    try:
        fields = Path(f"/proc/{process}/stat").read_bytes().rpartition(b")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / _TICKS


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
