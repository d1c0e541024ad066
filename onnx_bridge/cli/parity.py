"""The verbs ``bisect`` and ``reduce``."""

from __future__ import annotations

import enum
from pathlib import Path
from typing import Annotated

import typer

from onnx_bridge.cli.options import (
    Atol,
    Cache,
    Dims,
    Freeze,
    Host,
    Inputs,
    Memory,
    ModelOrBundle,
    Pipeline,
    Rtol,
    Samples,
    Seed,
    Shapes,
    Target,
    Timeout,
    dims,
    shapes,
    values,
)
from onnx_bridge.cli.terminal import Json, progress, show
from onnx_bridge.parity.bisect import bisect as bisection
from onnx_bridge.parity.reduce import reduce as reduction

Subject = Annotated[
    Path,
    typer.Argument(
        metavar="MODEL|BUNDLE|FILE.py:FACTORY",
        help="An ONNX file, what `convert` wrote, or a function that returns a PyTorch module and its arguments.",
        show_default=False,
    ),
]


class Precision(enum.Enum):
    """What MIGraphX can be asked to compute in."""

    fp16 = "fp16"
    bf16 = "bf16"
    int8 = "int8"
    fp8 = "fp8"


LowPrecision = Annotated[
    Precision | None,
    typer.Option("--precision", help="What MIGraphX computes in; default: the model's own."),
]


def bisect(
    model: Subject,
    inputs: Inputs = None,
    outputs: Annotated[
        Path | None,
        typer.Option("--outputs", metavar="FILE.npz", help="The expected outputs, from PyTorch for example."),
    ] = None,
    reference: Annotated[
        Path | None,
        typer.Option("--reference", metavar="ONNX", help="A correct model, from which this one was made."),
    ] = None,
    seed: Seed = 0,
    samples: Samples = None,
    rtol: Rtol = None,
    atol: Atol = None,
    precision: LowPrecision = None,
    target: Target = "auto",
    pipeline: Pipeline = "default",
    dim: Dims = None,
    shape: Shapes = None,
    freeze: Freeze = None,
    host: Host = True,
    cache: Cache = True,
    timeout: Timeout = None,
    memory: Memory = None,
    as_json: Json = False,
) -> None:
    """Find what makes a model wrong: its export, one application of a pass, nodes on MIGraphX, or the precision.

    The first line of output names it in one sentence. Exit code 1 where something diverges, crashes or times out.
    """
    with progress(as_json) as tell:
        found = bisection.bisect(
            model,
            reference=reference,
            inputs=inputs,
            outputs=outputs,
            seed=seed,
            samples=samples,
            rtol=rtol,
            atol=atol,
            precision=precision.value if precision else None,
            target=target,
            pipeline=pipeline,
            dims=dims(dim),
            shapes=shapes(shape),
            freeze=values(freeze),
            host=host,
            cache=cache,
            timeout=timeout,
            memory=memory,
            progress=tell,
        )
    show(found, as_json)
    if not found.passed:
        raise typer.Exit(1)


def reduce(
    model: ModelOrBundle,
    out: Annotated[
        Path, typer.Option("-o", "--output", metavar="DIR", help="Folder of the reproduction.", show_default=False)
    ],
    inputs: Inputs = None,
    seed: Seed = 0,
    samples: Samples = None,
    rtol: Rtol = None,
    atol: Atol = None,
    precision: LowPrecision = None,
    target: Target = "auto",
    pipeline: Pipeline = "default",
    dim: Dims = None,
    shape: Shapes = None,
    freeze: Freeze = None,
    cache: Cache = True,
    timeout: Timeout = None,
    memory: Memory = None,
    as_json: Json = False,
) -> None:
    """Reduce a model to what MIGraphX computes wrongly, rejects or crashes on, and write that as a bug report.

    With `--pipeline none` the model is not cleaned first. Exit code 1 where there is nothing to reduce.
    """
    with progress(as_json) as tell:
        found = reduction.reduce(
            model,
            out,
            inputs=inputs,
            seed=seed,
            samples=samples,
            rtol=rtol,
            atol=atol,
            precision=precision.value if precision else None,
            target=target,
            pipeline=pipeline,
            dims=dims(dim),
            shapes=shapes(shape),
            freeze=values(freeze),
            cache=cache,
            timeout=timeout,
            memory=memory,
            progress=tell,
        )
    show(found, as_json)
    if found.path is None:
        raise typer.Exit(1)
