"""The requests of `onnx_bridge.lower` and of the backend of `torch.compile`."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal

from onnx_bridge.core.errors import InputError
from onnx_bridge.core.files.user_cache import cache_dir
from onnx_bridge.requests.conversion import ConvertRequest
from onnx_bridge.requests.export import ExportRequest
from onnx_bridge.requests.request import Option, Part, Request

HalfPrecision = Literal["fp16", "bf16"]
_OF_CONVERSION = ("target", "application", "host", "timeout", "memory", "runtime", "prove", "prove_budget")


@dataclass(frozen=True)
class LowerRequest(Request):
    """The request to lower a module, without the module and its arguments."""

    precision: Annotated[
        HalfPrecision | None,
        Option("What the module computes in; inputs and outputs keep their dtypes. Default: its own dtypes."),
    ] = None
    cache: Annotated[
        bool | str | os.PathLike[str], Option("Whether to cache programs on disk, or the folder to cache them in.")
    ] = True
    in_process: Annotated[
        bool, Option("Run in this process, on tensors that are passed by address, on PyTorch's current stream.")
    ] = False
    convert: Annotated[ConvertRequest, Part("buckets", "pad_before", *_OF_CONVERSION)] = field(
        default_factory=ConvertRequest
    )
    export: Annotated[ExportRequest, Part("dynamic", "exporter", "opset")] = field(default_factory=ExportRequest)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.in_process and self.convert.application is not None:
            what = "sessions of ONNX Runtime run in a process of their own"
            raise InputError(what, where="in_process", hint="leave one of `in_process` and `application` out")

    @property
    def cache_folder(self) -> Path | None:
        """The folder of cached programs; None if they are not cached."""
        if self.cache is True:
            return cache_dir() / "torch"
        return None if self.cache is False else Path(self.cache)


@dataclass(frozen=True)
class BackendRequest(Request):
    """The ``options`` of the backend of `torch.compile`."""

    strict: Annotated[bool, Option("Whether a graph that cannot be lowered is an error.")] = False
    buckets: Annotated[
        tuple[int, ...] | None, Option("Sizes that open dimensions are padded to; default: powers of two.")
    ] = None
    programs: Annotated[int, Option("The maximum number of programs of a graph.", minimum=1)] = 8
    lowering: Annotated[LowerRequest, Part(*_OF_CONVERSION, "exporter", "opset", "cache", "in_process")] = field(
        default_factory=LowerRequest
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.buckets is not None and (not self.buckets or min(self.buckets) < 1):
            what = f"the sizes are {list(self.buckets)}"
            raise InputError(what, where="option 'buckets'", hint="give positive sizes")

    def bucket(self, size: int) -> int:
        """Return the size that a size is padded to; sizes larger than all buckets are not padded."""
        if self.buckets is None:
            return 1 << max(size - 1, 0).bit_length() if size else 0
        return min((bucket for bucket in self.buckets if bucket >= size), default=size)
