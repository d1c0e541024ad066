"""The reason of a failed job, as the journal records it."""

from __future__ import annotations

import errno
import signal
from dataclasses import dataclass, replace

from onnx_bridge.core.errors import BridgeError, OutOfMemory, ProgramLost, Unreachable, WorkerCrashed, WorkerTimeout
from onnx_bridge.core.progress import Stage
from passes.isolation.failure import NativeFailure
from passes.isolation.process import Reason

_TRANSIENT = {
    errno.ENOSPC,
    errno.EDQUOT,
    errno.EIO,
    errno.ESTALE,
    errno.EMFILE,
    errno.ENFILE,
    errno.ENOMEM,
    errno.EAGAIN,
}
"""Errors of the system that do not depend on the model."""


@dataclass(frozen=True)
class Failure:
    """The reason of a failed job.

    Attributes:
        kind: the class of the error.
        where: the file, node or option that it is about.
        retry: whether another attempt in this run may succeed.
        transient: whether the failure does not depend on the model, so that later runs try again.
    """

    kind: str
    what: str
    stage: str
    where: str | None = None
    hint: str | None = None
    exit_code: int = 3
    retry: bool = False
    transient: bool = False

    @classmethod
    def of(cls, error: BaseException, stage: str) -> Failure:
        kind, transient = type(error).__name__, is_transient(error)
        if not isinstance(error, BridgeError):
            what, hint = f"unexpected {kind}: {error}", "this is a defect; the log has the traceback"
            return cls(kind, what, stage, hint=hint, retry=transient, transient=transient)
        return cls(kind, error.what, stage, error.where, error.hint, error.exit_code, transient, transient)

    @classmethod
    def of_exit(cls, status: int, stage: str) -> Failure:
        """Describe a job process that exited during a job; a crash is retried, but not taken for transient."""
        killed = status == -signal.SIGKILL
        how = f"was killed by {signal.Signals(-status).name}" if status < 0 else f"exited with status {status}"
        hint = "the system does so when memory is short; `jobs=1` leaves more to each job" if killed else None
        what = f"the process of the job {how}"
        return cls("Killed" if killed else "Crashed", what, stage, hint=hint, retry=True, transient=killed)

    def as_transient(self) -> Failure:
        """Return the same failure, to be tried again by later runs."""
        return replace(self, transient=True)


def is_transient(error: BaseException) -> bool:
    """Return whether another attempt may succeed: after a full disk, or a process that was killed from outside."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, OSError) and cause.errno in _TRANSIENT:
            return True
        if isinstance(cause, (ProgramLost, MemoryError, Unreachable)):
            return True
        if isinstance(cause, WorkerCrashed) and cause.signal is signal.SIGKILL:
            return True
        if isinstance(cause, NativeFailure) and cause.reason in (Reason.KILLED, Reason.START):
            return True
        cause = cause.__cause__ or cause.__context__
    return False


def exceeded_limit(error: BaseException) -> str | None:
    """Return the limit that was exceeded, ``timeout`` or ``memory``, if that is what the error says."""
    reason = error.reason if isinstance(error, NativeFailure) else None
    if isinstance(error, WorkerTimeout) or reason is Reason.TIMEOUT:
        return "timeout"
    return "memory" if isinstance(error, OutOfMemory) or reason is Reason.MEMORY else None


def lost(kind: str, what: str, stage: str = Stage.LOAD) -> Failure:
    """Return a failure of the machine that ran a job."""
    return Failure(kind, what, stage, retry=True, transient=True)
