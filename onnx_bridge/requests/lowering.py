"""What `onnx_bridge.lower` is asked to do."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from onnx_bridge.core.files.user_cache import cache_dir
from onnx_bridge.requests.conversion import PROVE_BUDGET, ConvertRequest, Prove
from onnx_bridge.requests.export import Dynamic, ExporterChoice

HalfPrecision = Literal["fp16", "bf16"]


@dataclass(frozen=True)
class LowerRequest:
    """How to lower a module; which module, and for which arguments, is not part of it.

    Attributes:
        target: ``gpu``, ``ref``, or ``auto``: gpu if there is one.
        precision: what the module computes in; None is its own dtypes.
        buckets: sizes by open dimension.
        dynamic: dimensions of open size.
        pad_before: open dimensions that are padded at their start.
        exporter: of torch.onnx.
        opset: of the ONNX model; None leaves it to torch.
        host: whether nodes may run on ONNX Runtime.
        cache: whether programs are cached on disk, or the cache folder.
        timeout: limit in seconds for each step of MIGraphX, and for a call.
        memory: limit in GiB for MIGraphX's process.
        runtime: which MIGraphX (`onnx_bridge.migraphx.runtime.find`).
        in_process: whether programs run in this process, on tensors that are passed by address.
        prove: whether programs are run against the reference (`onnx_bridge.requests.conversion.ConvertRequest`).
        prove_budget: the most estimated seconds for that.
    """

    target: str = "auto"
    precision: HalfPrecision | None = None
    buckets: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    dynamic: Dynamic = field(default_factory=dict)
    pad_before: tuple[str, ...] = ()
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

    @property
    def cache_folder(self) -> Path | None:
        """The folder of cached programs, if they are cached."""
        if self.cache is True:
            return cache_dir() / "torch"
        return None if self.cache is False else Path(self.cache)

    @property
    def conversion(self) -> ConvertRequest:
        """How to convert the exported model."""
        return ConvertRequest(
            target=self.target,
            buckets=self.buckets,
            pad_before=self.pad_before,
            host=self.host,
            timeout=self.timeout,
            memory=self.memory,
            runtime=self.runtime,
            prove=self.prove,
            prove_budget=self.prove_budget,
        )
