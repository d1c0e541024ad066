"""The recovery ladder: what crashes, hangs or runs out of memory in MIGraphX is tried again with less asked of it.

The first rung is a fresh process with nothing else in it: what ran there before may have corrupted its heap, or filled
its memory. The next ones are settings that MIGraphX documents (docs/reference/MIGraphX-dev-env-vars.rst), each with
those before it: fewer kernels compiled at a time, fewer code generators, fewer fusions. MIGraphX reads them once, so
that each rung has a process of its own. Settings act on compiling alone: what fails while it is parsed gets the first
rung, unless it hangs, which a fresh process would do as well.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from onnx_bridge.core.errors import (
    MigraphxError,
    OutOfMemory,
    ProgramLost,
    RuntimeFailure,
    WorkerCrashed,
    WorkerTimeout,
)
from onnx_bridge.migraphx.limits import Limits
from onnx_bridge.migraphx.runtime import Runtime
from onnx_bridge.migraphx.worker import Worker

RECOVERABLE = (WorkerCrashed, WorkerTimeout, OutOfMemory, ProgramLost)
"""What may go otherwise another time."""


@dataclass(frozen=True)
class Rung:
    """One attempt.

    Attributes:
        name: what is different, in words.
        environment: the variables for MIGraphX's process.
    """

    name: str
    environment: dict[str, str] = field(default_factory=dict)


_FRESH = Rung("in a process of its own")
_DISABLED = "MIGRAPHX_DISABLE_PASSES"
_GPU = (
    Rung("one kernel at a time", {"MIGRAPHX_GPU_COMPILE_PARALLEL": "1"}),
    Rung("without rocMLIR", {"MIGRAPHX_DISABLE_MLIR": "1"}),
    Rung(
        "without fusions",
        {
            "MIGRAPHX_DISABLE_POINTWISE_FUSION": "1",
            "MIGRAPHX_DISABLE_REDUCE_FUSION": "1",
            "MIGRAPHX_DISABLE_MULTI_OUTPUT_FUSION": "1",
            "MIGRAPHX_DISABLE_MIOPEN_FUSION": "1",
        },
    ),
    Rung(
        "with rocBLAS, one stream, and its own pooling",
        {
            "MIGRAPHX_SET_GEMM_PROVIDER": "rocblas",
            "MIGRAPHX_DISABLE_SCHEDULE_PASS": "1",
            "MIGRAPHX_DISABLE_MIOPEN_POOLING": "1",
        },
    ),
)
_REF = (Rung("without merging Pad into what follows", {_DISABLED: "eliminate_pad"}),)


def rungs(target: str | None, error: RuntimeFailure, *, compiling: bool) -> list[Rung]:
    """What to try, in order, after an error.

    Args:
        target: what was compiled for; None where it was only parsed.
        error: one of `RECOVERABLE`, or a refusal; others have no rungs.
        compiling: whether it was parsed, and failed after that.
    """
    refused = isinstance(error, MigraphxError)
    if not isinstance(error, RECOVERABLE) and not (refused and compiling):
        return []
    found = [] if refused or isinstance(error, WorkerTimeout) else [_FRESH]
    if compiling and target is not None:
        together: dict[str, str] = {}
        for rung in _GPU if target == "gpu" else _REF:
            together = {**together, **rung.environment}
            if before := os.environ.get(_DISABLED) if _DISABLED in together else None:
                together[_DISABLED] = f"{before},{rung.environment[_DISABLED]}"
            found.append(Rung(rung.name, together))
    return found


class Ladder:
    """The rungs that one conversion has climbed.

    Args:
        runtime: the MIGraphX.
        target: what is compiled for; None where models are only parsed.
        limits: of each request.
        environment: the variables that the conversion was given, under those of each rung.

    Attributes:
        rung: the one that it stands on; None on the ground.
        error: what it was climbed for.
    """

    def __init__(
        self, runtime: Runtime, target: str | None, limits: Limits, environment: Mapping[str, str] | None = None
    ) -> None:
        self._environment = dict(environment or {})
        self._runtime = runtime
        self._target = target
        self._limits = limits
        self._rest: Iterator[Rung] | None = None
        self._worker: Worker | None = None
        self.rung: Rung | None = None
        self.error: RuntimeFailure | None = None

    def __enter__(self) -> Ladder:
        return self

    def __exit__(self, *_exception: object) -> None:
        self.leave()

    def climb(self, error: RuntimeFailure, *, compiling: bool) -> Worker | None:
        """A worker for the next attempt; None, and back to the ground, where there is nothing more to try.

        Args:
            error: of the last attempt; the first one decides what is tried.
            compiling: whether that was parsed, and failed after that.
        """
        if self._rest is None:
            self.error = error
            self._rest = iter(rungs(self._target, error, compiling=compiling))
        self._close()
        self.rung = next(self._rest, None)
        if self.rung is None:
            self.leave()
            return None
        self._worker = Worker(self._runtime, {**self._environment, **self.rung.environment}, self._limits)
        return self._worker

    def leave(self) -> None:
        """Go back to the ground; the programs of the last attempt are gone."""
        self._close()
        self._rest = self.rung = self.error = None

    @property
    def note(self) -> str | None:
        """What the user should know; None on the ground."""
        if self.rung is None or self.error is None:
            return None
        settings = " ".join(f"{name}={value}" for name, value in self.rung.environment.items())
        return f"compiled {self.rung.name}{f' ({settings})' * bool(settings)}, since {self.error.what}"

    def _close(self) -> None:
        if self._worker is not None:
            self._worker.close()
            self._worker = None
