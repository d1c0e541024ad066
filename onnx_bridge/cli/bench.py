"""The verb ``bench``."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Annotated

import typer

from onnx_bridge.benchmark import bench as benchmark
from onnx_bridge.cli.options import (
    Calibration,
    Dims,
    Inputs,
    Keep,
    Memory,
    Options,
    OutputFile,
    Pipeline,
    Runtime,
    Target,
    Timeout,
    dims,
    names,
)
from onnx_bridge.cli.terminal import Json, progress, show
from onnx_bridge.core.files.atomic_write import write_text
from onnx_bridge.migraphx.compile_options import parse_option
from onnx_bridge.requests.conversion import ConvertRequest
from onnx_bridge.requests.search import BenchRequest
from onnx_bridge.views.html.benchmark import write_report
from passes.core.errors import InputError


def bench(
    model: Annotated[
        str,
        typer.Argument(
            metavar="SRC",
            help="An ONNX file, a bundle, or a factory of a PyTorch module (package.module:name).",
            show_default=False,
        ),
    ],
    batch: Annotated[
        str | None, typer.Option("--batch", metavar="1,2,4", help="Sizes of the batch dimension to measure.")
    ] = None,
    precision: Annotated[str, typer.Option(metavar="P,…", help="What MIGraphX computes in.")] = "fp32",
    engine: Annotated[
        str,
        typer.Option(
            "--engines",
            metavar="E,…",
            help="Of migraphx, ort, ort-migraphx, ort-rocm, torch, torch-compile; ratios are to the first.",
        ),
    ] = "migraphx,ort",
    module: Annotated[
        str | None,
        typer.Option("--module", metavar="FACTORY", help="For torch: the factory of the module of an ONNX file."),
    ] = None,
    inputs: Inputs = None,
    iterations: Annotated[int, typer.Option(min=1, help="Maximum number of rounds.")] = 50,
    warmup: Annotated[int, typer.Option(min=0, help="Calls before the measured ones.")] = 3,
    seconds: Annotated[
        float | None, typer.Option(min=0.0, help="No round begins after this time, for each batch size.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of the sample and of the order.")] = 0,
    out: Annotated[
        Path | None,
        OutputFile(
            "-o",
            "--output",
            metavar="OUT.json",
            help="All results, which can serve as a baseline.",
        ),
    ] = None,
    table: Annotated[Path | None, OutputFile("--csv", metavar="OUT.csv", help="The table as CSV.")] = None,
    against: Annotated[
        Path | None, typer.Option("--against", metavar="BASELINE.json", help="Earlier results to compare with.")
    ] = None,
    max_slowdown: Annotated[
        str, typer.Option("--max-slowdown", metavar="5%", help="How much slower than the baseline it may be.")
    ] = "5%",
    per_operator: Annotated[bool, typer.Option("--per-operator", help="Also measure MIGraphX's operators.")] = False,
    report: Annotated[Path | None, OutputFile("--report", metavar="OUT.html", help="An HTML page with plots.")] = None,
    target: Target = "auto",
    pipeline: Pipeline = "default",
    dim: Dims = None,
    calibration: Calibration = None,
    keep_fp32: Keep = None,
    option: Options = None,
    runtime: Runtime = None,
    timeout: Timeout = None,
    memory: Memory = None,
    as_json: Json = False,
) -> None:
    """Measure engines side by side: latency, throughput, memory, time to load and to the first result.

    Exit code 1 if something is significantly slower than the baseline allows.
    """
    conversion = ConvertRequest(
        target=target,
        pipeline=pipeline,
        dims=dims(dim),
        calibration=calibration,
        keep_fp32=tuple(keep_fp32 or ()),
        options=dict(map(parse_option, option or ())),
        timeout=timeout,
        memory=memory,
    )
    request = BenchRequest(
        batches=_sizes(batch),
        precisions=names(precision),
        engines=names(engine),
        module=module,
        inputs=inputs,
        iterations=iterations,
        warmup=warmup,
        seconds=seconds,
        seed=seed,
        against=against,
        max_slowdown=_share(max_slowdown),
        per_operator=per_operator,
        conversion=conversion,
    )
    with progress(as_json) as tell:
        found = benchmark.run(model, request, tell)
    if out is not None:
        write_text(out, json.dumps(found.to_json(), indent=1) + "\n")
    if table is not None:
        write_text(table, found.to_csv())
    if report is not None:
        write_report(report, found)
    show(found, as_json, written=[out, table, report])
    if not found.passed:
        raise typer.Exit(1)


def _sizes(text: str | None) -> tuple[int, ...]:
    words = names(text or "")
    if not all(each.isdecimal() for each in words) or (text is not None and not words):
        raise InputError(f"{text!r} is not a list of sizes", where="--batch", hint="for example --batch 1,2,4")
    return tuple(map(int, words))


def _share(text: str) -> float:
    number = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*(%?)\s*", text)
    if number is None:
        raise InputError(f"{text!r} is not a share", where="--max-slowdown", hint="for example --max-slowdown 5%")
    return float(number[1]) / (100 if number[2] else 1)
