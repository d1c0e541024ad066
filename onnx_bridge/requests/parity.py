"""What `check`, `bisect` and `reduce` are asked to do: one frozen dataclass a verb."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

import onnx_ir as ir

from onnx_bridge.core.errors import InputError
from onnx_bridge.core.values import Value
from onnx_bridge.reference.comparison.tolerances import PartialTolerance, Tolerances
from onnx_bridge.requests.conversion import ConvertRequest
from onnx_bridge.requests.request import Data, Request
from passes.isolation.limits import Limits

ModelSource = str | os.PathLike[str] | ir.Model
LowPrecision = Literal["fp16", "bf16", "int8", "fp8"]
"""What MIGraphX can be asked to compute in, instead of the model's own dtypes."""
ExpectedOutputs = str | os.PathLike[str] | Sequence[Mapping[str, Value]]
"""An ``.npz``, or one mapping of arrays a sample."""


@dataclass(frozen=True, kw_only=True)
class ParityRequest(Request):
    """The fields that the three requests share; the model is not part of them.

    Attributes:
        inputs: samples, or where to read them from (`onnx_bridge.samples.files`); None generates them.
        seed: of generated samples.
        samples: how many to generate (default: 1), or to take of those given (default: all).
        rtol: relative tolerance of floats; None goes by dtype.
        atol: absolute tolerance of floats; None goes by dtype and the size of the values.
        tolerance: the precision whose tolerances hold (`onnx_bridge.reference.comparison.tolerances.PRESETS`); None
            goes by dtype.
        conversion: how the model is converted, if it is no bundle; and the limits of MIGraphX's steps.
        as_target: ``gpu`` also rehearses the gpu target on ``ref``.

    Raises:
        InputError: ``as_target`` is unknown.
    """

    inputs: Data | None = None
    seed: int = 0
    samples: int | None = None
    rtol: float | None = None
    atol: float | None = None
    tolerance: str | None = None
    conversion: ConvertRequest = field(default_factory=ConvertRequest)
    as_target: Literal["gpu"] | None = None

    def __post_init__(self) -> None:
        if self.as_target not in (None, "gpu"):
            raise InputError(f"nothing can be rehearsed as on {self.as_target!r}", hint="there is only gpu")

    @property
    def limits(self) -> Limits:
        """The limits of each step of MIGraphX."""
        return Limits.of(self.conversion.timeout, self.conversion.memory)

    @property
    def generated_seed(self) -> int | None:
        """The seed, where samples are generated."""
        return self.seed if self.inputs is None else None

    @property
    def error_tolerances(self) -> Tolerances:
        """The tolerances of what MIGraphX computes."""
        return Tolerances(self.tolerance, PartialTolerance(self.rtol, self.atol))


@dataclass(frozen=True, kw_only=True)
class CheckRequest(ParityRequest):
    """How to compare a model or bundle with its reference.

    Attributes:
        reference: the original model of a bundle; None is the file that it was converted from.
        tolerances: by output; with ``layers``, by any value.
        layers: whether to compare every value of the cleaned model.
        layers_memory: limit in GiB of the values that this holds at a time.
        evidence: whether the report keeps outputs, graphs and error sketches.

    Raises:
        InputError: a tolerance is invalid.
    """

    reference: Path | None = None
    tolerances: Mapping[str, PartialTolerance] = field(default_factory=dict)
    layers: bool = False
    layers_memory: float = 1.0
    evidence: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        self.error_tolerances  # noqa: B018 — validates them

    @property
    def error_tolerances(self) -> Tolerances:
        """The tolerances of what MIGraphX computes."""
        return replace(super().error_tolerances, named=self.tolerances)


@dataclass(frozen=True, kw_only=True)
class BisectRequest(ParityRequest):
    """How to find the component, and the nodes, that make a model wrong.

    Attributes:
        reference: a correct model, from which the model was made by other means.
        outputs: the expected outputs of each sample.
        precision: the lower precision whose results are compared as well.
    """

    reference: ModelSource | None = None
    outputs: ExpectedOutputs | None = None
    precision: LowPrecision | None = None


@dataclass(frozen=True, kw_only=True)
class ReduceRequest(ParityRequest):
    """How to find the smallest model that is wrong on MIGraphX.

    Attributes:
        precision: what MIGraphX computes in; None is the model's own dtypes.
    """

    precision: LowPrecision | None = None
