"""The verb ``diff``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from onnx_bridge.cli.terminal import Json, progress, show


def diff(
    first: Annotated[
        Path, typer.Argument(metavar="A", help="The model before: an ONNX file or a bundle.", show_default=False)
    ],
    second: Annotated[Path, typer.Argument(metavar="B", help="The model after.", show_default=False)],
    as_json: Json = False,
) -> None:
    """Show which nodes were removed, added and changed between two models, and by which passes.

    Example: onnx-bridge diff model.onnx clean.onnx

    A bundle means its cleaned model.
    """
    from onnx_bridge.bundle import difference

    with progress(as_json, "compare"):
        differences = difference.diff(first, second)
    show(differences, as_json)
