"""The verb ``pack``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from onnx_bridge.cli.options import OutputFile
from onnx_bridge.cli.terminal import Json, progress, show


def pack(
    bundle: Annotated[Path, typer.Argument(metavar="BUNDLE", help="The bundle to pack.", show_default=False)],
    out: Annotated[
        Path | None,
        OutputFile("-o", "--output", metavar="NAME.onnxbridge", help="The file; default: beside the bundle."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Pack a bundle into one file, which every verb and `onnx_bridge.load` accept.

    Example: onnx-bridge pack bert
    """
    from onnx_bridge.bundle.files import pack as packing

    with progress(as_json, "pack") as tell:
        packed = packing.pack(
            bundle, out or bundle.with_name(f"{bundle.resolve().name}{packing.SUFFIX}"), progress=tell
        )
    show(packed, as_json)
