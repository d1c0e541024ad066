"""The child's side of `passes.isolation.process`; imports nothing heavy but numpy, since start-up time counts."""

from __future__ import annotations

import errno
import fcntl
import functools
import os
import resource
import select
import signal
import socket
import threading
import time
from collections.abc import Callable
from typing import Any

from passes.isolation import deferred, messages
from passes.isolation.messages import Array, Message
from passes.isolation.reused_memory import MOST_MEMORIES, ReusedMemory

OUT_OF_MEMORY = errno.ENOMEM
"""The exit status of a child that had no memory to receive a request, to answer it, or to send the answer."""
TOLD = "told"
"""The key of a message that is not an answer yet."""


def run(connection: int, lifeline: int, parent: int, module: str, *arguments: object) -> None:
    """Do all that a child does: prepare the process, import the module, and run its ``main``."""
    end_with_parent(lifeline, parent)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    for descriptor in (connection, lifeline):
        os.set_inheritable(descriptor, False)
    deferred.quick_start()
    deferred.load(module).main(socket.socket(fileno=connection), *arguments)


def end_with_parent(lifeline: int, parent: int) -> None:
    """End this process once the write end of ``lifeline``, which only the parent holds, is closed.

    The kernel does it (SIGIO, whose default action ends a process), so that it works in the middle of a long call
    that holds the interpreter's lock. A fork of the parent may hold the end open, too: a thread watches for that.
    """
    signal.signal(signal.SIGIO, signal.SIG_DFL)
    fcntl.fcntl(lifeline, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(lifeline, fcntl.F_SETFL, fcntl.fcntl(lifeline, fcntl.F_GETFL) | os.O_ASYNC)

    def watch() -> None:
        pause = threading.Event()
        while os.getppid() == parent:
            pause.wait(1.0)
        os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=watch, daemon=True).start()


def serve(connection: socket.socket, answer: Callable[[dict[str, Any], dict[str, Array]], Message]) -> None:
    """Answer requests in a child until the parent closes the connection; ``printed`` begins again with each.

    Args:
        connection: to the parent.
        answer: from a request to its answer; what it raises ends the process, since what it still holds is unknown. It
            does not keep the arrays of a request in memory that is reused.
    """
    try:
        _serve(connection, answer)
    except MemoryError:
        os._exit(OUT_OF_MEMORY)


def _serve(connection: socket.socket, answer: Callable[[dict[str, Any], dict[str, Array]], Message]) -> None:
    waiting, given = Waiting(connection), ReusedMemory()
    returned = functools.lru_cache(MOST_MEMORIES)(lambda _number: ReusedMemory())
    while True:
        waiting.wait()
        try:
            request = messages.receive(connection, given)
        except EOFError:
            return
        os.ftruncate(2, 0)
        reply = answer(*request)
        messages.send(connection, *reply, returned(given.wanted) if given.wanted else None)
        del request, reply  # or two requests' arrays would be mapped at a time


ACTIVE_SECONDS = 2e-3
"""A wait of half of it is short. That is more than one takes whose two processes were put to sleep, or share a
processor: once one of them is active, they need neither."""


class Waiting:
    """The waits of one side of a connection, a socket that messages come from: active if the last message came at once.

    To put a process to sleep and to wake it again takes longer than many a small program runs, above all on a virtual
    machine. So a wait is active at first, as HIP's by default (``hipDeviceScheduleAuto``) and those of glibc's adaptive
    mutexes, but only while waits are short: a long one ends that, after `ACTIVE_SECONDS`.
    """

    def __init__(self, connection: socket.socket) -> None:
        self._poll = select.poll()
        self._poll.register(connection, select.POLLIN)
        self._short = False

    def wait(self, seconds: float | None = None) -> bool:
        """Wait for a message, or for the end of the other side; return whether one of them came within the time."""
        started = time.perf_counter()
        if self._short:
            while time.perf_counter() < started + ACTIVE_SECONDS:
                if self._poll.poll(0):
                    self._short = time.perf_counter() < started + ACTIVE_SECONDS / 2
                    return True
                os.sched_yield()  # to the other side, if the kernel has woken it on this processor
        arrived = bool(self._poll.poll(None if seconds is None else max(0.0, seconds) * 1000))
        # a single processor is left to the other side
        self._short = time.perf_counter() < started + ACTIVE_SECONDS / 2 and len(os.sched_getaffinity(0)) > 1
        return arrived
