"""Error classes: those of the passes, and those of MIGraphX and its worker processes."""

from __future__ import annotations

import enum
import signal as signals
from typing import ClassVar

from passes.core.doubts import Doubts
from passes.core.errors import BridgeError as BridgeError
from passes.core.errors import InputError as InputError
from passes.core.errors import PassError as PassError
from passes.core.errors import nearest as nearest

NOT_DETERMINED = 4
"""The exit code if nothing is known to be wrong, and nothing is proven: the reference determines no result."""


class Step(enum.StrEnum):
    """The steps of MIGraphX with a model, in order."""

    PARSE = "parse"
    QUANTIZE = "quantize"
    COMPILE = "compile"
    SAVE = "save"
    LOAD = "load"
    RUN = "run"
    SESSION = "session"
    """Opening a session of ONNX Runtime, whose provider takes the steps up to compile."""


class RuntimeFailure(BridgeError):
    """MIGraphX, or the process that runs it, failed.

    Attributes:
        step: the step that failed; None if it is unknown, or not one of these.
        output: the end of what MIGraphX printed, unfiltered.
    """

    exit_code: ClassVar[int] = 3
    page = "guides/rejected-model.md"

    def __init__(self, what: str, *, where: str | None = None, hint: str | None = None, output: str = "") -> None:
        super().__init__(what, where=where, hint=hint)
        self.output = output
        self.step: Step | None = None


class ParityError(BridgeError):
    """The output of a converted model differs from that of the reference.

    Attributes:
        output: the output that is furthest beyond its tolerance.
        error: its largest absolute error; None if it is missing, or has another dtype or shape.
        tolerance: the largest absolute error that its worst element may have; None if `error` is None.
    """

    exit_code: ClassVar[int] = 1
    page = "guides/migraphx-bug.md"

    def __init__(
        self,
        what: str,
        *,
        output: str,
        error: float | None,
        tolerance: float | None,
        where: str | None = None,
        hint: str | None = None,
    ) -> None:
        super().__init__(what, where=where, hint=hint)
        self.output, self.error, self.tolerance = output, error, tolerance


class Unreachable(BridgeError):
    """A remote location or machine failed to respond; the request may be valid, and can be retried."""

    exit_code: ClassVar[int] = 3
    page = "guides/many-models.md#on-a-cluster"


class RuntimeNotFound(RuntimeFailure):
    """MIGraphX, or the requested runtime or target, is not available on this machine."""

    page = "start/install.md"


class MigraphxError(RuntimeFailure):
    """MIGraphX rejected a request, and its worker is still usable; ``what`` is its own message."""


class NotEmulated(MigraphxError):
    """A program for a GPU that is not there does what the emulator of its kernels does not have: no fault of anyone."""


class _OverLimit(RuntimeFailure):
    """A request that was stopped, which is no fact about a model: it counts among the `passes.core.doubts.Doubts`."""

    page = "concepts/limits.md"

    def __init__(self, what: str, *, where: str | None = None, hint: str | None = None, output: str = "") -> None:
        super().__init__(what, where=where, hint=hint, output=output)
        Doubts.add()


class OutOfMemory(_OverLimit):
    """The request needed more memory than its limit, or than the machine has."""


class WorkerTimeout(_OverLimit):
    """The request timed out; its worker was killed."""


class WorkerCrashed(RuntimeFailure):
    """The worker exited during a request.

    Attributes:
        signal: the signal that terminated it, or None.
        status: its exit status, or None if a signal terminated it.
    """

    page = "concepts/limits.md"

    def __init__(self, doing: str, *, returncode: int, output: str = "") -> None:
        self.signal = signals.Signals(-returncode) if returncode < 0 else None
        self.status = None if returncode < 0 else returncode
        how = f"was killed by {self.signal.name}" if self.signal else f"exited with status {self.status}"
        last = output.strip().splitlines()[-1:]
        last_output = f"; last output: {last[0].strip()}" if last else ""
        super().__init__(f"MIGraphX's process {how} during {doing}{last_output}", output=output)
        if self.signal is signals.SIGKILL:
            Doubts.add()


class ProgramLost(RuntimeFailure):
    """The worker that held the program has exited since; parse or load it again."""

    page = "concepts/limits.md"


for _error in [value for value in globals().values() if isinstance(value, type) and issubclass(value, BridgeError)]:
    _error.__module__ = "onnx_bridge"  # where users import it from, and what a traceback says
