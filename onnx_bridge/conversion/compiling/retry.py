"""The retry ladder: after MIGraphX has crashed, hung or run out of memory, it is tried again with simpler settings.

The first rung is a fresh process, since earlier requests may have corrupted the heap or filled the memory. The next
rungs are settings that MIGraphX documents (docs/reference/MIGraphX-dev-env-vars.rst), each with those before it: fewer
kernels compiled at a time, fewer code generators, fewer fusions. MIGraphX reads them once, so that each rung has a
process of its own. Settings affect compiling only: a failure to parse gets the first rung alone, and a hang while
parsing none, since a fresh process would hang as well.
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
from onnx_bridge.migraphx.runtime import Runtime
from onnx_bridge.migraphx.worker import Worker
from passes.isolation.limits import Limits

RECOVERABLE = (WorkerCrashed, WorkerTimeout, OutOfMemory, ProgramLost)
"""Failures that a fresh process may avoid."""


@dataclass(frozen=True)
class Rung:
    """One attempt: a name for notes, and additional variables of MIGraphX's process."""

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
    """Return the rungs to try after an error, in order; only errors of `RECOVERABLE` and rejections have any."""
    rejected = isinstance(error, MigraphxError)
    if not isinstance(error, RECOVERABLE) and not (rejected and compiling):
        return []
    attempts = [] if rejected or isinstance(error, WorkerTimeout) else [_FRESH]
    if compiling and target is not None:
        together: dict[str, str] = {}
        for rung in _GPU if target == "gpu" else _REF:
            together = {**together, **rung.environment}
            if before := os.environ.get(_DISABLED) if _DISABLED in together else None:
                together[_DISABLED] = f"{before},{rung.environment[_DISABLED]}"
            attempts.append(Rung(rung.name, together))
    return attempts


class Ladder:
    """The rungs that one conversion climbs.

    Args:
        target: the compilation target; None if models are only parsed.
        environment: the variables of the conversion; the variables of a rung override them.

    Attributes:
        rung: the current rung; None before the first.
        error: the first failure.
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
        """Return the worker of the next attempt; if there is none, reset the ladder and return None."""
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
        """Reset the ladder; the programs of the last attempt are lost."""
        self._close()
        self._rest = self.rung = self.error = None

    @property
    def note(self) -> str | None:
        """A sentence on what worked; None before the first rung."""
        if self.rung is None or self.error is None:
            return None
        settings = " ".join(f"{name}={value}" for name, value in self.rung.environment.items())
        return f"compiled {self.rung.name}{f' ({settings})' * bool(settings)}, since {self.error.what}"

    def _close(self) -> None:
        if self._worker is not None:
            self._worker.close()
            self._worker = None
