"""The verb ``mixed-precision``."""

from __future__ import annotations

from typing import Annotated

import typer

from onnx_bridge.cli.options import (
    Atol,
    Calibration,
    Dims,
    Host,
    Inputs,
    Memory,
    Model,
    Pipeline,
    Rtol,
    Samples,
    Seed,
    Target,
    Timeout,
    dims,
)
from onnx_bridge.cli.terminal import Json, progress, show
from onnx_bridge.requests.conversion import ConvertRequest
from onnx_bridge.requests.search import MixedPrecisionRequest
from onnx_bridge.search import mixed_precision as search


def mixed_precision(
    model: Model,
    precision: Annotated[str, typer.Option(metavar="P", help="fp16, bf16, int8 or fp8.")] = "fp16",
    target: Target = "auto",
    pipeline: Pipeline = "default",
    dim: Dims = None,
    calibration: Calibration = None,
    inputs: Inputs = None,
    seed: Seed = 0,
    samples: Samples = None,
    rtol: Rtol = None,
    atol: Atol = None,
    host: Host = True,
    timeout: Timeout = None,
    memory: Memory = None,
    as_json: Json = False,
) -> None:
    """Find the nodes that must stay in float32 for a model in lower precision to agree with its reference."""
    conversion = ConvertRequest(
        precision=precision,
        calibration=calibration,
        target=target,
        pipeline=pipeline,
        dims=dims(dim),
        host=host,
        timeout=timeout,
        memory=memory,
    )
    request = MixedPrecisionRequest(
        inputs=inputs, seed=seed, samples=samples, rtol=rtol, atol=atol, conversion=conversion
    )
    with progress(as_json) as tell:
        found = search.run(model, request, tell)
    show(found, as_json)
