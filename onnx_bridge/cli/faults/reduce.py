"""The verb ``reduce``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from onnx_bridge.cli.options import ModelOrBundle, takes
from onnx_bridge.cli.terminal import Json, progress, show
from onnx_bridge.requests.parity import ReduceRequest

Out = Annotated[
    Path | None,
    typer.Option("-o", "--output", metavar="DIR", help="Folder of the reproduction; default: MODEL-reduced here."),
]


@takes(ReduceRequest)
def reduce(model: ModelOrBundle, request: ReduceRequest, out: Out = None, as_json: Json = False) -> None:
    """Reduce a model to what MIGraphX computes wrongly, rejects or crashes on, and write that as a bug report.

    Example: onnx-bridge reduce bert.onnx -o report

    With `--pipeline none` the model is not cleaned first. Exit code 1 if there is nothing to reduce.
    """
    from onnx_bridge.parity.reduce import reduce as reduction

    with progress(as_json) as tell:
        reduced = reduction.run(model, out or Path(f"{model.stem}-reduced"), request, tell)
    show(reduced, as_json, code=int(reduced.path is None))
