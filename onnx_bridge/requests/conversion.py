"""The requests of `clean`, `doctor` and `convert`, and the limits of verbs that run foreign code."""

from __future__ import annotations

import functools
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Literal

from onnx_bridge.core.errors import InputError, nearest
from onnx_bridge.migraphx.architectures import ARCHITECTURES, named_architecture
from onnx_bridge.migraphx.kinds import KINDS, VARIABLE
from onnx_bridge.requests import texts
from onnx_bridge.requests.request import Data, Needs, Option, Part, Request
from onnx_bridge.requests.schemes import SCHEMES
from passes.isolation.limits import Limits

Dims = Mapping[str, int]
Shapes = Mapping[str, tuple[int, ...]]
PRECISIONS = ("fp32", "fp16", "bf16", "int8", "fp8")
"""The precisions, from wide to narrow."""
BY_CALIBRATION = ("int8", "fp8")
"""The precisions that are quantized on calibration samples."""
Prove = Literal["auto", "always", "never"]
"""When a conversion runs its bundle against the reference: within a budget of time, always, or never."""
PROVE_BUDGET = 30.0
"""The default of `ConvertRequest.prove_budget`, in seconds."""

_runtime = functools.partial(Option, panel="Runtime")
_target = functools.partial(Option, panel="Target")
_model = functools.partial(Option, panel="Model")
_precision = functools.partial(Option, panel="Precision")
_proof = functools.partial(Option, panel="Proof")
_bucket = functools.partial(Option, panel="Sizes that vary")
_decoder = functools.partial(Option, panel="Language models")

Runtime = Annotated[
    str | None,
    _runtime(
        f"MIGraphX to use: a path, or {', '.join(KINDS)}; default: {VARIABLE}, or what `runtime list` shows.",
        metavar="PATH|KIND",
    ),
]


@dataclass(frozen=True, kw_only=True)
class LimitsRequest(Request):
    """The limits of what runs in processes of its own."""

    timeout: Annotated[
        float | None,
        _runtime("Limit in seconds for each step of MIGraphX, and each run of ONNX Runtime.", metavar="S", above=0.0),
    ] = None
    memory: Annotated[
        float | None, _runtime("Memory limit of MIGraphX's process, and of ONNX Runtime's.", metavar="GiB", above=0.0)
    ] = None

    @property
    def limits(self) -> Limits:
        """The same, as processes take them; raises InputError if one is out of range."""
        return Limits.of(self.timeout, self.memory)


@dataclass(frozen=True, kw_only=True)
class RuntimeRequest(LimitsRequest):
    """The limits of MIGraphX, and which one it is."""

    runtime: Runtime = None


@dataclass(frozen=True)
class VerifyRequest(Request):
    """The request to verify a bundle."""

    here: Annotated[bool, Option("Check that it can run here, too, or the files alone.", "--here/--files-only")] = True
    runtime: Runtime = None


@dataclass(frozen=True)
class _CleaningRequest(LimitsRequest):
    """The options of all that clean a model."""

    pipeline: Annotated[
        str,
        _model(
            "Passes, as 'a,b{option=value}', or a pipeline's name: default, minimal, none.",
            metavar="SPEC",
            complete=texts.complete_passes,
        ),
    ] = "default"
    dims: Annotated[
        Dims, _model("Size of a symbolic dimension; repeatable.", "--dim", "NAME=SIZE", texts.dims, many=True)
    ] = field(default_factory=dict)
    shapes: Annotated[
        Shapes, _model("Whole shape of an input; repeatable.", "--shape", "NAME:[2,3,224,224]", texts.shapes, many=True)
    ] = field(default_factory=dict)
    freeze: Annotated[
        Mapping[str, str],
        _model(
            "Make an input constant: JSON, or @SAMPLE.npz; repeatable.",
            "--freeze",
            "NAME=VALUE",
            texts.values_of("--freeze", "k=[5]"),
            many=True,
            api="Mapping[str, Array | str]",
        ),
    ] = field(default_factory=dict)


@dataclass(frozen=True)
class CleanRequest(_CleaningRequest):
    """The request to rewrite a model with passes.

    Attributes:
        asks: whether `dim_default` is for batches alone, and it is an error if another dimension is open.
    """

    dim_default: Annotated[
        int | None,
        _model(
            "Size of every dimension of an input that is still open; default: it stays open.", metavar="N", minimum=1
        ),
    ] = None
    verify: Annotated[
        Literal["none", "each"], Option("each: run the model on ONNX Runtime before and after each pass.")
    ] = "none"
    max_rewrites: Annotated[int | None, Option("Stop after so many rewrites.", metavar="N", minimum=0)] = None
    asks: bool = False


@dataclass(frozen=True)
class _PlannedRequest(_CleaningRequest, RuntimeRequest):
    """The options of what plans a conversion; ``gpu`` is rehearsed on a machine without a GPU."""

    dim_default: Annotated[
        int | None,
        _model(
            "Size of every dimension that is still open; default: 1 for a batch, else it is an error.",
            metavar="N",
            minimum=1,
        ),
    ] = None
    target: Annotated[
        str,
        _target(
            "Compile for gpu, ref (any CPU), auto: gpu if there is one; or gpu:gfx942, a GPU elsewhere.",
            metavar="TARGET",
            complete=texts.complete("auto", "ref", "gpu", *(f"gpu:{name}" for name in ARCHITECTURES)),
        ),
    ] = "auto"
    application: Annotated[
        Literal["onnxruntime"] | None,
        _target("Make a model for ONNX Runtime's MIGraphX provider, which is asked as well.", "--for"),
    ] = None
    host: Annotated[bool, _target("Let ONNX Runtime run what MIGraphX cannot, or raise an error.")] = True
    cache: Annotated[bool, _runtime("Use verdicts of earlier runs, or ask again.")] = True
    probe_budget: Annotated[
        float | None,
        _runtime(
            "Estimated seconds, in all, for comparing large nodes at real size (2); the others have small witnesses.",
            metavar="S",
            minimum=0.0,
        ),
    ] = None

    @property
    def cleaning(self) -> CleanRequest:
        """The request to clean the model, with a size for each dimension."""
        size, asks = self.dim_default or 1, self.dim_default is None
        return CleanRequest(
            self.pipeline, dims=self.dims, shapes=self.shapes, freeze=self.freeze, dim_default=size, asks=asks
        )

    @property
    def rehearsed(self) -> str | None:
        """The target to rehearse unless there is such a GPU; None for none. Raises InputError."""
        return None if named_architecture(self.target) is None else self.target


@dataclass(frozen=True)
class DoctorRequest(_PlannedRequest):
    """The request to examine a conversion; nothing is compiled but probes, unless the kernels of a GPU are counted."""

    compile_time: Annotated[
        bool,
        _target("Compile the whole for the GPU elsewhere, too, and count its kernels and what tuning would try."),
    ] = False


@dataclass(frozen=True)
class DecoderSizes:
    """The sizes of a decoder.

    Attributes:
        max_length: the size of the cache, which takes the prompt and all new tokens but the last.
        prefill: the numbers of tokens of a prompt that programs take at a time; there is always a program for one.

    Raises:
        InputError: the sizes contradict each other.
    """

    max_length: int
    prefill: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if self.max_length < 2:
            raise InputError(f"the size cannot be {self.max_length}", where="max_length", hint="give 2 or more")
        if self.prefill and not 0 < min(self.prefill) <= max(self.prefill) < self.max_length:
            what, hint = f"the sizes cannot be {list(self.prefill)}", f"give sizes from 1 to {self.max_length - 1}"
            raise InputError(what, where="prefill", hint=hint)


@dataclass(frozen=True)
class ConvertRequest(_PlannedRequest):
    """The request to convert a model, without the model and the place of the bundle.

    Attributes:
        ties: expressions for dimensions without buckets of their own, as ``{"total": "past + 1"}``: texts in `buckets`.

    Raises:
        InputError: an option is out of range, or an option that it requires is missing.
    """

    precision: Annotated[
        str, _precision("Compute in fp32, fp16, bf16, int8 or fp8.", metavar="P", complete=texts.complete(*PRECISIONS))
    ] = "fp32"
    calibration: Annotated[
        Data | None,
        _precision(
            "For int8 and fp8: an .npz, .npy, folder of images or .pb, or loader script; else made-up data.",
            metavar="DATA",
        ),
    ] = None
    keep_fp32: Annotated[
        tuple[str, ...],
        _precision("An operator or node that stays in float32; repeatable.", metavar="OP|NODE", parse=tuple, many=True),
    ] = ()
    options: Annotated[
        Mapping[str, bool | str],
        _target(
            "An option of MIGraphX's compiler, as exhaustive_tune=true; repeatable.",
            "--option",
            "NAME=VALUE",
            texts.compile_options,
            many=True,
        ),
    ] = field(default_factory=dict)
    rehearse: Annotated[
        Literal["gpu"] | None,
        _target("Rehearse the gpu target's passes, too, and rewrite what they get wrong.", metavar="gpu"),
    ] = None
    prove: Annotated[
        Prove,
        _proof("Run the bundle against the reference: within the budget, else by a witness; at real size; or not."),
    ] = "auto"
    prove_budget: Annotated[
        float,
        _proof(
            "Longest estimated run, in seconds, that --prove auto makes.",
            metavar="S",
            above=0.0,
            needs=Needs("prove", ("auto", "always")),
        ),
    ] = PROVE_BUDGET
    buckets: Annotated[
        Shapes,
        _bucket(
            "Sizes of a dimension, a program for each, or what it is tied to, as total=past+1; repeatable.",
            "--bucket",
            "NAME=1,4,16",
            texts.buckets,
            many=True,
            api="Mapping[str, Sequence[int] | str]",
        ),
    ] = field(default_factory=dict)
    ties: Mapping[str, str] = field(default_factory=dict)
    pad: Annotated[
        Mapping[str, str],
        _bucket(
            "Fill an input up to its bucket with a number (0) or its edge; repeatable.",
            "--pad",
            "NAME=VALUE",
            texts.values_of("--pad", "mask=0"),
            many=True,
            needs=Needs("buckets"),
        ),
    ] = field(default_factory=dict)
    pad_before: Annotated[
        tuple[str, ...],
        _bucket(
            "Pad a dimension at its start; repeatable.",
            metavar="NAME",
            parse=tuple,
            many=True,
            needs=Needs("buckets"),
        ),
    ] = ()
    decoder: Annotated[
        bool,
        _decoder("Convert a language model that generates token by token.", "--as", "decoder", texts.decoder),
    ] = False
    max_length: Annotated[
        int | None, _decoder("A decoder's cache: prompt, and new tokens but the last.", metavar="N", minimum=2)
    ] = None
    prefill: Annotated[
        tuple[int, ...],
        _decoder(
            "The numbers of a prompt's tokens that programs of a decoder take at a time.",
            "--prefill",
            "16,64",
            texts.numbers_of("--prefill", "SIZE,SIZE", "16,64"),
        ),
    ] = ()
    layout: Annotated[
        Literal["session", "triton"],
        _target("Beside the session's files, write a model repository of Triton.", needs=Needs("application")),
    ] = "session"
    reuse: Annotated[
        bool, Option("Whether to keep what is up to date of an earlier bundle in the same folder.", cli=False)
    ] = True

    def __post_init__(self) -> None:
        tied = {name: text for name, text in self.buckets.items() if isinstance(text, str)}
        if tied:
            object.__setattr__(self, "ties", {**self.ties, **tied})
            object.__setattr__(self, "buckets", {name: x for name, x in self.buckets.items() if name not in tied})
        super().__post_init__()
        if self.application is not None and self.precision in ("int8", "fp8"):
            what = f"for ONNX Runtime, {self.precision} has to be in the model"
            raise InputError(what, where="precision", hint="`onnx-bridge quantize` makes such a model; convert that")
        if self.max_length is not None or self.prefill:  # only a decoder has them
            object.__setattr__(self, "decoder", True)
        self.decoder_sizes  # noqa: B018 — validates them

    @property
    def rehearsed(self) -> str | None:
        return super().rehearsed or self.rehearse

    def quantizes_model(self, architecture: str | None) -> bool:
        """Return whether int8 or fp8 become nodes of the model, instead of MIGraphX's quantizer changing the program.

        That keeps no node in float32, and what it makes in fp8 does not compile for CDNA 3 (gfx94x).

        Args:
            architecture: the GPU's, if there is one.
        """
        named = named_architecture(self.target)
        cdna3 = (named.name if named else architecture or "").startswith("gfx94")
        return (self.precision == "fp8" and cdna3) or (self.precision in BY_CALIBRATION and bool(self.keep_fp32))

    @property
    def decoder_sizes(self) -> DecoderSizes | None:
        """The sizes of a decoder; None for other models."""
        return None if self.max_length is None else DecoderSizes(self.max_length, self.prefill)

    def to_json(self) -> dict[str, Any]:
        """Return the fields as JSON values; calibration samples in memory are left out."""
        on_disk = self.calibration is None or isinstance(self.calibration, (str, os.PathLike))
        return super(ConvertRequest, self if on_disk else replace(self, calibration=None)).to_json()


@dataclass(frozen=True, kw_only=True)
class RunRequest(RuntimeRequest):
    """The request to run a bundle, or a model, which is converted first.

    Attributes:
        conversion: the sizes of a model.
    """

    conversion: Annotated[ConvertRequest, Part("dims", "dim_default", "shapes", "freeze")] = field(
        default_factory=ConvertRequest
    )


def check_precision(name: str) -> None:
    """Raise InputError if a precision does not exist."""
    if name not in PRECISIONS:
        hint = nearest(name, PRECISIONS) or f"there are {', '.join(PRECISIONS)}"
        if scheme := next((scheme for scheme in SCHEMES if scheme.startswith(name)), None):
            hint = f"`onnx-bridge quantize --scheme {scheme}` makes such a model; convert that"
        raise InputError("the precision does not exist", where=f"precision {name!r}", hint=hint)
