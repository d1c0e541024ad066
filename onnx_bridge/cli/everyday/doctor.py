"""The verb ``doctor``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from onnx_bridge.cli.options import HtmlReport, Model, OutputFile, again, takes
from onnx_bridge.cli.terminal import Json, progress, show
from onnx_bridge.requests.conversion import DoctorRequest
from passes.core.errors import InputError

Fix = Annotated[bool, typer.Option("--fix", help="Write the rewritten model to -o.")]
Out = Annotated[Path | None, OutputFile("-o", "--output", metavar="OUT.onnx", help="The rewritten model.")]


@takes(DoctorRequest)
def doctor(
    context: typer.Context,
    model: Model,
    request: DoctorRequest,
    fix: Fix = False,
    out: Out = None,
    html: HtmlReport = None,
    as_json: Json = False,
) -> None:
    """Ask MIGraphX about every node before a long compile, and say what will be done about those that it rejects.

    Example: onnx-bridge doctor bert.onnx --dim batch=2

    With --target gpu on a machine without one, the gpu target's passes are rehearsed on ref. Exit code 0 if
    everything will run, which is said only after MIGraphX has parsed the whole; 1 if not; 4 if a node is unproven, as
    ONNX Runtime does not run it on any generated inputs.
    """
    from onnx_bridge.conversion.diagnosis import doctor as diagnosis
    from onnx_bridge.views.html.diagnosis import page_of

    if fix != (out is not None):
        raise InputError("say where the rewritten model goes with --fix -o OUT.onnx")
    with progress(as_json) as tell:
        diagnosed = diagnosis.run(model, out, request, tell)
    if html is not None:
        page_of(diagnosed).write(html)
    target = again(context, "target") if request.rehearsed else ()
    given = [*again(context, "pipeline", "runtime", "application"), *target]
    sizes = again(context, "dims", "shapes", "freeze")  # which the rewritten model has
    then: tuple[object, ...] = ()
    if diagnosed.passed:
        then = ("convert", out or model, "-o", model.stem, *(sizes if out is None else ()), *given)
    elif diagnosed.comparable:
        then = ("reduce", model, "-o", f"{model.stem}-reduced", *sizes, *given)
    show(diagnosed, as_json, then, [html], diagnosed.exit_code)
