"""The verb ``clean``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from onnx_bridge.cli.options import Model, OutputFile, takes
from onnx_bridge.cli.terminal import Json, progress, show, volume
from onnx_bridge.requests.conversion import CleanRequest
from passes.core.errors import InputError

Out = Annotated[Path | None, OutputFile("-o", "--output", metavar="OUT.onnx", help="The cleaned model.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Say what would be done, write nothing.")]
Trace = Annotated[bool, typer.Option("--trace", help="Show every rewrite, with its nodes.")]


@takes(CleanRequest)
def clean(
    model: Model,
    request: CleanRequest,
    out: Out = None,
    dry_run: DryRun = False,
    trace: Trace = False,
    as_json: Json = False,
) -> None:
    """Rewrite a model with the passes of a pipeline. Exit code 1 if `--verify` finds that numbers moved.

    Example: onnx-bridge clean bert.onnx -o clean.onnx
    """
    from onnx_bridge.conversion import cleaning

    if (out is None) != dry_run:
        raise InputError("say where the cleaned model goes with -o OUT.onnx, or only look with --dry-run (not both)")
    with progress(as_json) as tell:
        cleaned = cleaning.run(model, out, request, progress=tell)
    if trace and not as_json and not volume.quiet:
        from onnx_bridge.views.terminal import conversion, tables

        tables.console().print(conversion.trace(cleaned), soft_wrap=True)
    show(cleaned, as_json, code=int(not cleaned.passed))
