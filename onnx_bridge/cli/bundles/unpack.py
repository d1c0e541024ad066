"""The verb ``unpack``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from onnx_bridge.cli.terminal import Json, progress, show


def unpack(
    packed: Annotated[Path, typer.Argument(metavar="PACKED", help="A file that `pack` wrote.", show_default=False)],
    out: Annotated[Path, typer.Option("-o", "--output", metavar="DIR", help="A new folder.", show_default=False)],
    as_json: Json = False,
) -> None:
    """Unpack a bundle into a folder, and verify it.

    Example: onnx-bridge unpack bert.onnxbridge -o bert
    """
    from onnx_bridge.bundle.files import pack as packing

    with progress(as_json, "unpack") as tell:
        unpacked = packing.unpack(packed, out, progress=tell)
    show(unpacked, as_json)
