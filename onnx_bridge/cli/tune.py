"""The verb ``tune``."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated

import typer

from onnx_bridge.cli.options import (
    Buckets,
    Calibration,
    Dims,
    Host,
    Inputs,
    Memory,
    Model,
    OutputFile,
    Pad,
    Target,
    Timeout,
    complete_passes,
    dims,
    names,
    sizes,
    values,
)
from onnx_bridge.cli.terminal import Json, progress, show
from onnx_bridge.migraphx.compile_options import parse_option
from onnx_bridge.requests.conversion import ConvertRequest
from onnx_bridge.requests.search import TuneRequest
from onnx_bridge.search import tune as tuning
from passes.core.errors import InputError

_UNITS = {"s": 1.0, "": 1.0, "ms": 1e-3, "m": 60.0, "min": 60.0, "h": 3600.0}


def tune(
    model: Model,
    out: Annotated[
        Path,
        OutputFile(
            "-o",
            "--output",
            metavar="OUT.toml",
            help="The job file of the winner.",
            show_default=False,
        ),
    ],
    budget: Annotated[str, typer.Option(metavar="TIME", help="How long to search, as in 90s, 10m, 2h.")] = "10m",
    precision: Annotated[
        str, typer.Option(metavar="P,…", help="To try; the others are compared with the first.")
    ] = "fp32,fp16,bf16,int8,fp8",
    pipeline: Annotated[
        list[str] | None,
        typer.Option("--pipeline", metavar="SPEC", help="To try; repeatable.", autocompletion=complete_passes),
    ] = None,
    option: Annotated[
        list[str] | None,
        typer.Option("--option", metavar="NAME=VALUE", help="To try instead of the default ones; repeatable."),
    ] = None,
    target: Target = "auto",
    dim: Dims = None,
    bucket: Buckets = None,
    pad: Pad = None,
    inputs: Inputs = None,
    calibration: Calibration = None,
    host: Host = True,
    iterations: Annotated[int, typer.Option(min=1, help="Rounds in which a trial is measured.")] = 20,
    seed: Annotated[int, typer.Option(help="Seed of samples and of the order.")] = 0,
    resume: Annotated[bool, typer.Option("--resume/--no-resume", help="Whether to continue from the journal.")] = True,
    timeout: Timeout = None,
    memory: Memory = None,
    as_json: Json = False,
) -> None:
    """Search for the fastest way to convert a model that still agrees with its reference.

    Exit code 1 if no trial agrees.
    """
    conversion = ConvertRequest(
        target=target,
        dims=dims(dim),
        buckets={name: tuple(sorted(set(each))) for name, each in sizes(bucket).items()},
        pad=values(pad, "--pad", "mask=0"),
        calibration=calibration,
        host=host,
        timeout=timeout,
        memory=memory,
    )
    request = TuneRequest(
        budget=_seconds(budget),
        precisions=names(precision),
        options=({}, *({name: value} for name, value in map(parse_option, option))) if option else None,
        pipelines=tuple(pipeline or ("default",)),
        inputs=inputs,
        iterations=iterations,
        seed=seed,
        resume=resume,
        conversion=conversion,
    )
    with progress(as_json) as tell:
        found = tuning.run(model, out, request, tell)
    show(found, as_json)
    if not found.passed:
        raise typer.Exit(1)


def _seconds(text: str) -> float:
    number = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([a-z]*)\s*", text)
    if number is None or number[2] not in _UNITS:
        raise InputError(f"{text!r} is not a time", where="--budget", hint="for example --budget 10m")
    return float(number[1]) * _UNITS[number[2]]
