"""One child process at a time, which is started again after it has ended."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping

from passes.isolation.limits import Limits
from passes.isolation.messages import Array, FileRange, Message
from passes.isolation.process import Child, ignore_told


class RespawningChild:
    """A child that is started when a request needs it, and ended where nobody would receive an answer.

    Args:
        spawn: starts one.

    Attributes:
        lock: whoever sends several requests to the same process holds it.
        process: the one that was started last; None before, and once it was ended.
        generation: how many were started.
    """

    def __init__(self, spawn: Callable[[], Child]) -> None:
        self.lock = threading.RLock()
        self.process: Child | None = None
        self.generation = 0
        self._spawn = spawn

    def launch(self) -> Child:
        """Return the process; started, without waiting until it is ready, unless it runs."""
        with self.lock:
            self.discard_ended()
            if self.process is None:
                self.process = self._spawn()
                self.generation += 1
            return self.process

    def discard_ended(self) -> None:
        """Forget a process that ended between requests."""
        with self.lock:
            if self.process is not None and self.process.ended:
                self.close()

    def exchange(
        self,
        message: Mapping[str, object],
        arrays: Mapping[str, Array | FileRange],
        limits: Limits,
        *,
        reuse: bool = False,
        told: Callable[[int], None] = ignore_told,
    ) -> Message:
        """Send a request to the process that was launched, and wait for its answer, as `Child.exchange`.

        After any exception, Ctrl-C included, it is ended.

        Raises:
            ChildFailure: it has died, or has exceeded a limit and was killed.
        """
        with self.lock:
            assert self.process is not None
            try:
                return self.process.exchange(message, arrays, limits, reuse=reuse, told=told)
            except BaseException:
                self.close()
                raise

    def close(self) -> None:
        """End the process; the next request starts another."""
        with self.lock:
            if self.process is not None:
                self.process.kill()
                self.process = None
