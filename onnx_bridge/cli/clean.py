"""The verb ``clean``."""

from __future__ import annotations

import enum
from pathlib import Path
from typing import Annotated

import typer

from onnx_bridge.cli.options import (
    Dims,
    Freeze,
    Memory,
    Model,
    OutputFile,
    Pipeline,
    Shapes,
    Timeout,
    dims,
    shapes,
    values,
)
from onnx_bridge.cli.terminal import Json, progress, show, volume
from onnx_bridge.conversion import cleaning
from passes.core.errors import InputError


class Verify(enum.Enum):
    """When `clean` compares numbers."""

    none = "none"
    each = "each"


def clean(
    model: Model,
    out: Annotated[Path | None, OutputFile("-o", "--output", metavar="OUT.onnx", help="The cleaned model.")] = None,
    pipeline: Pipeline = "default",
    dim: Dims = None,
    shape: Shapes = None,
    freeze: Freeze = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be done, write nothing.")] = False,
    verify: Annotated[
        Verify, typer.Option(help="'each' runs the model on ONNX Runtime before and after each pass.")
    ] = Verify.none,
    max_rewrites: Annotated[int | None, typer.Option(min=0, help="Stop after so many rewrites.")] = None,
    trace: Annotated[bool, typer.Option("--trace", help="Show every rewrite, with its nodes.")] = False,
    timeout: Timeout = None,
    memory: Memory = None,
    as_json: Json = False,
) -> None:
    """Rewrite a model with the passes of a pipeline. Exit code 1 where `--verify` finds that numbers moved."""
    if (out is None) != dry_run:
        raise InputError("say where the cleaned model goes with -o OUT.onnx, or only look with --dry-run (not both)")
    with progress(as_json) as tell:
        cleaned = cleaning.clean(
            model,
            out,
            pipeline=pipeline,
            dims=dims(dim),
            shapes=shapes(shape),
            freeze=values(freeze),
            verify=verify.value,
            max_rewrites=max_rewrites,
            timeout=timeout,
            memory=memory,
            progress=tell,
        )
    if trace and not as_json and not volume.quiet:
        from onnx_bridge.views.terminal import conversion, tables

        tables.console().print(conversion.trace(cleaned), soft_wrap=True)
    show(cleaned, as_json)
    if not cleaned.passed:
        raise typer.Exit(1)
