"""The verb ``verify``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from onnx_bridge.cli.options import takes
from onnx_bridge.cli.terminal import Json, progress, show
from onnx_bridge.requests.conversion import VerifyRequest

Bundle = Annotated[Path, typer.Argument(metavar="BUNDLE", help="A bundle, packed or not.", show_default=False)]


@takes(VerifyRequest)
def verify(
    bundle: Bundle,
    request: VerifyRequest,
    as_json: Json = False,
) -> None:
    """Check whether every file of a bundle is unchanged, and whether it can run here.

    Example: onnx-bridge verify bert

    Exit code 0 if so, 1 if it is damaged or cannot run here, 2 if there is no bundle.
    """
    from onnx_bridge.bundle.files import verify as verification

    with progress(as_json, "read every file") as tell:
        verified = verification.verify(bundle, here=request.here, progress=tell)
    show(verified, as_json, code=int(not verified.passed))
