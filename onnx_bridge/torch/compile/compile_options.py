"""The options of the backend of `torch.compile`."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from onnx_bridge.core.errors import InputError, nearest
from onnx_bridge.requests.lowering import LowerRequest

_OF_ONE_MODULE = ("precision", "buckets", "dynamic", "pad_before")
"""Options of lowering that concern the dimensions or the dtypes of a certain module."""


@dataclass(frozen=True)
class BackendOptions:
    """The ``options`` of the backend: its own, and those of `onnx_bridge.lower` that suit any graph.

    Attributes:
        strict: whether a graph that cannot be lowered is an error.
        buckets: the sizes that open dimensions are padded to; None means powers of two.
        programs: the maximum number of programs of a graph.
        lowering: how graphs are lowered.
    """

    strict: bool = False
    buckets: Sequence[int] | None = None
    programs: int = 8
    lowering: LowerRequest = field(default_factory=LowerRequest)

    @classmethod
    def of(cls, options: Mapping[str, Any] | None) -> BackendOptions:
        """Read the argument of `torch.compile`.

        Raises:
            InputError: there is no such option, or its value is wrong.
        """
        own = [option.name for option in dataclasses.fields(cls) if option.name != "lowering"]
        lowering = [option.name for option in dataclasses.fields(LowerRequest) if option.name not in _OF_ONE_MODULE]
        given: dict[str, Any] = {}
        lowered: dict[str, Any] = {}
        for name, value in (options or {}).items():
            if name not in (*own, *lowering):
                hint = nearest(name, [*own, *lowering]) or f"there are {', '.join((*own, *lowering))}"
                raise InputError("there is no such option", where=f"option {name!r}", hint=hint)
            (given if name in own else lowered)[name] = value
        result = cls(**given, lowering=LowerRequest(**lowered))
        if result.buckets is not None and (not result.buckets or min(result.buckets) < 1):
            what = f"the sizes are {list(result.buckets)}"
            raise InputError(what, where="option 'buckets'", hint="give positive sizes")
        if result.programs < 1:
            raise InputError("a graph needs at least one program", where="option 'programs'")
        return result

    def bucket(self, size: int) -> int:
        """Return the size that a size is padded to; sizes larger than all buckets are not padded."""
        if self.buckets is None:
            return 1 << max(size - 1, 0).bit_length() if size else 0
        return min((bucket for bucket in self.buckets if bucket >= size), default=size)
