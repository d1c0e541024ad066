"""What the verbs `check`, `bisect` and `reduce` are asked to do: one frozen dataclass a verb.

The functions of the API and the verbs of the command line build them; batches store them (`to_json`).
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Literal, Self

import onnx_ir as ir

from onnx_bridge.bundle.buckets import Buckets
from onnx_bridge.bundle.bundle import Bundle
from onnx_bridge.conversion.request import as_json
from onnx_bridge.core.errors import InputError
from onnx_bridge.core.values import Array, Value
from onnx_bridge.migraphx.limits import Limits
from onnx_bridge.reference.tolerances import Part, Tolerance, Tolerances
from onnx_bridge.samples.files import Given

ModelSource = str | os.PathLike[str] | ir.Model
Precision = Literal["fp16", "bf16", "int8", "fp8"]
"""What MIGraphX can be asked to compute in, instead of the model's own dtypes."""
Outputs = str | os.PathLike[str] | Sequence[Mapping[str, Value]]
"""Expected outputs: an ``.npz``, or one mapping of arrays a sample."""

_IN_MEMORY = ("model", "reference", "inputs", "outputs", "out")
"""The fields that can be stored only where they are paths."""


@dataclass(frozen=True, kw_only=True)
class ParityRequest:
    """The fields that the three requests share.

    Attributes:
        model: an ONNX file, a model in memory, or a bundle.
        inputs: samples, or where to read them from (`onnx_bridge.samples.files`); None generates them.
        seed: of generated samples.
        samples: how many to generate (default: 1), or to take of those given (default: all).
        rtol: relative tolerance of floats; None goes by dtype.
        atol: absolute tolerance of floats; None goes by dtype and the size of the values.
        tolerance: the precision whose tolerances hold (`onnx_bridge.reference.tolerances.PRESETS`); None goes by dtype.
        target: as for `onnx_bridge.convert`; ignored for a bundle, like all that follows but the limits.
        pipeline: likewise.
        dims: likewise.
        shapes: likewise.
        freeze: likewise; given inputs are without the frozen ones.
        cache: likewise.
        timeout: seconds that each step of MIGraphX may take.
        memory: GiB that MIGraphX's process may take.
    """

    model: ModelSource | Bundle | Buckets
    inputs: Given | None = None
    seed: int = 0
    samples: int | None = None
    rtol: float | None = None
    atol: float | None = None
    tolerance: str | None = None
    target: str = "auto"
    pipeline: str = "default"
    dims: Mapping[str, int] = field(default_factory=dict)
    shapes: Mapping[str, Sequence[int]] = field(default_factory=dict)
    freeze: Mapping[str, Array | str] = field(default_factory=dict)
    cache: bool = True
    timeout: float | None = None
    memory: float | None = None

    @property
    def limits(self) -> Limits:
        """The limits of each step of MIGraphX."""
        return Limits.of(self.timeout, self.memory)

    @property
    def generated_seed(self) -> int | None:
        """The seed, where samples are generated."""
        return self.seed if self.inputs is None else None

    @property
    def error_tolerances(self) -> Tolerances:
        """The tolerances of what MIGraphX computes."""
        return Tolerances(self.tolerance, Part(self.rtol, self.atol))

    def to_json(self) -> dict[str, Any]:
        """The fields as JSON values.

        Raises:
            InputError: a model, reference, inputs or outputs are in memory.
        """
        values = {each.name: getattr(self, each.name) for each in fields(self)}
        for name in _IN_MEMORY:
            value = values.get(name)
            if value is not None and not isinstance(value, (str, os.PathLike)):
                raise InputError(f"{name} in memory cannot be stored", where=type(self).__name__, hint="give a file")
            if name in values:
                values[name] = None if value is None else str(value)
        shapes = {name: list(shape) for name, shape in self.shapes.items()}
        return {**values, "dims": dict(self.dims), "shapes": shapes, "freeze": as_json(self.freeze)}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Self:
        """The request that `to_json` wrote."""
        paths = {name: Path(values[name]) for name in _IN_MEMORY if values.get(name) is not None}
        return cls(**{**values, **paths})


@dataclass(frozen=True, kw_only=True)
class CheckRequest(ParityRequest):
    """What `onnx_bridge.check` is asked to do.

    Attributes:
        reference: the original model of a bundle; None is the file that it was converted from.
        tolerances: by output; with ``layers``, by any value.
        layers: whether to compare every value of the cleaned model.
        layers_memory: GiB of values that this may hold at a time.
        evidence: whether the report keeps outputs, graphs and error histograms.
        as_target: ``gpu`` also runs on ``ref`` what a GPU would compute of quantization.
        host: as for `onnx_bridge.convert`.

    Raises:
        InputError: ``as_target`` is unknown, or a tolerance is invalid.
    """

    reference: str | os.PathLike[str] | None = None
    tolerances: Mapping[str, Tolerance | Part] = field(default_factory=dict)
    layers: bool = False
    layers_memory: float = 1.0
    evidence: bool = False
    as_target: Literal["gpu"] | None = None
    host: bool = True

    def __post_init__(self) -> None:
        if self.as_target not in (None, "gpu"):
            raise InputError(f"nothing can be computed as on {self.as_target!r}", hint="there is only gpu")
        self.error_tolerances  # noqa: B018 — validates them

    @property
    def error_tolerances(self) -> Tolerances:
        """The tolerances of what MIGraphX computes."""
        named = {name: Part(each.rtol, each.atol) for name, each in self.tolerances.items()}
        return replace(super().error_tolerances, named=named)

    def to_json(self) -> dict[str, Any]:
        """The fields as JSON values; raises like `ParityRequest.to_json`."""
        tolerances = {name: {"rtol": each.rtol, "atol": each.atol} for name, each in self.tolerances.items()}
        return {**super().to_json(), "tolerances": tolerances}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Self:
        """The request that `to_json` wrote."""
        tolerances = {name: Part(**each) for name, each in values.get("tolerances", {}).items()}
        return super().from_json({**values, "tolerances": tolerances})


@dataclass(frozen=True, kw_only=True)
class BisectRequest(ParityRequest):
    """What `onnx_bridge.bisect` is asked to do.

    Attributes:
        reference: a correct model, from which ``model`` was made by other means.
        outputs: the expected outputs of each sample.
        precision: the lower precision whose results are compared as well.
        host: whether nodes that MIGraphX cannot run are left to ONNX Runtime.
    """

    reference: ModelSource | None = None
    outputs: Outputs | None = None
    precision: Precision | None = None
    host: bool = True


@dataclass(frozen=True, kw_only=True)
class ReduceRequest(ParityRequest):
    """What `onnx_bridge.reduce` is asked to do.

    Attributes:
        out: the folder to write to.
        precision: what MIGraphX computes in; None is the model's own dtypes.
    """

    out: str | os.PathLike[str]
    precision: Precision | None = None
