"""The options of the backend of `torch.compile`."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from onnx_bridge.core.errors import InputError, nearest
from onnx_bridge.requests.conversion import PROVE_BUDGET, Prove
from onnx_bridge.requests.export import ExporterChoice
from onnx_bridge.requests.lowering import LowerRequest


@dataclass(frozen=True)
class BackendOptions:
    """The ``options`` of the backend.

    Attributes:
        strict: whether a graph that cannot be lowered is an error.
        buckets: the sizes that open dimensions are padded to; None means powers of two.
        programs: the maximum number of programs of a graph.
        target: as for `onnx_bridge.lower`, like all that follow.
        exporter: of torch.onnx.
        opset: of the ONNX model.
        host: whether nodes that MIGraphX cannot run may run on ONNX Runtime.
        cache: whether programs are cached on disk, or the cache folder.
        timeout: limit in seconds.
        memory: limit in GiB.
        runtime: which MIGraphX.
        in_process: whether programs run in this process, on tensors that are passed by address.
        prove: whether new programs are run against the reference.
        prove_budget: the most estimated seconds for that.
    """

    strict: bool = False
    buckets: Sequence[int] | None = None
    programs: int = 8
    target: Literal["auto", "ref", "gpu"] = "auto"
    exporter: ExporterChoice = "auto"
    opset: int | None = None
    host: bool = True
    cache: bool | str | os.PathLike[str] = True
    timeout: float | None = None
    memory: float | None = None
    runtime: str | None = None
    in_process: bool = False
    prove: Prove = "auto"
    prove_budget: float = PROVE_BUDGET

    @classmethod
    def of(cls, options: Mapping[str, Any] | None) -> BackendOptions:
        """The options from the argument of `torch.compile`.

        Raises:
            InputError: there is no such option, or its value is wrong.
        """
        known = [each.name for each in dataclasses.fields(cls)]
        for name in options or {}:
            if name not in known:
                hint = nearest(name, known) or f"there are {', '.join(known)}"
                raise InputError("there is no such option", where=f"option {name!r}", hint=hint)
        made = cls(**(options or {}))
        if made.buckets is not None and (not made.buckets or min(made.buckets) < 1):
            raise InputError(
                f"its sizes are {list(made.buckets)}", where="option 'buckets'", hint="give positive sizes"
            )
        if made.programs < 1:
            raise InputError("a graph needs at least one program", where="option 'programs'")
        return made

    def request(self) -> LowerRequest:
        return LowerRequest(
            target=self.target,
            exporter=self.exporter,
            opset=self.opset,
            host=self.host,
            cache=self.cache,
            timeout=self.timeout,
            memory=self.memory,
            runtime=self.runtime,
            in_process=self.in_process,
            prove=self.prove,
            prove_budget=self.prove_budget,
        )

    def bucket(self, size: int) -> int:
        """The size that a size is padded to; sizes larger than all buckets are not padded."""
        if self.buckets is None:
            return 1 << max(size - 1, 0).bit_length() if size else 0
        return min((each for each in self.buckets if each >= size), default=size)
