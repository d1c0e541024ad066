"""The verb ``reduce``."""

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
    Inputs,
    LowPrecision,
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
from onnx_bridge.parity.reduce import reduce as reduction


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
    as_: AsTarget = None,
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
            as_target=as_.value if as_ else None,
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
