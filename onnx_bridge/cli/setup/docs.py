"""The verb ``docs``."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from onnx_bridge.cli.terminal import Json, show


def docs(
    topic: Annotated[
        str | None, typer.Argument(metavar="TOPIC", help="A page, as an error names it; default: list them.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Show a page of the documentation, which is installed with the package.

    Example: onnx-bridge docs first-model
    """
    from onnx_bridge.core import pages

    if topic is None:
        show(pages.listed(), as_json)
        return
    page = pages.read(topic)
    if as_json or sys.stdout.isatty():
        show(page, as_json)
    else:
        print(page.text)
