"""The verbs ``pack``, ``unpack`` and ``verify``: what can be done with a bundle as files."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from onnx_bridge.cli.terminal import Json, show

Bundle = Annotated[Path, typer.Argument(metavar="BUNDLE", help="What `convert` or `pack` wrote.", show_default=False)]


def pack(
    bundle: Annotated[Path, typer.Argument(metavar="BUNDLE", help="What `convert` wrote.", show_default=False)],
    out: Annotated[
        Path, typer.Option("-o", "--output", metavar="NAME.onnxbridge", help="The file.", show_default=False)
    ],
    as_json: Json = False,
) -> None:
    """Pack a bundle into one file, which every verb and `onnx_bridge.load` take as it is."""
    from onnx_bridge.bundle import pack as packing

    show(packing.pack(bundle, out), as_json)


def unpack(
    packed: Annotated[Path, typer.Argument(metavar="PACKED", help="What `pack` wrote.", show_default=False)],
    out: Annotated[Path, typer.Option("-o", "--output", metavar="DIR", help="A new folder.", show_default=False)],
    as_json: Json = False,
) -> None:
    """Unpack a bundle into a folder, and check that it is whole."""
    from onnx_bridge.bundle import pack as packing

    show(packing.unpack(packed, out), as_json)


def verify(
    bundle: Bundle,
    here: Annotated[
        bool,
        typer.Option("--here/--files-only", help="Whether to ask if the MIGraphX and the GPU here can run it, too."),
    ] = True,
    as_json: Json = False,
) -> None:
    """Look whether every file of a bundle is as it was made, and whether it runs here.

    Exit code 0 where it does, 1 where it is damaged or does not run here, 2 where there is no bundle.
    """
    from onnx_bridge.bundle import verify as verifying

    found = verifying.verify(bundle, here=here)
    show(found, as_json)
    if not found.passed:
        raise typer.Exit(1)
