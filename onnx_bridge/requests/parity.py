"""The requests of `check`, `bisect` and `reduce`."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, TypeAlias

from onnx_bridge.core.errors import InputError
from onnx_bridge.core.tolerance import PartialTolerance
from onnx_bridge.requests import texts
from onnx_bridge.requests.conversion import ConvertRequest
from onnx_bridge.requests.request import Data, ModelSource, Needs, Option, Part, Request, fields_of

if TYPE_CHECKING:  # the command line shows the help of a verb without numpy and onnx
    from onnx_bridge.core.values import Value
    from onnx_bridge.reference.comparison.tolerances import Tolerances
    from onnx_bridge.samples.dataset import DataSource

LowPrecision = Literal["fp16", "bf16", "int8", "fp8"]
"""The precisions in which MIGraphX can compute, instead of the model's own dtypes."""
ExpectedOutputs: TypeAlias = "str | os.PathLike[str] | Sequence[Mapping[str, Value]]"
"""An ``.npz``, or a mapping of arrays for each sample."""
if TYPE_CHECKING:
    Reference = ModelSource
    Expected = ExpectedOutputs
    Dataset = DataSource
else:
    Reference = Annotated[Path, "ModelSource"]
    Expected = Annotated[Path, "ExpectedOutputs"]
    Dataset = Annotated[Path, "DataSource"]
"""JSON, and the command line, have a path instead, as for `Data`."""
_OF_CONVERSION = (
    *(
        "pipeline",
        "dims",
        "dim_default",
        "shapes",
        "freeze",
        "target",
        "application",
        "cache",
        "timeout",
        "memory",
        "runtime",
    ),
)
NAMED_TOLERANCES = Option(
    "Tolerance of one output (with layers: of any value); repeatable.",
    "--tol",
    "NAME:rtol=R,atol=A",
    lambda given: dict(map(texts.parse_tolerance, given)),
    many=True,
    api="Mapping[str, Tolerance | PartialTolerance]",
)
_PRECISION = Option("Precision that MIGraphX computes in: fp16, bf16, int8 or fp8; default: the model's own dtypes.")


@dataclass(frozen=True, kw_only=True)
class ComparisonRequest(Request):
    """The options of verbs that compare a model with its reference, without the model.

    Attributes:
        tolerance: the precision whose tolerances hold (`onnx_bridge.reference.comparison.tolerances.PRESETS`); None
            goes by dtype.
        conversion: how the model is converted if it is not a bundle; and the limits of MIGraphX's steps.
    """

    inputs: Annotated[
        Data | None,
        Option(
            "Inputs: an .npz, a folder of .pb, a Polygraphy .json or loader script; default: generated ones.",
            metavar="FILE|DIR|SCRIPT.py[:FUNCTION]",
        ),
    ] = None
    seed: Annotated[int, Option("Seed of the generated inputs.", minimum=0, needs=Needs("inputs", absent=True))] = 0
    samples: Annotated[
        int | None,
        Option("Number of samples to generate (1), or to take of the given ones (all).", metavar="N", minimum=1),
    ] = None
    rtol: Annotated[
        float | None, Option("Relative tolerance, instead of the dtype's own.", metavar="R", minimum=0.0, panel="Proof")
    ] = None
    atol: Annotated[
        float | None, Option("Absolute tolerance, instead of the dtype's own.", metavar="A", minimum=0.0, panel="Proof")
    ] = None
    tolerance: str | None = None
    conversion: Annotated[ConvertRequest, Part("host", *_OF_CONVERSION)] = field(default_factory=ConvertRequest)

    @property
    def generated_seed(self) -> int | None:
        """The seed, if samples are generated."""
        return self.seed if self.inputs is None else None

    @property
    def error_tolerances(self) -> Tolerances:
        """The tolerances of what MIGraphX computes."""
        from onnx_bridge.reference.comparison.tolerances import Tolerances

        return Tolerances(self.tolerance, PartialTolerance(self.rtol, self.atol))


@dataclass(frozen=True, kw_only=True)
class ParityRequest(ComparisonRequest):
    """The options of `check`, `bisect` and `reduce`. If the gpu target is rehearsed, the target ``auto`` is ``ref``."""

    rehearse: Annotated[
        Literal["gpu"] | None,
        Option("Also rehearse the gpu target on ref: its passes that need no GPU, and no kernels.", metavar="gpu"),
    ] = None

    @property
    def rehearsed(self) -> str | None:
        """The target to rehearse after the cleaned model on ``ref``; None for none."""
        return self.conversion.rehearsed or self.rehearse

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.rehearse is not None and self.conversion.target == "auto":
            object.__setattr__(self, "conversion", replace(self.conversion, target="ref"))


@dataclass(frozen=True, kw_only=True)
class CheckRequest(ParityRequest):
    """The request to compare a model or bundle with its reference.

    Attributes:
        evidence: whether the report keeps outputs, graphs and error sketches.

    Raises:
        InputError: a tolerance is invalid.
    """

    reference: Annotated[Path | None, Option("The original of a bundle, if it has moved.", metavar="MODEL")] = None
    tolerance: Annotated[
        str | None,
        Option(
            "Precision whose tolerances hold: float32, fp16, bf16, int8 or fp8.",
            metavar="PRECISION",
        ),
    ] = None
    tolerances: Annotated[Mapping[str, PartialTolerance], NAMED_TOLERANCES] = field(default_factory=dict)
    layers: Annotated[bool, Option("Compare every value of the model, and name the first that differs.")] = False
    layers_memory: Annotated[
        float,
        Option("Memory limit of the values compared at a time.", metavar="GiB", above=0.0, needs=Needs("layers")),
    ] = 1.0
    fresh: Annotated[bool, Option("Run again what was run on the same inputs before.")] = False
    evidence: Annotated[
        bool, Option("Keep all outputs, the graphs before and after, and a sketch of each layer.", cli=False)
    ] = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if any(part is not None for part in (self.tolerance, self.rtol, self.atol, *self.tolerances)):
            self.error_tolerances  # noqa: B018 — validates them

    @property
    def error_tolerances(self) -> Tolerances:
        """The tolerances of what MIGraphX computes."""
        named = {name: PartialTolerance(given.rtol, given.atol) for name, given in self.tolerances.items()}
        return replace(super().error_tolerances, named=named)


@dataclass(frozen=True, kw_only=True)
class DataRequest(CheckRequest):
    """The request to measure metrics of a model or bundle over a dataset, instead of comparing outputs.

    Raises:
        InputError: metrics are asked for without a dataset, or an option has no meaning with one.
    """

    data: Annotated[
        Dataset | None,
        Option("A dataset to measure metrics on, instead; of a language model, a text.", metavar="DIR|FILE|SCRIPT.py"),
    ] = None
    metrics: Annotated[
        tuple[str, ...], Option("With data: top1, top5, cosine, sqnr, iou, perplexity.", "--metric", "A,B", texts.names)
    ] = ()
    least: Annotated[
        Mapping[str, float],
        Option(
            "Least value of a metric (the largest of perplexity), else exit code 1; repeatable.",
            "--min",
            "METRIC=VALUE",
            texts.metrics,
            many=True,
        ),
    ] = field(default_factory=dict)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.data is None and (self.metrics or self.least):
            raise InputError("metrics are measured on a dataset", where="metrics", hint="name one with `data`")
        if self.data is not None:
            kept = {"data", "metrics", "least", "reference", "samples", "rehearse", "conversion", "evidence", "fresh"}
            others = [field for field in fields_of(DataRequest) if not field.path and field.name not in kept]
            if given := [f"`{field.name}`" for field in others if getattr(self, field.name) != field.default]:
                what = f"on a dataset metrics are measured, for which {' and '.join(given)} mean nothing"
                raise InputError(what, where="data", hint="`least` says what a metric must reach")


@dataclass(frozen=True, kw_only=True)
class BisectRequest(ParityRequest):
    """The request to find the component, and the nodes, that make a model wrong."""

    reference: Annotated[Reference | None, Option("A correct model, from which this one was made.", metavar="ONNX")] = (
        None
    )
    outputs: Annotated[
        Expected | None, Option("The expected outputs, from PyTorch for example.", metavar="FILE.npz")
    ] = None
    precision: Annotated[LowPrecision | None, _PRECISION] = None


@dataclass(frozen=True, kw_only=True)
class ReduceRequest(ParityRequest):
    """The request to find the smallest model that is wrong on MIGraphX."""

    precision: Annotated[LowPrecision | None, _PRECISION] = None
    conversion: Annotated[ConvertRequest, Part(*_OF_CONVERSION)] = field(default_factory=ConvertRequest)
