"""What `convert` and `doctor` are asked to do: one frozen dataclass a verb."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, get_args

from onnx_bridge.core.errors import InputError, nearest
from onnx_bridge.requests.cleaning import Dims, Shapes
from onnx_bridge.requests.request import Data, Request


@dataclass(frozen=True)
class DecoderSizes:
    """The sizes of a decoder.

    Attributes:
        max_length: the most tokens of a text, the prompt included.
        prefill: how many tokens of a prompt programs take at a time; there is always one for a single token.

    Raises:
        InputError: they contradict each other.
    """

    max_length: int
    prefill: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if self.max_length < 2:
            raise InputError(f"it cannot be {self.max_length}", where="max_length", hint="give 2 or more")
        if self.prefill and not 0 < min(self.prefill) <= max(self.prefill) < self.max_length:
            what, hint = f"it cannot be {list(self.prefill)}", f"give sizes from 1 to {self.max_length - 1}"
            raise InputError(what, where="prefill", hint=hint)


PRECISIONS = ("fp32", "fp16", "bf16", "int8", "fp8")
"""From wide to narrow."""
Prove = Literal["auto", "always", "never"]
"""Whether a conversion runs its bundle against the reference: within a budget of time, whatever it takes, or not."""
PROVE_BUDGET = 30.0
"""The default of `ConvertRequest.prove_budget`, in seconds."""


@dataclass(frozen=True)
class ConvertRequest(Request):
    """How to convert a model; which model, and where to, is not part of it.

    Attributes:
        target: ``gpu``, ``ref``, or ``auto``: gpu if there is one.
        pipeline: the passes, as a specification or the name of a pipeline.
        dims: sizes of symbolic dimensions by name.
        shapes: whole shapes by input name.
        freeze: values, as JSON text, of inputs that become constant.
        buckets: sizes of the symbolic dimensions that get several programs.
        ties: what other symbolic dimensions are then, as ``{"total": "past + 1"}``.
        pad: by input, what fills it up to the size of its bucket: a number, or ``edge``.
        pad_before: the dimensions with buckets that are padded at their start.
        decoder: of a language model that generates token by token, its sizes; None converts it as any other model.
        host: whether nodes may run on ONNX Runtime.
        cache: whether to use verdicts of earlier runs.
        probe_budget: estimated seconds, in all, for comparing large nodes at real size; None is the default of
            `onnx_bridge.verdicts.probed_runtime.ProbedRuntime`.
        precision: what to compute in: fp32, fp16, bf16, int8 or fp8.
        calibration: samples for int8 and fp8; None generates them.
        keep_fp32: operators and nodes that stay in float32.
        options: compile options by name (`onnx_bridge.migraphx.compile_options`).
        timeout: limit in seconds for each of parsing, compiling and saving, and for each run of ONNX Runtime.
        memory: limit in GiB for MIGraphX's process, and for ONNX Runtime's.
        runtime: which MIGraphX (`onnx_bridge.migraphx.runtime.find`).
        rehearse: ``gpu`` holds every node to what the gpu target's passes make of it, without a GPU.
        reuse: whether to take the cleaned model of an earlier bundle in the same folder if it is up to date.
        prove: whether the bundle is run against the reference: ``auto`` within `prove_budget`, else by a witness;
            ``always`` whatever it takes; or ``never``.
        prove_budget: the most estimated seconds of a run at real size, and of the search for a witness.

    Raises:
        InputError: a limit is not positive, or there is no such way to prove, or no such target to rehearse.
    """

    target: str = "auto"
    pipeline: str = "default"
    dims: Dims = field(default_factory=dict)
    shapes: Shapes = field(default_factory=dict)
    freeze: Mapping[str, str] = field(default_factory=dict)
    buckets: Shapes = field(default_factory=dict)
    ties: Mapping[str, str] = field(default_factory=dict)
    pad: Mapping[str, str] = field(default_factory=dict)
    pad_before: tuple[str, ...] = ()
    decoder: DecoderSizes | None = None
    host: bool = True
    cache: bool = True
    probe_budget: float | None = None
    precision: str = "fp32"
    calibration: Data | None = None
    keep_fp32: tuple[str, ...] = ()
    options: Mapping[str, bool | str] = field(default_factory=dict)
    timeout: float | None = None
    memory: float | None = None
    runtime: str | None = None
    rehearse: str | None = None
    reuse: bool = True
    prove: str = "auto"
    prove_budget: float = PROVE_BUDGET

    def __post_init__(self) -> None:
        if self.prove not in (known := get_args(Prove)):
            hint = nearest(self.prove, known) or f"there are {', '.join(known)}"
            raise InputError(f"it cannot be {self.prove!r}", where="prove", hint=hint)
        if self.rehearse not in (None, "gpu"):
            raise InputError(f"nothing can be rehearsed as on {self.rehearse!r}", hint="there is only gpu")
        for name in ("timeout", "memory", "prove_budget"):
            limit = getattr(self, name)
            if limit is not None and limit <= 0:
                raise InputError(f"it cannot be {limit}", where=name, hint="give a positive number")

    def to_json(self) -> dict[str, Any]:
        """As JSON values; calibration samples in memory are left out."""
        on_disk = self.calibration is None or isinstance(self.calibration, (str, os.PathLike))
        return super(ConvertRequest, self if on_disk else replace(self, calibration=None)).to_json()


@dataclass(frozen=True)
class DoctorRequest(Request):
    """Which conversion to examine without compiling; the attributes are those of `ConvertRequest`.

    The target ``gpu`` is rehearsed on a machine without one.
    """

    target: str = "auto"

    pipeline: str = "default"
    dims: Dims = field(default_factory=dict)
    shapes: Shapes = field(default_factory=dict)
    freeze: Mapping[str, str] = field(default_factory=dict)
    host: bool = True
    cache: bool = True
    probe_budget: float | None = None
    timeout: float | None = None
    memory: float | None = None
    runtime: str | None = None


def check_precision(name: str) -> None:
    """Raise InputError if there is no such precision."""
    if name not in PRECISIONS:
        hint = nearest(name, PRECISIONS) or f"there are {', '.join(PRECISIONS)}"
        raise InputError("there is no such precision", where=f"precision {name!r}", hint=hint)
