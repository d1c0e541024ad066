"""The verb ``bisect``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from onnx_bridge.cli.options import takes
from onnx_bridge.cli.terminal import Json, progress, show
from onnx_bridge.requests.parity import BisectRequest

Subject = Annotated[
    Path,
    typer.Argument(
        metavar="MODEL|BUNDLE|FILE.py:FACTORY",
        help="An ONNX file, a bundle, or a function that returns a PyTorch module and its arguments.",
        show_default=False,
    ),
]


@takes(BisectRequest)
def bisect(model: Subject, request: BisectRequest, as_json: Json = False) -> None:
    """Find what makes a model wrong: its export, one application of a pass, nodes on MIGraphX, or the precision.

    Example: onnx-bridge bisect bert.onnx

    The first line of output names it in one sentence. Exit code 1 if something diverges, crashes or times
    out, 4 if outputs differ that the reference does not determine (a tie, chaos).
    """
    from onnx_bridge.parity.bisect import bisect as bisection

    with progress(as_json) as tell:
        bisected = bisection.run(model, request, tell)
    show(bisected, as_json, code=bisected.exit_code)
