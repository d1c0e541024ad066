"""The verbs ``pack``, ``unpack`` and ``verify``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from onnx_bridge.bundle import pack as packing
from onnx_bridge.bundle import verify as verification
from onnx_bridge.cli.terminal import Json, show

Bundle = Annotated[Path, typer.Argument(metavar="BUNDLE", help="What `convert` or `pack` wrote.", show_default=False)]


def pack(
    bundle: Annotated[Path, typer.Argument(metavar="BUNDLE", help="What `convert` wrote.", show_default=False)],
    out: Annotated[
        Path, typer.Option("-o", "--output", metavar="NAME.onnxbridge", help="The file.", show_default=False)
    ],
    as_json: Json = False,
) -> None:
    """Pack a bundle into one file, which every verb and `onnx_bridge.load` accept."""
    show(packing.pack(bundle, out), as_json)


def unpack(
    packed: Annotated[Path, typer.Argument(metavar="PACKED", help="What `pack` wrote.", show_default=False)],
    out: Annotated[Path, typer.Option("-o", "--output", metavar="DIR", help="A new folder.", show_default=False)],
    as_json: Json = False,
) -> None:
    """Unpack a bundle into a folder, and verify it."""
    show(packing.unpack(packed, out), as_json)


def verify(
    bundle: Bundle,
    here: Annotated[
        bool,
        typer.Option("--here/--files-only", help="Whether to check that it can run here, too."),
    ] = True,
    as_json: Json = False,
) -> None:
    """Check whether every file of a bundle is unchanged, and whether it can run here.

    Exit code 0 if so, 1 if it is damaged or cannot run here, 2 if there is no bundle.
    """
    found = verification.verify(bundle, here=here)
    show(found, as_json)
    if not found.passed:
        raise typer.Exit(1)
