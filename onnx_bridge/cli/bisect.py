"""The verb ``bisect``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from onnx_bridge.cli.options import (
    AsTarget,
    Atol,
    Cache,
    Dims,
    Freeze,
    Host,
    Inputs,
    LowPrecision,
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
from onnx_bridge.parity.bisect import bisect as bisection

Subject = Annotated[
    Path,
    typer.Argument(
        metavar="MODEL|BUNDLE|FILE.py:FACTORY",
        help="An ONNX file, what `convert` wrote, or a function that returns a PyTorch module and its arguments.",
        show_default=False,
    ),
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
    as_: AsTarget = None,
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

    The first line of output names it in one sentence. Exit code 1 where something diverges, crashes or times
    out, 4 where outputs differ that the reference does not determine (a tie, chaos).
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
            as_target=as_.value if as_ else None,
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
        raise typer.Exit(found.exit_code)
