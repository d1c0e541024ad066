"""Child processes for foreign native code: what crashes, hangs or leaks there cannot harm the process that started it.

A `Child` runs the function ``main(connection, *arguments)`` of a module. It has

- a socket of its own for the protocol, since native libraries print to the standard streams,
- a lifeline: the read end of a pipe whose write end only the parent holds. When the parent ends, however that happens,
  the kernel ends the child,
- standard output and error in a memory file (or a file of the parent's choice), so that the last lines are there even
  after a crash and printing never blocks,
- a time and memory limit for each request; whoever exceeds one is ended by SIGKILL.

`passes.isolation.child` is the child's side.
"""

from __future__ import annotations

import atexit
import contextlib
import enum
import fcntl
import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from passes.isolation import messages
from passes.isolation.child import OUT_OF_MEMORY, TOLD, Waiting
from passes.isolation.limits import Limits
from passes.isolation.messages import Array, FileRange, Message
from passes.isolation.reused_memory import AnswerMemories, ReusedMemory

_MEMORY_CHECK_SECONDS = 0.1
_OUTPUT_BYTES = 64 << 10
_ROOT = Path(__file__).resolve().parents[2]
_BOOT = "import sys; sys.path.insert(0, {root!r}); {then}from passes.isolation import child; child.run{arguments!r}"
_OWN_PACKAGES = "import onnx_bridge, passes; sys.path.pop(0); "
"""Imports of ours alone: an interpreter of another environment shall not find what else our folder has."""


class Reason(enum.Enum):
    """A reason why a child did not answer."""

    DIED = "died"
    TIMEOUT = "timeout"
    MEMORY = "memory"
    KILLED = "killed"
    """A signal from elsewhere has ended it: the system does so when memory is short."""
    START = "start"
    """It could not be started, or nothing could be sent to it."""


class ChildFailure(Exception):
    """A child process did not answer, and has ended.

    Attributes:
        reason: why.
        returncode: as `subprocess.Popen.returncode`, if it died by itself or by a signal from elsewhere.
        output: the last that it printed.
    """

    def __init__(self, reason: Reason, output: str, returncode: int | None = None) -> None:
        super().__init__(reason.value)
        self.reason = reason
        self.output = output
        self.returncode = returncode


def ignore_told(count: int) -> None:
    """Do nothing with what a child tells before it answers."""


class Child:
    """A child process, started by the constructor without waiting until it is ready.

    Args:
        module: the module whose ``main`` it runs.
        arguments: plain values for ``main``, after the connection.
        command: from the interpreter and its arguments to the command line, if a loader is to start it.
        environment: its environment variables; default: the parent's.
        output: a descriptor for what it prints; default: a memory file, for `printed`.
        inherited: further descriptors that it holds.
        foreign: whether its interpreter is of another environment, which has its own packages, perhaps no msgspec.

    Attributes:
        connection: the parent's end of the socket.

    Raises:
        OSError: it cannot be started.
    """

    def __init__(
        self,
        module: str,
        arguments: Sequence[object] = (),
        *,
        command: Callable[[Path, list[str]], list[str]] = lambda python, arguments: [str(python), *arguments],
        environment: Mapping[str, str] | None = None,
        output: int | None = None,
        inherited: Sequence[int] = (),
        foreign: bool = False,
    ) -> None:
        self._foreign = foreign
        self.connection, child_end = messages.connect()
        lifeline, self._lifeline = os.pipe2(os.O_CLOEXEC)
        self._output = os.memfd_create("onnx-bridge-output", os.MFD_CLOEXEC)
        fcntl.fcntl(self._output, fcntl.F_SETFL, os.O_APPEND)  # or writes after a truncation would leave a hole
        self._owner = os.getpid()
        self._memory_limit: int | None = None
        self._waiting = Waiting(self.connection)
        self._given, self._answers = ReusedMemory(), AnswerMemories()
        told = child_end.fileno(), lifeline, self._owner, module, *arguments
        boot = _BOOT.format(root=str(_ROOT), then=_OWN_PACKAGES if foreign else "", arguments=told)
        printed = self._output if output is None else output
        try:
            self._popen = subprocess.Popen(
                command(Path(sys.executable), ["-P", "-c", boot]),
                stdin=subprocess.DEVNULL,
                stdout=printed,
                stderr=printed,
                pass_fds=(child_end.fileno(), lifeline, *inherited),
                env=environment,
                start_new_session=True,  # Ctrl-C in the terminal is for the parent to handle
            )
        except OSError:
            self._close()
            raise
        finally:
            child_end.close()
            os.close(lifeline)
        _living.add(self)

    @property
    def pid(self) -> int:
        return self._popen.pid

    @property
    def ended(self) -> bool:
        """Return whether the process has ended, or is the child of another process (that this one was forked from)."""
        return self._owner != os.getpid() or self._popen.poll() is not None

    def exchange(
        self,
        message: Mapping[str, object],
        arrays: Mapping[str, Array | FileRange],
        limits: Limits = Limits(),
        *,
        reuse: bool = False,
        told: Callable[[int], None] = ignore_told,
    ) -> Message:
        """Send a request and wait for its answer.

        Args:
            message: JSON values.
            arrays: what travels with it.
            reuse: whether arrays travel in memory that is reused, which the child does not keep.
            told: called with what the child tells before it answers.

        Raises:
            ChildFailure: it has died, or has exceeded a limit and was killed.
        """
        end = None if limits.timeout is None else time.monotonic() + limits.timeout
        reserved, used = (0, 0) if limits.growth is None else self._memory()
        try:
            self._limit_memory(limits.memory_of(reserved))
            answer = self._answers.free() if reuse else None
            if answer is None:
                messages.send(self.connection, message, arrays, as_json=self._foreign)
            else:
                messages.send(self.connection, message, arrays, self._given, answer.number)
            while True:
                self._wait(end, limits.memory_of(used))
                received = messages.receive(self.connection, answer)
                if TOLD not in received[0]:
                    return received
                told(received[0][TOLD])
        except (EOFError, ConnectionError, ProcessLookupError):
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._popen.wait(5)
            output = self.printed()
            self.kill()
            reason = Reason.MEMORY if self.returncode == OUT_OF_MEMORY else Reason.DIED
            raise ChildFailure(reason, output, self.returncode) from None

    @property
    def returncode(self) -> int | None:
        """Its exit status as `subprocess.Popen.returncode`; None while it lives."""
        return self._popen.poll()

    def kill(self) -> None:
        """End the process, whatever it is doing."""
        if self._owner == os.getpid():
            self._popen.kill()  # does nothing if it has ended
            self._popen.wait()
        self._close()
        _living.discard(self)

    def printed(self, most: int | None = _OUTPUT_BYTES) -> str:
        """Return the last bytes of what it printed since the last request; all of them for None."""
        size = os.fstat(self._output).st_size
        count = size if most is None else most
        return os.pread(self._output, count, max(0, size - count)).decode(errors="replace")

    def _close(self) -> None:
        self.connection.close()
        descriptors, self._lifeline, self._output = (self._lifeline, self._output), -1, -1
        for descriptor in descriptors:
            with contextlib.suppress(OSError):
                os.close(descriptor)

    def _limit_memory(self, limit: int | None) -> None:
        """Set the soft limit of private memory, which makes allocations fail cleanly (std::bad_alloc)."""
        if limit != self._memory_limit:
            _, hard = resource.prlimit(self.pid, resource.RLIMIT_DATA)
            wanted = [number for number in (limit, hard) if number not in (None, resource.RLIM_INFINITY)]
            resource.prlimit(self.pid, resource.RLIMIT_DATA, (min(wanted, default=resource.RLIM_INFINITY), hard))
            self._memory_limit = limit

    def _wait(self, end: float | None, memory: int | None) -> None:
        while True:
            pause = _MEMORY_CHECK_SECONDS if memory is not None else 60.0
            if end is not None:
                pause = min(pause, end - time.monotonic())
                if pause <= 0:
                    self._stop(Reason.TIMEOUT)
            if self._waiting.wait(pause):
                return
            if memory is not None and self._memory()[1] > memory:
                self._stop(Reason.MEMORY)

    def _stop(self, reason: Reason) -> None:
        output = self.printed()
        self.kill()
        raise ChildFailure(reason, output)

    def _memory(self) -> tuple[int, int]:
        """Return the bytes of private memory that it reserved, and of anonymous memory that it uses; 0 once ended."""
        sizes = {"VmData": 0, "RssAnon": 0}
        with contextlib.suppress(OSError):
            for line in Path(f"/proc/{self.pid}/status").read_text().splitlines():
                name, _, value = line.partition(":")
                if name in sizes:
                    sizes[name] = int(value.split()[0]) << 10
        return sizes["VmData"], sizes["RssAnon"]


_living: set[Child] = set()


@atexit.register
def _kill_all() -> None:
    for child in list(_living):
        child.kill()


def _release_all() -> None:
    """Keep a fork from using or killing its parent's children, or keeping them alive by its copy of a lifeline."""
    for child in list(_living):
        child._close()
    _living.clear()


def _prepare_fork() -> None:
    for child in list(_living):
        child._answers.prepare_fork()


os.register_at_fork(before=_prepare_fork, after_in_child=_release_all)
