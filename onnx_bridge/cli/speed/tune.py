"""The verb ``tune``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from onnx_bridge.cli.options import Model, OutputFile, takes
from onnx_bridge.cli.terminal import Json, progress, show
from onnx_bridge.requests.search import TuneRequest

Out = Annotated[
    Path,
    OutputFile("-o", "--output", metavar="OUT.toml", help="The job file of the winner.", show_default=False),
]


@takes(TuneRequest)
def tune(model: Model, out: Out, request: TuneRequest, as_json: Json = False) -> None:
    """Search for the fastest way to convert a model that still agrees with its reference.

    Example: onnx-bridge tune bert.onnx -o tuned.toml

    Exit code 1 if no trial agrees.
    """
    from onnx_bridge.search import tune as tuning

    with progress(as_json) as tell:
        tuned = tuning.run(model, out, request, tell)
    show(tuned, as_json, code=int(not tuned.passed))
