"""ONNX Runtime, and the inference of ONNX, in a process of their own: what crashes, hangs or grows there is an error.

There is one warm process, which is started by the first `call` (or earlier, by `launch`). A call names a module, whose
function ``answer`` runs there.
"""

from __future__ import annotations

import functools
import os
import threading
from collections.abc import Mapping
from typing import Any

from passes.core.isolation.failure import NativeFailure
from passes.core.isolation.limits import Limits
from passes.core.isolation.messages import Array, FileRange, Message
from passes.core.isolation.process import Child, ChildFailure, Reason

_START_SECONDS = 120.0


class Lost(Exception):
    """The process that a request is for has ended."""


class Worker:
    """One process at a time; safe to use from several threads."""

    def __init__(self) -> None:
        self._process: Child | None = None
        self._imported: set[str] = set()
        self._lock = threading.Lock()

    def launch(self, module: str) -> None:
        """Start the process unless it runs, and let it import a module, without waiting for it."""
        with self._lock:
            self._launch(module)

    def call(
        self,
        module: str,
        request: Mapping[str, Any],
        arrays: Mapping[str, Array | FileRange] | None = None,
        *,
        limits: Limits,
        library: str = "ONNX Runtime",
        process: Child | None = None,
    ) -> tuple[Message, Child]:
        """Let the process answer a request.

        Args:
            module: the module whose ``answer(request, arrays)`` returns the answer, likewise.
            request: JSON values.
            arrays: what travels with it.
            limits: of this request; importing the module is not part of it.
            library: what runs, for the error.
            process: the one that must answer, since it holds something; default: any.

        Returns:
            The answer, and the process that gave it.

        Raises:
            NativeFailure: the process has ended, or was ended for exceeding a limit. The next request gets another.
            Lost: ``process`` has ended before.
        """
        with self._lock:
            child = self._launch(module)
            if process is not None and child is not process:
                raise Lost
            try:
                if module not in self._imported:
                    child.exchange({"module": module}, {}, timeout=_START_SECONDS)
                    self._imported.add(module)
                message = {"module": module, "request": request}
                answer, found = child.exchange(message, arrays or {}, timeout=limits.timeout, memory=limits.memory)
            except ChildFailure as failure:
                self._close()
                raise NativeFailure(library, limits, failure) from None
            except BaseException:  # also Ctrl-C: nobody would receive the answer to this request
                self._close()
                raise
            if answer.get("out of memory"):
                self._close()  # what it still holds is unknown
                raise NativeFailure(library, limits, ChildFailure(Reason.MEMORY, ""))
            return (answer, found), child

    def close(self) -> None:
        """End the process; the next request starts another."""
        with self._lock:
            self._close()

    def _launch(self, module: str) -> Child:
        if self._process is not None and self._process.ended:
            self._close()
        if self._process is None:
            self._process = Child("passes.core.isolation.server", [module])
            self._imported = set()
        return self._process

    def _close(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process = None


@functools.cache
def shared() -> Worker:
    """The one of this process."""
    return Worker()


os.register_at_fork(after_in_child=shared.cache_clear)  # its lock may be held, and its process is not the fork's
