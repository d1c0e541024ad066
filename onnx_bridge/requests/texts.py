"""Readers of the texts of options on the command line; each raises InputError for a text that it cannot read."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Sequence
from pathlib import Path

import passes
from onnx_bridge.core.errors import InputError, nearest
from onnx_bridge.core.files.regular_file import open_regular
from onnx_bridge.core.tolerance import PartialTolerance
from passes.pipelines import PIPELINES

_EXPRESSION = re.compile(r"(?=.*[A-Za-z_])[\w\s+*/()-]+")
"""Arithmetic with at least one symbol."""
_SHAPE = re.compile(r"(?P<name>.+)[:=]\s*(\[(?P<listed>[\d\s,]*)\]|(?P<sizes>\d+([x,]\s*\d+)*))\s*")
_BOOLEANS = {"false": "0", "true": "1"}
_UNITS = {"s": 1.0, "": 1.0, "ms": 1e-3, "m": 60.0, "min": 60.0, "h": 3600.0}


def complete_passes(incomplete: str) -> list[str]:
    """Return specifications of pipelines whose last name is completed."""
    return complete(*PIPELINES, *passes.names())(incomplete)


def complete(*values: str) -> Callable[[str], list[str]]:
    """Return a function that completes the last of values that are separated by commas."""

    def completed(incomplete: str) -> list[str]:
        before, comma, last = incomplete.rpartition(",")
        return [f"{before}{comma}{value}" for value in values if value.startswith(last)]

    return completed


def names(text: str) -> tuple[str, ...]:
    """Return the names in a text that separates them by commas."""
    return tuple(name.strip() for name in text.split(",") if name.strip())


def all_names(texts: Sequence[str]) -> tuple[str, ...]:
    """Return the names in several texts, ``A,B`` and ``C``."""
    return tuple(name for text in texts for name in names(text))


def is_size(text: str) -> bool:
    """Return whether a text is a size: a number of at most as many elements as a tensor may have."""
    from passes.graphs.limits import MAX_ELEMENTS  # deferred, since it waits for onnx

    return text.isascii() and text.isdecimal() and len(text) < 20 and int(text) <= MAX_ELEMENTS


def numbers_of(option: str, form: str, example: str, least: int = 0) -> Callable[[str], tuple[int, ...]]:
    """Return a function that reads at ``least`` so many whole numbers of an option; messages show ``form``."""

    def read(text: str) -> tuple[int, ...]:
        parts = names(text)
        if len(parts) < least or not all(map(is_size, parts)):
            raise InputError(f"{text!r} is not {form}", where=option, hint=f"for example {option} {example}")
        return tuple(map(int, parts))

    return read


def dims(texts: Sequence[str]) -> dict[str, int]:
    """Return sizes by dimension, of ``NAME=SIZE``."""
    sizes = {}
    for text in texts:
        name, _, size = text.rpartition("=")
        if not name or not is_size(size):
            raise InputError(f"{text!r} is not NAME=SIZE", where="--dim", hint="for example --dim batch=1")
        sizes[name] = int(size)
    return sizes


def shapes(texts: Sequence[str]) -> dict[str, tuple[int, ...]]:
    """Return shapes by input, of ``NAME:[1,3,8,8]``, or as other tools write it: ``NAME:1x3x8x8``, ``NAME=1,3,8,8``."""
    by_name = {}
    for text in texts:
        read = _SHAPE.fullmatch(text)
        parts = names(read["listed"] or (read["sizes"] or "").replace("x", ",")) if read else ()
        if read is None or not all(map(is_size, parts)):
            hint = "for example --shape x:[1,3,224,224]"
            raise InputError(f"{text!r} is not NAME:[SIZES]", where="--shape", hint=hint)
        by_name[read["name"]] = tuple(map(int, parts))
    return by_name


def buckets(texts: Sequence[str]) -> dict[str, tuple[int, ...] | str]:
    """Return sizes by dimension, of ``NAME=1,4,16``, or what it is tied to, as in ``total=past+1``.

    The values of a boolean input are sizes, too: ``NAME=false,true``.
    """
    by_name: dict[str, tuple[int, ...] | str] = {}
    for text in texts:
        tied, _, expression = text.partition("=")
        name, _, parts = text.rpartition("=")
        sizes = [_BOOLEANS.get(part.strip(), part.strip()) for part in parts.split(",")]
        if name and all(map(is_size, sizes)):
            by_name[name] = tuple(map(int, sizes))
        elif tied and _EXPRESSION.fullmatch(expression):
            by_name[tied] = expression.strip()
        else:
            hint = "for example --bucket batch=1,4,16"
            raise InputError(f"{text!r} is not NAME=SIZE,SIZE", where="--bucket", hint=hint)
    return by_name


def metrics(texts: Sequence[str]) -> dict[str, float]:
    """Return numbers by metric, of ``METRIC=VALUE``."""
    by_name = {}
    for text in texts:
        name, _, value = text.rpartition("=")
        try:
            by_name[name] = float(value)
        except ValueError:
            name = ""
        if not name:
            raise InputError(f"{text!r} is not METRIC=VALUE", where="--min", hint="for example --min top1=0.99")
    return by_name


def values_of(option: str, example: str) -> Callable[[Sequence[str]], dict[str, str]]:
    """Return a function that reads the values by input of an option, of ``NAME=VALUE`` or ``NAME=@SAMPLE.npz``."""

    def read(texts: Sequence[str]) -> dict[str, str]:
        by_name = {}
        for text in texts:
            name, equals, value = text.partition("=")
            if not name or not equals:
                raise InputError(f"{text!r} is not NAME=VALUE", where=option, hint=f"for example {option} {example}")
            by_name[name] = _from_sample(name, Path(value[1:])) if value.startswith("@") else value
        return by_name

    return read


def _from_sample(name: str, path: Path) -> str:
    """Return the array of a name in an .npz, as JSON."""
    from passes.isolation.numpy_files import read_npz  # deferred, since it waits for numpy

    members = []

    def expected(member: str) -> int | None:
        members.append(member)
        return 0 if member == name else None

    try:
        with open_regular(path) as opened:
            arrays = read_npz(opened, str(path), expected, spare=2**24)  # JSON takes many times as much
    except OSError as error:
        raise InputError(f"the file cannot be read: {error}", where=str(path)) from None
    if name not in arrays:
        hint = nearest(name, members) or f"there are {', '.join(members)}"
        raise InputError(f"the file has no array {name}", where=str(path), hint=hint)
    try:
        return json.dumps(arrays[name].tolist())
    except (TypeError, ValueError) as error:
        raise InputError(f"array {name}: {error}", where=str(path)) from None


def compile_options(texts: Sequence[str]) -> dict[str, str]:
    """Return values by option of MIGraphX's compiler, of ``NAME=VALUE``."""
    by_name = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not name or not equals:
            hint = "for example --option fast_math=false"
            raise InputError(f"{text!r} is not NAME=VALUE", where="--option", hint=hint)
        by_name[name.strip().replace("-", "_")] = value.strip()
    return by_name


def open_dimensions(texts: Sequence[str]) -> dict[str, dict[int, str]]:
    """Return the names of open dimensions by input and axis, of ``INPUT.AXIS=NAME``."""
    by_input: dict[str, dict[int, str]] = {}
    for text in texts:
        place, _, symbol = text.partition("=")
        name, _, axis = place.rpartition(".")
        if not name or not symbol or not axis.lstrip("-").isdecimal():
            what = f"{text!r} is not INPUT.AXIS=NAME"
            raise InputError(what, where="--dynamic", hint="for example --dynamic input_ids.0=batch")
        by_input.setdefault(name, {})[int(axis)] = symbol
    return by_input


def decoder(text: str) -> bool:
    """Return whether a model is a decoder, of ``decoder``."""
    if text != "decoder":
        raise InputError("the kind of model does not exist", where=f"--as {text}", hint="there is decoder")
    return True


def seconds(text: str) -> float:
    """Return seconds, of ``90s``, ``10m`` or ``2h``."""
    number = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([a-z]*)\s*", text)
    if number is None or number[2] not in _UNITS:
        raise InputError(f"{text!r} is not a time", where="--budget", hint="for example --budget 10m")
    return float(number[1]) * _UNITS[number[2]]


def share(text: str) -> float:
    """Return a share, of ``5%`` or ``0.05``."""
    number = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*(%?)\s*", text)
    if number is None:
        raise InputError(f"{text!r} is not a share", where="--max-slowdown", hint="for example --max-slowdown 5%")
    return float(number[1]) / (100 if number[2] else 1)


def parse_tolerance(text: str) -> tuple[str, PartialTolerance]:
    """Parse ``NAME:rtol=1e-3,atol=1e-4``, of which one part may be left out; raises InputError for another form."""
    name, colon, parts = text.rpartition(":")  # names may have colons of their own
    given: dict[str, float] = {}
    for part in parts.split(","):
        key, _, number = part.strip().partition("=")
        try:
            value = float(number)
        except ValueError:
            value = math.nan
        if not colon or not name or key not in ("rtol", "atol") or key in given or not 0 <= value < math.inf:
            what = f"{text!r} is not NAME:rtol=NUMBER,atol=NUMBER"
            raise InputError(what, where="--tol", hint="for example --tol logits:rtol=1e-3,atol=1e-4")
        given[key] = value
    return name, PartialTolerance(**given)
