"""The expected outputs of probes, computed by ONNX Runtime or ONNX's own evaluator in another process.

Probes are run on generated values, on some of which ONNX Runtime ends the process (an integer division by zero, an
index that it does not check). Such a crash costs one answer.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from onnx_bridge.core.values import Value
from passes.core.isolation import value_messages
from passes.core.isolation.messages import Array
from passes.core.isolation.process import Child, ChildFailure, Reason

Values = dict[str, Array]

_SECONDS = 30.0
_MEMORY = 4 << 30


class NoReference(Exception):
    """The reference does not run a model; the text says why, `is_limit` whether it exceeded a limit."""

    def __init__(self, why: str, *, is_limit: bool = False) -> None:
        super().__init__(why)
        self.is_limit = is_limit


class ReferenceWorker:
    """One process at a time, started when it is needed; safe to use from several threads."""

    def __init__(self) -> None:
        self._process: Child | None = None
        self._lock = threading.Lock()

    def launch(self) -> None:
        """Start the process unless it runs, without waiting for it."""
        if self._process is not None and self._process.ended:
            self.close()
        if self._process is None:
            self._process = Child("onnx_bridge.verdicts.reference_server")

    def run(
        self, model: bytes, samples: Sequence[Mapping[str, Array]], *, by_onnx: bool = False
    ) -> list[Values | None]:
        """The outputs of a serialized model for each sample, by name; None where there is no reference for it.

        Args:
            model: the model.
            samples: inputs by name.
            by_onnx: use ONNX's own evaluator instead of ONNX Runtime.
        """
        arrays: Values = {"model": np.frombuffer(model, np.uint8), **flatten(samples)}
        request = {"by_onnx": by_onnx, "samples": [list(sample) for sample in samples]}
        with self._lock:
            self.launch()
            assert self._process is not None
            try:
                answer, outputs = self._process.exchange(request, arrays, timeout=_SECONDS, memory=_MEMORY)
            except ChildFailure:
                self.close()
                return [None] * len(samples)
            except BaseException:  # also Ctrl-C: nobody would receive the answer to this request
                self.close()
                raise
        return nest(outputs, answer["samples"])

    def run_file(
        self,
        path: Path,
        samples: Sequence[Mapping[str, Value]],
        *,
        shapes: Mapping[str, Sequence[int]] | None = None,
        by_onnx: bool = False,
        timeout: float | None = None,
        memory: int | None = None,
    ) -> list[dict[str, Value]]:
        """The outputs of a model file for each sample, by ONNX Runtime with all graph optimizations off.

        Args:
            path: the model.
            samples: inputs by name.
            shapes: of inputs, instead of those that the model declares (`onnx_bridge.model.resized`).
            by_onnx: use ONNX's own evaluator instead of ONNX Runtime.
            timeout: seconds.
            memory: bytes of anonymous memory.

        Raises:
            NoReference: it refuses the model or a sample, or a limit was exceeded.
        """
        entries, arrays = value_messages.pack(samples)
        sizes = {name: list(shape) for name, shape in (shapes or {}).items()}
        request = {"path": str(path), "shapes": sizes, "by_onnx": by_onnx, "samples": entries}
        with self._lock:
            self.launch()
            assert self._process is not None
            try:
                answer, outputs = self._process.exchange(request, arrays, timeout=timeout, memory=memory)
            except ChildFailure as failure:
                self.close()
                limited = failure.reason is not Reason.DIED
                raise NoReference(_why(failure.reason, timeout, memory), is_limit=limited) from None
            except BaseException:  # also Ctrl-C, as above
                self.close()
                raise
        if "error" in answer:
            raise NoReference(answer["error"])
        return value_messages.unpack(answer["samples"], outputs)

    def close(self) -> None:
        """End the process; the next request starts another."""
        if self._process is not None:
            self._process.kill()
            self._process = None


@functools.cache
def shared() -> ReferenceWorker:
    """The one of this process."""
    return ReferenceWorker()


def _why(reason: Reason, timeout: float | None, memory: int | None) -> str:
    match reason:
        case Reason.TIMEOUT:
            return f"ONNX Runtime needs more than {timeout:g} s"
        case Reason.MEMORY:
            return f"ONNX Runtime needs more than {(memory or 0) / 2**30:.3g} GiB"
    return "ONNX Runtime's process ended"


def flatten(samples: Sequence[Mapping[str, Array]]) -> Values:
    """Arrays by sample and name, as ``sample:name``."""
    return {f"{index}:{name}": array for index, sample in enumerate(samples) for name, array in sample.items()}


def nest(arrays: Mapping[str, Array], samples: Sequence[Sequence[str] | None]) -> list[Values | None]:
    """The inverse of `flatten`, by the names in each sample; None for a sample that is None."""
    return [
        None if names is None else {name: arrays[f"{index}:{name}"] for name in names}
        for index, names in enumerate(samples)
    ]
