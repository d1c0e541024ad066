"""Options that several verbs of the command line have, and how their texts are read."""

from __future__ import annotations

import enum
import functools
import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

import passes
from onnx_bridge.core.files.regular_file import open_regular
from onnx_bridge.migraphx.kinds import KINDS, VARIABLE
from passes.core.errors import InputError, nearest
from passes.graphs.limits import MAX_ELEMENTS
from passes.isolation.limits import MAX_GIBIBYTES, MAX_SECONDS
from passes.isolation.numpy_files import read_npz
from passes.pipelines import PIPELINES


def _output_file(path: Path | None) -> Path | None:
    """The path of a file to write; raises InputError where its folder is missing, before there is work to lose."""
    if path is not None and not path.parent.is_dir():
        raise InputError("it cannot be written: its folder does not exist", where=str(path), hint="make the folder")
    return path


OutputFile = functools.partial(typer.Option, callback=_output_file)
"""An option that names a file to write."""


Model = Annotated[Path, typer.Argument(metavar="MODEL", help="An ONNX file.", show_default=False)]
ModelOrBundle = Annotated[
    Path, typer.Argument(metavar="MODEL|BUNDLE", help="An ONNX file, or what `convert` wrote.", show_default=False)
]
HtmlReport = Annotated[
    Path | None,
    OutputFile("--report", metavar="OUT.html", help="Write a page that a browser shows, offline."),
]
Inputs = Annotated[
    Path | None,
    typer.Option(
        "--inputs",
        metavar="FILE|DIR|SCRIPT.py[:FUNCTION]",
        help="Inputs: an .npz, a folder of .pb, a Polygraphy .json or loader script.",
    ),
]


def complete_passes(incomplete: str) -> list[str]:
    """Specifications of pipelines whose last name is completed."""
    before, comma, last = incomplete.rpartition(",")
    return [f"{before}{comma}{name}" for name in (*PIPELINES, *passes.names()) if name.startswith(last)]


Pipeline = Annotated[
    str,
    typer.Option(
        "--pipeline",
        metavar="SPEC",
        help="Passes, as 'a,b{option=value}', or a pipeline's name.",
        autocompletion=complete_passes,
    ),
]
Dims = Annotated[
    list[str] | None, typer.Option("--dim", metavar="NAME=SIZE", help="Size of a symbolic dimension; repeatable.")
]
Shapes = Annotated[
    list[str] | None,
    typer.Option("--shape", metavar="NAME:[2,3,224,224]", help="Whole shape of an input; repeatable."),
]
Target = Annotated[str, typer.Option(help="gpu, ref (any CPU), or auto: gpu where there is one.")]
Freeze = Annotated[
    list[str] | None,
    typer.Option("--freeze", metavar="NAME=VALUE", help="Make an input constant: JSON, or @SAMPLE.npz; repeatable."),
]
Host = Annotated[
    bool, typer.Option("--host/--no-host", help="Whether ONNX Runtime may run what MIGraphX cannot; if not, an error.")
]
Cache = Annotated[bool, typer.Option("--cache/--no-cache", help="Whether to use verdicts of earlier runs.")]
ProbeBudget = Annotated[
    float | None,
    typer.Option(
        metavar="S",
        min=0.0,
        help="Estimated seconds, in all, for comparing large nodes at real size; the others have small witnesses.",
    ),
]
Precision = Annotated[
    str, typer.Option("--precision", metavar="P", help="What to compute in: fp32, fp16, bf16, int8 or fp8.")
]


class _LowPrecision(enum.Enum):
    """What MIGraphX can be asked to compute in."""

    fp16 = "fp16"
    bf16 = "bf16"
    int8 = "int8"
    fp8 = "fp8"


class _AsTarget(enum.Enum):
    """Targets that can be rehearsed on ref."""

    gpu = "gpu"


AsTarget = Annotated[
    _AsTarget | None,
    typer.Option("--as", help="Also rehearse the gpu target on ref: its passes that need no GPU, and no kernels."),
]
LowPrecision = Annotated[
    _LowPrecision | None,
    typer.Option("--precision", help="What MIGraphX computes in; default: the model's own."),
]
Calibration = Annotated[
    Path | None,
    typer.Option(
        "--calibration",
        metavar="DATA",
        help="For int8 and fp8: an .npz, .npy, folder of images or .pb, or loader script; else made-up data.",
    ),
]
Keep = Annotated[
    list[str] | None,
    typer.Option("--keep-fp32", metavar="OP|NODE", help="An operator or node that stays in float32; repeatable."),
]
Options = Annotated[
    list[str] | None,
    typer.Option("--option", metavar="NAME=VALUE", help="Of compiling, as exhaustive_tune=true; repeatable."),
]
Buckets = Annotated[
    list[str] | None,
    typer.Option(
        "--bucket",
        metavar="NAME=1,4,16",
        help="Sizes of a dimension, a program for each, or what it is tied to, as total=past+1; repeatable.",
    ),
]
PadBefore = Annotated[
    list[str] | None,
    typer.Option("--pad-before", metavar="NAME", help="A dimension that is padded at its start; repeatable."),
]
Pad = Annotated[
    list[str] | None,
    typer.Option("--pad", metavar="NAME=VALUE", help="What fills an input up to its bucket: a number (0) or edge."),
]
_EXPRESSION = re.compile(r"(?=.*[A-Za-z_])[\w\s+*/()-]+")
"""Arithmetic with at least one symbol."""
As = Annotated[
    str | None,
    typer.Option("--as", metavar="decoder", help="What the model is: a language model that generates token by token."),
]
MaxLength = Annotated[
    int | None, typer.Option(metavar="N", min=2, help="Of --as decoder: the most tokens of a text, prompt included.")
]
Prefill = Annotated[
    str, typer.Option(metavar="16,64", help="Of --as decoder: how many tokens of a prompt programs take at a time.")
]
Seed = Annotated[int, typer.Option(min=0, help="Seed of the generated inputs.")]
Samples = Annotated[
    int | None, typer.Option(min=1, help="How many samples to generate (1), or to take of the given ones (all).")
]
Rtol = Annotated[float | None, typer.Option(min=0.0, help="Relative tolerance, instead of the dtype's own.")]
Atol = Annotated[float | None, typer.Option(min=0.0, help="Absolute tolerance, instead of the dtype's own.")]


def _use(name: str | None) -> str | None:
    """Choose the runtime of this process, and of all that it starts."""
    if name is not None:
        os.environ[VARIABLE] = name if name in KINDS else str(Path(name).expanduser().absolute())
    return name


Runtime = Annotated[
    str | None,
    typer.Option(
        "--runtime",
        metavar="PATH|KIND",
        callback=_use,
        help=f"Which MIGraphX: a path, or {', '.join(KINDS)}; default: {VARIABLE}, or what `runtime list` shows.",
    ),
]
Timeout = Annotated[
    float | None, typer.Option(metavar="S", min=0.001, max=MAX_SECONDS, help="Most seconds for each step of a runtime.")
]
Memory = Annotated[
    float | None,
    typer.Option(metavar="GiB", min=0.001, max=MAX_GIBIBYTES, help="Most memory of a runtime's process."),
]


def again(**given: object) -> Iterator[str]:
    """The options of a command as they were given, for another one; those without a value are left out."""
    for name, value in given.items():
        for each in value if isinstance(value, list) else [value] if value is not None else []:
            yield from (f"--{name.replace('_', '-')}", str(each))


def names(text: str) -> tuple[str, ...]:
    """Names separated by commas."""
    return tuple(each.strip() for each in text.split(",") if each.strip())


def dims(texts: list[str] | None) -> dict[str, int]:
    """Sizes by dimension, of ``NAME=SIZE``; raises InputError."""
    found = {}
    for text in texts or ():
        name, _, size = text.rpartition("=")
        if not name or not is_size(size):
            raise InputError(f"{text!r} is not NAME=SIZE", where="--dim", hint="for example --dim batch=1")
        found[name] = int(size)
    return found


def is_size(text: str) -> bool:
    """Whether a text is a size: a number of at most as many elements as a tensor may have."""
    return text.isascii() and text.isdecimal() and len(text) < 20 and int(text) <= MAX_ELEMENTS


def numbers(texts: list[str] | None) -> dict[str, float]:
    """Numbers by metric, of ``METRIC=VALUE``; raises InputError."""
    found = {}
    for text in texts or ():
        name, _, value = text.rpartition("=")
        try:
            found[name] = float(value)
        except ValueError:
            name = ""
        if not name:
            raise InputError(f"{text!r} is not METRIC=VALUE", where="--min", hint="for example --min top1=0.99")
    return found


_BOOLEANS = {"false": "0", "true": "1"}


def sizes(texts: list[str] | None) -> dict[str, tuple[int, ...]]:
    """Sizes by dimension, ``NAME=1,4,16``, or values of a boolean input, ``NAME=false,true``; raises InputError."""
    found = {}
    for text in texts or ():
        name, _, parts = text.rpartition("=")
        each = [_BOOLEANS.get(part.strip(), part.strip()) for part in parts.split(",")]
        if not name or not all(map(is_size, each)):
            hint = "for example --bucket batch=1,4,16"
            raise InputError(f"{text!r} is not NAME=SIZE,SIZE", where="--bucket", hint=hint)
        found[name] = tuple(map(int, each))
    return found


def ties(texts: list[str] | None) -> tuple[list[str], dict[str, str]]:
    """The texts that give sizes to dimensions, and the expressions of those that tie them to others."""
    tied = {}
    listed = []
    for text in texts or ():
        name, _, expression = text.partition("=")
        if name and _EXPRESSION.fullmatch(expression):
            tied[name] = expression.strip()
        else:
            listed.append(text)
    return listed, tied


def values(texts: list[str] | None, option: str = "--freeze", example: str = "k=[5]") -> dict[str, str]:
    """Values by input, of ``NAME=VALUE``; raises InputError."""
    found = {}
    for text in texts or ():
        name, equals, value = text.partition("=")
        if not name or not equals:
            raise InputError(f"{text!r} is not NAME=VALUE", where=option, hint=f"for example {option} {example}")
        found[name] = _from_sample(name, Path(value[1:])) if value.startswith("@") else value
    return found


def _from_sample(name: str, path: Path) -> str:
    """The array of a name in an .npz, as JSON; raises InputError."""
    names = []

    def expected(each: str) -> int | None:
        names.append(each)
        return 0 if each == name else None

    try:
        with open_regular(path) as opened:
            arrays = read_npz(opened, str(path), expected, spare=2**24)  # JSON takes many times as much
    except OSError as error:
        raise InputError(f"it cannot be read: {error}", where=str(path)) from None
    if name not in arrays:
        hint = nearest(name, names) or f"there are {', '.join(names)}"
        raise InputError(f"it has no array {name}", where=str(path), hint=hint)
    try:
        return json.dumps(arrays[name].tolist())
    except (TypeError, ValueError) as error:
        raise InputError(f"array {name}: {error}", where=str(path)) from None


def shapes(texts: list[str] | None) -> dict[str, list[int]]:
    """Shapes by input, of ``NAME:[SIZES]``; raises InputError."""
    found = {}
    for text in texts or ():
        name, _, sizes = text.rpartition(":")
        parts = [each.strip() for each in sizes.strip().removeprefix("[").removesuffix("]").split(",") if each.strip()]
        if not name or not all(map(is_size, parts)):
            hint = "for example --shape x:[1,3,224,224]"
            raise InputError(f"{text!r} is not NAME:[SIZES]", where="--shape", hint=hint)
        found[name] = [int(each) for each in parts]
    return found
