"""ONNX Runtime, and the inference of ONNX, in a process of their own: what crashes, hangs or grows there is an error.

There is one warm process for each purpose, which is started by the first `call` (or earlier, by `launch`). A call names
a module, whose function ``answer`` runs there.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Mapping
from typing import Any

from passes.isolation.failure import NativeFailure
from passes.isolation.limits import Limits
from passes.isolation.messages import Array, FileRange, Message
from passes.isolation.process import Child, ChildFailure, Reason, ignore_told
from passes.isolation.respawning import RespawningChild

_START_SECONDS = 120.0


class Lost(Exception):
    """The process that a request is for has ended."""


class Worker:
    """One process at a time, started as `Child` takes it; safe to use from several threads."""

    def __init__(self, **options: Any) -> None:
        self._child = RespawningChild(lambda: Child("passes.isolation.server", [self._first], **options))
        self._first = ""
        self._imported: set[tuple[int, str]] = set()

    def launch(self, module: str) -> None:
        """Start the process unless it runs, and let it import a module, without waiting for it."""
        with self._child.lock:
            self._first = module
            self._child.launch()

    def call(
        self,
        module: str,
        request: Mapping[str, Any],
        arrays: Mapping[str, Array | FileRange] | None = None,
        *,
        limits: Limits,
        library: str = "ONNX Runtime",
        process: Child | None = None,
        told: Callable[[int], None] = ignore_told,
    ) -> tuple[Message, Child]:
        """Let the process answer a request.

        Args:
            module: the module whose ``answer(request, arrays)`` returns the answer, likewise.
            request: JSON values.
            arrays: what travels with it.
            limits: the limits of this request; importing the module is not part of it.
            library: what runs, for the error.
            process: the one that must answer, since it holds something; default: any.
            told: called with what the module passes to `passes.isolation.server.tell` before it answers.

        Returns:
            The answer, and the process that gave it.

        Raises:
            NativeFailure: the process has ended, or was ended for exceeding a limit. The next request gets another.
            Lost: ``process`` has ended before.
        """
        with self._child.lock:
            self._first = module
            try:
                child = self._started(module)
                if process is not None and child is not process:
                    raise Lost
                message = {"module": module, "request": request}
                answer, results = self._child.exchange(message, arrays or {}, limits, told=told)
            except ChildFailure as failure:
                raise NativeFailure(library, limits, failure) from None
            except OSError as error:  # no process, or no room for what is sent to it
                raise NativeFailure(library, limits, ChildFailure(Reason.START, str(error))) from error
            return (answer, results), child

    def _started(self, module: str) -> Child:
        """Return the process, which has imported a module."""
        child = self._child.launch()
        imported = self._child.generation, module
        if imported not in self._imported:
            try:
                self._child.exchange({"module": module}, {}, Limits(_START_SECONDS))
            except ChildFailure as failure:
                raise ChildFailure(Reason.START, failure.output or failure.reason.value) from None
            self._imported.add(imported)
        return child

    def close(self) -> None:
        """End the process; the next request starts another."""
        self._child.close()


@functools.cache
def shared(purpose: str = "sessions") -> Worker:
    """Return the worker of this process for a purpose: libraries that take much memory have a process of their own."""
    return Worker()


os.register_at_fork(after_in_child=shared.cache_clear)  # its lock may be held, and its process is not the fork's
