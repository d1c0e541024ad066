"""Waiting for a message of another process: actively if the last one came at once.

To put a process to sleep and to wake it again takes longer than many a small program runs, above all on a virtual
machine, whose processor sleeps, too. So a wait is active at first, as HIP's by default (``hipDeviceScheduleAuto``) and
those of glibc's adaptive mutexes, but only while waits are short: a long one ends that, after `ACTIVE_SECONDS`.
"""

from __future__ import annotations

import os
import select
import socket
import time

ACTIVE_SECONDS = 2e-3
"""A wait of half of it is short. That is more than one takes whose two processes were put to sleep, or share a
processor: once one of them is active, they need neither."""


class Waiting:
    """The waits of one side of a connection, a socket that messages come from."""

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
