"""The error for native code that failed in its process."""

from __future__ import annotations

import re
import signal as signals
from typing import ClassVar

from passes.core.doubts import Doubts
from passes.core.errors import BridgeError
from passes.isolation.limits import Limits
from passes.isolation.process import ChildFailure, Reason

NO_MEMORY = (
    "bad_alloc|bad allocation|Failed to allocate memory|Cannot allocate memory|Resource temporarily unavailable"
    "|No space left on device|Too many open files"
)
"""ONNX Runtime's words for an allocation, a thread or a file for which there is no room; a regular expression."""
_FROM_ELSEWHERE = (signals.SIGKILL, signals.SIGTERM, signals.SIGINT, signals.SIGHUP)


def lacks_memory(error: BaseException | None) -> bool:
    """Return whether an error of foreign code says that there was no memory, which is no fact about a model."""
    return isinstance(error, MemoryError) or re.search(NO_MEMORY, str(error)) is not None


class NativeFailure(BridgeError):
    """A native library exceeded a limit of time or memory, or its process ended or could not be started.

    That is no fact about a model, a crash included, which need not happen again: each counts among the `Doubts`.

    Attributes:
        reason: which of these.
        signal: the signal that ended the process by itself or from elsewhere; None without one.
        output: the end of what it printed.
    """

    exit_code: ClassVar[int] = 3
    page = "concepts/limits.md"

    def __init__(self, library: str, limits: Limits, failure: ChildFailure, *, where: str | None = None) -> None:
        """Describe a failure.

        Args:
            limits: the limits of the request.
            failure: why there is no answer.
            where: the model or the node.
        """
        self.output, status = failure.output, failure.returncode
        self.signal = signals.Signals(-status) if status is not None and status < 0 else None
        self.reason = failure.reason
        if self.reason is Reason.DIED and re.search(NO_MEMORY, failure.output):  # what C++ prints before it aborts
            self.reason = Reason.MEMORY
        if self.reason is Reason.DIED and self.signal in _FROM_ELSEWHERE:
            self.reason = Reason.KILLED
        Doubts.add()
        match self.reason:
            case Reason.TIMEOUT:
                what = f"{library} exceeded its time limit of {limits.timeout:g} s and was stopped"
                hint = "give it more with `timeout`"
            case Reason.MEMORY:
                what = f"{library} needs more memory than its limit of {(limits.memory_of(0) or 0) / 2**30:.3g} GiB"
                hint = "give it more with `memory`"
            case Reason.START:
                what = (
                    f"{library}'s process cannot be started or reached: {failure.output.strip().rpartition(chr(10))[2]}"
                )
                hint = "free memory or disk space, then repeat the command"
            case _:
                how = f"was killed by {self.signal.name}" if self.signal else f"exited with status {status}"
                last = failure.output.strip().splitlines()[-1:]
                what = f"{library}'s process {how}" + "".join(f"; last output: {line.strip()}" for line in last)
                hint = "this is a defect of the library that the model triggers"
                if self.reason is Reason.KILLED:
                    hint = "the system does so when memory is short: free some, then repeat the command"
        super().__init__(what, where=where, hint=hint)
