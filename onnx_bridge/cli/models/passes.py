"""List the passes, and explain what one would do to a model.

Example: onnx-bridge passes list
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from onnx_bridge.cli.terminal import Json, progress, show
from onnx_bridge.requests.texts import complete_passes

app = typer.Typer(no_args_is_help=True, add_completion=False, help=__doc__)


@app.command("list")
def passes_list(as_json: Json = False) -> None:
    """Show all passes with their options, and the named pipelines.

    Example: onnx-bridge passes list
    """
    from onnx_bridge.conversion.diagnosis.explain import catalogue

    show(catalogue(), as_json)


@app.command("explain")
def passes_explain(
    name: Annotated[
        str,
        typer.Argument(
            metavar="PASS", help="A pass, as 'name' or 'name{option=value}'.", autocompletion=complete_passes
        ),
    ],
    model: Annotated[Path, typer.Argument(metavar="MODEL", help="An ONNX file.", show_default=False)],
    node: Annotated[str | None, typer.Option("--node", metavar="NAME", help="Only about this node.")] = None,
    as_json: Json = False,
) -> None:
    """Say which nodes a pass would rewrite, and why it leaves others alone; nothing is written.

    Example: onnx-bridge passes explain fold-constants bert.onnx
    """
    from onnx_bridge.conversion.diagnosis.explain import explain

    with progress(as_json, "explain"):
        explanation = explain(name, model, node=node)
    show(explanation, as_json)
