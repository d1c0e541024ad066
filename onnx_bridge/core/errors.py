"""The errors of the project: those of the passes, and those of MIGraphX in its worker process."""

from __future__ import annotations

import enum
import signal as signals
from typing import ClassVar

from passes.core.errors import BridgeError, InputError, PassError, nearest

__all__ = [
    "BridgeError",
    "InputError",
    "MigraphxError",
    "OutOfMemory",
    "PassError",
    "ProgramLost",
    "RuntimeFailure",
    "RuntimeNotFound",
    "Step",
    "Unreachable",
    "WorkerCrashed",
    "WorkerTimeout",
    "nearest",
]


class Step(enum.StrEnum):
    """What MIGraphX does with a model, in order."""

    PARSE = "parse"
    QUANTIZE = "quantize"
    COMPILE = "compile"
    SAVE = "save"
    LOAD = "load"
    RUN = "run"


class RuntimeFailure(BridgeError):
    """MIGraphX, or the process that it lives in, failed.

    Attributes:
        step: the step that failed; None where it is not known, or was none of them.
        output: the last of what MIGraphX printed, unabridged by cleaning.
    """

    exit_code: ClassVar[int] = 3

    def __init__(self, what: str, *, where: str | None = None, hint: str | None = None, output: str = "") -> None:
        super().__init__(what, where=where, hint=hint)
        self.output = output
        self.step: Step | None = None


class Unreachable(BridgeError):
    """A place elsewhere, or a machine, did not answer as it should; it says nothing of what was asked for."""

    exit_code: ClassVar[int] = 3


class RuntimeNotFound(RuntimeFailure):
    """There is no MIGraphX on this machine, or not the one that was asked for."""


class MigraphxError(RuntimeFailure):
    """MIGraphX refused a request and lives on; ``what`` is its own message."""


class OutOfMemory(RuntimeFailure):
    """The request needed more memory than its limit, or than the machine has."""


class WorkerTimeout(RuntimeFailure):
    """The request took longer than its time limit; its worker was killed."""


class WorkerCrashed(RuntimeFailure):
    """The worker ended in the middle of a request.

    Attributes:
        signal: the signal that ended it, or None where it left by itself.
        status: its exit status where no signal ended it.
    """

    def __init__(self, doing: str, *, returncode: int, output: str = "") -> None:
        self.signal = signals.Signals(-returncode) if returncode < 0 else None
        self.status = None if returncode < 0 else returncode
        how = f"was ended by {self.signal.name}" if self.signal else f"left with status {self.status}"
        last = output.strip().splitlines()[-1:]
        said = f"; its last words: {last[0].strip()}" if last else ""
        super().__init__(f"MIGraphX's process {how} during {doing}{said}", output=output)


class ProgramLost(RuntimeFailure):
    """The program was in a worker that has ended since; parse or load it again."""
