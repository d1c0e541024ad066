"""The verb ``bench``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from onnx_bridge.cli.options import HtmlReport, OutputFile, takes
from onnx_bridge.cli.terminal import Json, progress, show
from onnx_bridge.requests.search import BenchRequest

Subject = Annotated[
    str,
    typer.Argument(
        metavar="SRC",
        help="An ONNX file, a bundle, or a factory of a PyTorch module (package.module:name).",
        show_default=False,
    ),
]
Out = Annotated[
    Path | None, OutputFile("-o", "--output", metavar="OUT.json", help="All results, which can serve as a baseline.")
]
Table = Annotated[Path | None, OutputFile("--csv", metavar="OUT.csv", help="The table as CSV.")]


@takes(BenchRequest)
def bench(
    model: Subject,
    request: BenchRequest,
    out: Out = None,
    table: Table = None,
    report: HtmlReport = None,
    as_json: Json = False,
) -> None:
    """Measure engines side by side: latency, throughput, memory, time to load and to the first result.

    Example: onnx-bridge bench bert.onnx --precision fp32,fp16

    Exit code 1 if something is significantly slower than the baseline allows.
    """
    from onnx_bridge.benchmark import bench as benchmark
    from onnx_bridge.core.files.atomic_write import write_text
    from onnx_bridge.views.html.benchmark import page_of

    with progress(as_json) as tell:
        measured = benchmark.run(model, request, tell)
    if out is not None:
        write_text(out, json.dumps(measured.to_json(), indent=1) + "\n")
    if table is not None:
        write_text(table, measured.to_csv())
    if report is not None:
        page_of(measured).write(report)
    show(measured, as_json, written=[out, table, report], code=int(not measured.passed))
