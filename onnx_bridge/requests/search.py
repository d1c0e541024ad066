"""What the verbs `bench`, `tune` and `mixed_precision` are asked to do: one frozen dataclass a verb."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from onnx_bridge.core.errors import InputError
from onnx_bridge.reference.comparison.tolerances import PartialTolerance
from onnx_bridge.requests.conversion import PRECISIONS, ConvertRequest, check_precision
from onnx_bridge.requests.parity import ParityRequest
from onnx_bridge.requests.request import Data, Request

CompileOptions = Mapping[str, bool | str]


@dataclass(frozen=True)
class BenchRequest(Request):
    """What to measure; which model is not part of it.

    Attributes:
        batches: sizes of the batch dimension; empty leaves it alone.
        precisions: what MIGraphX computes in.
        engines: names of engines (`onnx_bridge.benchmark.engines.ENGINES`).
        module: the factory of the PyTorch module, for the engines ``torch`` and ``torch-compile``.
        inputs: where to read the sample from; None generates one.
        iterations: the maximum number of rounds.
        warmup: the number of calls before the measured ones.
        seconds: no round begins after this time; None is no limit.
        seed: of the sample and of the order of the engines.
        against: the JSON of an earlier benchmark, to compare with.
        max_slowdown: the share by which it may be slower than that.
        per_operator: whether to measure MIGraphX's operators as well.
        conversion: how to convert the model, apart from its precision.

    Raises:
        InputError: a value is out of range, or there is no such precision.
    """

    batches: tuple[int, ...] = ()
    precisions: tuple[str, ...] = ("fp32",)
    engines: tuple[str, ...] = ("migraphx", "ort")
    module: str | None = None
    inputs: Data | None = None
    iterations: int = 50
    warmup: int = 3
    seconds: float | None = None
    seed: int = 0
    against: Path | None = None
    max_slowdown: float = 0.05
    per_operator: bool = False
    conversion: ConvertRequest = field(default_factory=ConvertRequest)

    def __post_init__(self) -> None:
        if any(each < 1 for each in self.batches) or len(set(self.batches)) < len(self.batches):
            what = f"invalid batch sizes {list(self.batches)}"
            raise InputError(what, where="batch", hint="as in 1,2,4,8, each once")
        if self.iterations < 1 or self.warmup < 0:
            raise InputError("it needs at least 1 iteration, and at least 0 warmup calls", where="iterations")
        if not 0 <= self.max_slowdown < 10:
            raise InputError(f"it cannot be {self.max_slowdown:.0%}", where="max-slowdown", hint="as in 5%")
        if not self.precisions:
            raise InputError("there is nothing to measure: no precision is named", where="precisions")
        for each in self.precisions:
            check_precision(each)


@dataclass(frozen=True)
class TuneRequest(Request):
    """What to search; which model, and the job file to write, are not part of it.

    Attributes:
        budget: of time, in seconds.
        precisions: to try; the others are compared with the first one.
        options: sets of compile options to try; None tries those that matter on the target.
        pipelines: to try.
        inputs: samples for comparison and measurement; None generates them.
        iterations: rounds in which a trial is measured.
        seed: of samples and of the order of measurements.
        resume: whether to continue from the journal.
        conversion: how to convert the model otherwise; its ``buckets`` are all sizes that inputs have.

    Raises:
        InputError: a value is out of range, or there is no such precision.
    """

    budget: float = 600.0
    precisions: tuple[str, ...] = PRECISIONS
    options: tuple[CompileOptions, ...] | None = None
    pipelines: tuple[str, ...] = ("default",)
    inputs: Data | None = None
    iterations: int = 20
    seed: int = 0
    resume: bool = True
    conversion: ConvertRequest = field(default_factory=ConvertRequest)

    def __post_init__(self) -> None:
        for name in ("budget", "iterations"):
            if getattr(self, name) <= 0:
                raise InputError("it must be more than 0", where=name)
        for each in self.precisions:
            check_precision(each)
        if self.conversion.buckets and self.inputs is not None:
            what = "with buckets, inputs are generated for each size"
            raise InputError(what, where="inputs", hint="omit inputs or buckets")


@dataclass(frozen=True, kw_only=True)
class MixedPrecisionRequest(ParityRequest):
    """Which precision to search in, and how to compare; which model is not part of it.

    Attributes:
        tolerances: by output; the others are those of the precision.

    Raises:
        InputError: the precision of the conversion is fp32, or unknown.
    """

    tolerances: Mapping[str, PartialTolerance] = field(default_factory=dict)
    conversion: ConvertRequest = field(default_factory=lambda: ConvertRequest(precision="fp16"))

    def __post_init__(self) -> None:
        check_precision(self.conversion.precision)
        if self.conversion.precision == "fp32":
            raise InputError("all is in float32", where="precision 'fp32'", hint="there are fp16, bf16, int8 and fp8")
