"""The verb ``check``."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from onnx_bridge.cli.options import HtmlReport, ModelOrBundle, OutputFile, again, takes
from onnx_bridge.cli.terminal import Json, progress, show
from onnx_bridge.core.errors import InputError
from onnx_bridge.requests.parity import DataRequest

JUnit = Annotated[Path | None, OutputFile(metavar="OUT.xml", help="Write the results as JUnit's XML.")]
Results = Annotated[
    Path | None, OutputFile(metavar="OUT.json", help="Write all outputs as Polygraphy's tools read them.")
]
Strict = Annotated[bool, typer.Option("--strict", help="Exit code 1 if outputs are not determined, too.")]


@takes(DataRequest)
def check(
    context: typer.Context,
    model: ModelOrBundle,
    request: DataRequest,
    html: HtmlReport = None,
    junit: JUnit = None,
    save_results: Results = None,
    strict: Strict = False,
    as_json: Json = False,
) -> None:
    """Compare a model with its reference: the original on ONNX Runtime, all optimizations off.

    Example: onnx-bridge check bert

    The cleaned model on ONNX Runtime and the bundle are compared with it. Exit code 1 if either differs, 3 if
    MIGraphX fails, 4 if the reference does not determine an output that differs (a tie, chaos); files are written in
    any case. With --data, metrics over a dataset are measured instead; exit code 1 if one is below its --min.
    """
    from onnx_bridge.parity.checking import check as checking
    from onnx_bridge.views.html.check import page_of
    from onnx_bridge.views.junit import write_junit

    if request.data is not None:
        if strict or save_results is not None:
            option = "--strict" if strict else "--save-results"
            what = f"on a dataset metrics are measured, for which {option} means nothing"
            raise InputError(what, where="--data", hint="--min says what a metric must reach")
        _measure(model, request, html, junit, as_json)
        return
    if save_results is not None:
        from onnx_bridge.parity.polygraphy import runner as polygraphy  # raises before a long check if it is missing

    request = replace(request, evidence=html is not None or save_results is not None)
    with progress(as_json) as tell:
        report = checking.run(model, request, tell)
    if html is not None:
        page_of(report, evidence=report.evidence).write(html)
    if junit is not None:
        write_junit(junit, report)
    if save_results is not None and report.evidence is not None:
        polygraphy.save_results(save_results, report.evidence.results)
    bisect = ("bisect", model, *again(context, "inputs", "reference", "dims", "shapes", "freeze"))
    code = 1 if strict and report.not_determined else report.exit_code
    show(report, as_json, bisect if report.exit_code == 1 else (), [html, junit, save_results], code)


def _measure(model: Path, request: DataRequest, html: Path | None, junit: Path | None, as_json: bool) -> None:
    """Measure metrics over the dataset, and show them."""
    from onnx_bridge.parity.checking.check_data import measure
    from onnx_bridge.views.html.accuracy import accuracy_page
    from onnx_bridge.views.junit import write_accuracy_junit

    with progress(as_json) as tell:
        report = measure(model, request, tell)
    if html is not None:
        accuracy_page(report).write(html)
    if junit is not None:
        write_accuracy_junit(junit, report)
    show(report, as_json, written=[html, junit], code=report.exit_code)
