"""The verb ``verify``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from onnx_bridge.bundle.files import verify as verification
from onnx_bridge.cli.options import Runtime
from onnx_bridge.cli.terminal import Json, progress, show

Bundle = Annotated[Path, typer.Argument(metavar="BUNDLE", help="What `convert` or `pack` wrote.", show_default=False)]


def verify(
    bundle: Bundle,
    here: Annotated[
        bool,
        typer.Option("--here/--files-only", help="Whether to check that it can run here, too."),
    ] = True,
    runtime: Runtime = None,
    as_json: Json = False,
) -> None:
    """Check whether every file of a bundle is unchanged, and whether it can run here.

    Exit code 0 if so, 1 if it is damaged or cannot run here, 2 if there is no bundle.
    """
    with progress(as_json, "read every file") as tell:
        found = verification.verify(bundle, here=here, progress=tell)
    show(found, as_json)
    if not found.passed:
        raise typer.Exit(1)
