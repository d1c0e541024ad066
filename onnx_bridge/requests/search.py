"""The requests of `bench`, `tune` and `mixed_precision`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

from onnx_bridge.core.errors import InputError
from onnx_bridge.core.tolerance import PartialTolerance
from onnx_bridge.requests import texts
from onnx_bridge.requests.conversion import PRECISIONS, ConvertRequest, check_precision
from onnx_bridge.requests.parity import NAMED_TOLERANCES, ComparisonRequest
from onnx_bridge.requests.request import Data, Needs, Option, Part, Request

CompileOptions = Mapping[str, bool | str]
_ON_MIGRAPHX = Needs("engines", ("migraphx",))


def _each_alone(given: Sequence[str]) -> tuple[CompileOptions, ...]:
    return ({}, *({name: value} for name, value in texts.compile_options(given).items()))


_BATCHES = texts.numbers_of("--batch", "a list of sizes", "1,2,4", least=1)


@dataclass(frozen=True)
class BenchRequest(Request):
    """The request to measure a model, without the model.

    Attributes:
        conversion: how to convert the model, apart from its precision.

    Raises:
        InputError: a value is out of range, or a precision does not exist.
    """

    batches: Annotated[
        tuple[int, ...], Option("Sizes of the batch dimension to measure.", "--batch", "1,2,4", _BATCHES)
    ] = ()
    precisions: Annotated[
        tuple[str, ...],
        Option(
            "Precisions that MIGraphX computes in.",
            "--precision",
            "P,…",
            texts.names,
            default="fp32",
            complete=texts.complete(*PRECISIONS),
        ),
    ] = ("fp32",)
    engines: Annotated[
        tuple[str, ...],
        Option(
            "Engines to measure: migraphx, ort, ort-migraphx, ort-rocm, torch, torch-compile; ratios are to the first.",
            metavar="E,…",
            parse=texts.names,
            default="migraphx,ort",
            complete=texts.complete("migraphx", "ort", "ort-migraphx", "ort-rocm", "torch", "torch-compile"),
        ),
    ] = ("migraphx", "ort")
    module: Annotated[
        str | None,
        Option(
            "For torch: the factory of the module of an ONNX file.",
            metavar="FACTORY",
            needs=Needs("engines", ("torch", "torch-compile")),
        ),
    ] = None
    inputs: Annotated[
        Data | None,
        Option(
            "File of the sample: an .npz, a folder of .pb, a Polygraphy .json or loader script.",
            metavar="FILE|DIR|SCRIPT.py[:FUNCTION]",
        ),
    ] = None
    iterations: Annotated[int, Option("Maximum number of rounds.", metavar="N", minimum=1)] = 50
    warmup: Annotated[int, Option("Calls before the measured ones.", metavar="N", minimum=0)] = 3
    seconds: Annotated[
        float | None,
        Option(
            "No round begins after this time, for each batch size, except for the first five.", metavar="S", minimum=0.0
        ),
    ] = None
    seed: Annotated[int, Option("Seed of the sample and of the order.")] = 0
    against: Annotated[Path | None, Option("Earlier results to compare with.", metavar="BASELINE.json")] = None
    max_slowdown: Annotated[
        float,
        Option(
            "Largest slowdown beside the baseline.",
            metavar="5%",
            parse=texts.share,
            default="5%",
            needs=Needs("against"),
        ),
    ] = 0.05
    per_operator: Annotated[bool, Option("Also measure MIGraphX's operators.", needs=_ON_MIGRAPHX)] = False
    conversion: Annotated[
        ConvertRequest,
        Part(
            *(
                "pipeline",
                "dims",
                "dim_default",
                "target",
                "calibration",
                "keep_fp32",
                "options",
                "timeout",
                "memory",
                "runtime",
            ),
            needs={
                **dict.fromkeys(("pipeline", "options"), _ON_MIGRAPHX),
                "calibration": Needs("precisions", ("int8", "fp8")),
                "keep_fp32": Needs("precisions", PRECISIONS[1:]),
            },
        ),
    ] = field(default_factory=ConvertRequest)

    def __post_init__(self) -> None:
        super().__post_init__()
        if any(size < 1 for size in self.batches) or len(set(self.batches)) < len(self.batches):
            what = f"invalid batch sizes {list(self.batches)}"
            raise InputError(what, where="batches", hint="as in 1,2,4,8, each once")
        if not 0 <= self.max_slowdown < 10:
            raise InputError(f"the share cannot be {self.max_slowdown:.0%}", where="max_slowdown", hint="as in 5%")
        if not self.precisions:
            raise InputError("nothing can be measured: no precision is named", where="precisions")
        for precision in self.precisions:
            check_precision(precision)


@dataclass(frozen=True)
class TuneRequest(Request):
    """The request to search for the fastest conversion, without the model and the job file.

    Attributes:
        conversion: the other options of the conversion; its ``buckets`` are all sizes that inputs have.

    Raises:
        InputError: a value is out of range, or a precision does not exist.
    """

    budget: Annotated[
        float,
        Option("Time to search, as in 90s, 10m, 2h.", metavar="TIME", parse=texts.seconds, default="10m", above=0.0),
    ] = 600.0
    precisions: Annotated[
        tuple[str, ...],
        Option(
            "Precisions to try; the others are compared with the first.",
            "--precision",
            "P,…",
            texts.names,
            default=",".join(PRECISIONS),
            complete=texts.complete(*PRECISIONS),
        ),
    ] = PRECISIONS
    options: Annotated[
        tuple[CompileOptions, ...] | None,
        Option(
            "An option of MIGraphX's compiler to try instead of the default ones; repeatable.",
            "--option",
            "NAME=VALUE",
            _each_alone,
            many=True,
        ),
    ] = None
    pipelines: Annotated[
        tuple[str, ...],
        Option(
            "A pipeline to try (default); repeatable.",
            "--pipeline",
            "SPEC",
            tuple,
            many=True,
            complete=texts.complete_passes,
        ),
    ] = ("default",)
    inputs: Annotated[
        Data | None,
        Option(
            "Samples for comparison and measurement: an .npz, a folder of .pb, a Polygraphy .json or loader script.",
            metavar="FILE|DIR|SCRIPT.py[:FUNCTION]",
        ),
    ] = None
    iterations: Annotated[int, Option("Rounds in which a trial is measured.", metavar="N", minimum=1)] = 20
    seed: Annotated[int, Option("Seed of samples and of the order.")] = 0
    resume: Annotated[bool, Option("Continue from the journal, or begin again.")] = True
    conversion: Annotated[
        ConvertRequest,
        Part(
            *("dims", "dim_default", "target", "host", "buckets", "pad", "calibration", "timeout", "memory", "runtime"),
            needs={"calibration": Needs("precisions", ("int8", "fp8"))},
        ),
    ] = field(default_factory=ConvertRequest)

    def __post_init__(self) -> None:
        super().__post_init__()
        for precision in self.precisions:
            check_precision(precision)
        if self.conversion.buckets and self.inputs is not None:
            what = "with buckets, inputs are generated for each size"
            raise InputError(what, where="inputs", hint="omit `inputs` or `buckets`")


@dataclass(frozen=True, kw_only=True)
class MixedPrecisionRequest(ComparisonRequest):
    """The request to search for nodes that must stay in float32, without the model.

    Raises:
        InputError: the precision of the conversion is fp32, or unknown.
    """

    tolerances: Annotated[Mapping[str, PartialTolerance], NAMED_TOLERANCES] = field(default_factory=dict)
    runs: Annotated[int, Option("The most conversions to try.", metavar="N", minimum=1)] = 30
    conversion: Annotated[
        ConvertRequest,
        Part(
            "precision",
            "pipeline",
            "dims",
            "dim_default",
            "target",
            "host",
            "calibration",
            "timeout",
            "memory",
            "runtime",
        ),
    ] = field(default_factory=lambda: ConvertRequest(precision="fp16"))

    def __post_init__(self) -> None:
        super().__post_init__()
        check_precision(self.conversion.precision)
        if self.conversion.precision == "fp32":
            raise InputError("all is in float32", where="precision 'fp32'", hint="there are fp16, bf16, int8 and fp8")
