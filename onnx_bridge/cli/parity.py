"""The verbs ``bisect`` and ``reduce``: what is at fault where numbers differ, and a reproduction of it."""

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

ModelOrBundle = Annotated[
    Path, typer.Argument(metavar="MODEL|BUNDLE", help="An ONNX file, or what `convert` wrote.", show_default=False)
]
Subject = Annotated[
    Path,
    typer.Argument(
        metavar="MODEL|BUNDLE|FILE.py:FACTORY",
        help="An ONNX file, what `convert` wrote, or a function that gives a PyTorch module and its arguments.",
        show_default=False,
    ),
]


class Precision(enum.Enum):
    """What MIGraphX can be asked to compute in."""

    fp16 = "fp16"
    bf16 = "bf16"
    int8 = "int8"
    fp8 = "fp8"


In = Annotated[
    Precision | None,
    typer.Option("--precision", help="What MIGraphX computes in; default: the model's own."),
]


def bisect(
    model: Subject,
    inputs: Inputs = None,
    outputs: Annotated[
        Path | None,
        typer.Option("--outputs", metavar="FILE.npz", help="The right outputs, as PyTorch gave them for the inputs."),
    ] = None,
    reference: Annotated[
        Path | None,
        typer.Option("--reference", metavar="ONNX", help="A model that is right, of which this one was made."),
    ] = None,
    seed: Seed = 0,
    samples: Samples = None,
    rtol: Rtol = None,
    atol: Atol = None,
    precision: In = None,
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
    """Find what breaks a model: its export, one application of a pass, nodes on MIGraphX, or the precision.

    The first line says it in one sentence. Exit code 1 where something diverges, crashes or does not end.
    """
    import onnx_bridge

    with progress(as_json) as tell:
        found = onnx_bridge.bisect(
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
    precision: In = None,
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
    """Cut a model down to what MIGraphX computes wrongly, rejects or crashes on, and write that as a bug report.

    With `--pipeline none` it is the model as it is. Exit code 1 where there is nothing to reduce.
    """
    import onnx_bridge

    with progress(as_json) as tell:
        found = onnx_bridge.reduce(
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
