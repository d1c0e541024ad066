"""The verb ``doctor``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from onnx_bridge.cli.options import (
    Cache,
    Dims,
    Freeze,
    Host,
    HtmlReport,
    Memory,
    Model,
    OutputFile,
    Pipeline,
    ProbeBudget,
    Runtime,
    Shapes,
    Target,
    Timeout,
    again,
    dims,
    shapes,
    values,
)
from onnx_bridge.cli.terminal import Json, progress, show
from onnx_bridge.conversion.diagnosis import doctor as diagnosis
from onnx_bridge.views.html.diagnosis import write_diagnosis
from passes.core.errors import InputError


def doctor(
    model: Model,
    fix: Annotated[bool, typer.Option("--fix", help="Write the rewritten model to -o.")] = False,
    out: Annotated[
        Path | None,
        OutputFile("-o", "--output", metavar="OUT.onnx", help="The rewritten model."),
    ] = None,
    html: HtmlReport = None,
    target: Target = "auto",
    pipeline: Pipeline = "default",
    dim: Dims = None,
    shape: Shapes = None,
    freeze: Freeze = None,
    host: Host = True,
    cache: Cache = True,
    probe_budget: ProbeBudget = None,
    runtime: Runtime = None,
    timeout: Timeout = None,
    memory: Memory = None,
    as_json: Json = False,
) -> None:
    """Ask MIGraphX about every node before a long compile, and say what will be done about those that it rejects.

    With --target gpu on a machine without one, the gpu target's passes are rehearsed on ref. Exit code 0 where
    everything will run, which is said only after MIGraphX has parsed the whole; 1 where not.
    """
    if fix != (out is not None):
        raise InputError("say where the rewritten model goes with --fix -o OUT.onnx")
    with progress(as_json) as tell:
        found = diagnosis.doctor(
            model,
            out,
            target=target,
            pipeline=pipeline,
            dims=dims(dim),
            shapes=shapes(shape),
            freeze=values(freeze),
            host=host,
            cache=cache,
            probe_budget=probe_budget,
            timeout=timeout,
            memory=memory,
            progress=tell,
        )
    if html is not None:
        write_diagnosis(html, found)
    given = again(pipeline=pipeline if pipeline != "default" else None, runtime=runtime)
    sizes = again(dim=dim, shape=shape, freeze=freeze)  # which the rewritten model has
    then: tuple[object, ...] = ()
    if found.passed:
        then = ("convert", out or model, "-o", model.stem, *(sizes if out is None else ()), *given)
    elif found.comparable:
        then = ("reduce", model, "-o", f"{model.stem}-reduced", *sizes, *given)
    show(found, as_json, then, [html])
    if not found.passed:
        raise typer.Exit(1)
