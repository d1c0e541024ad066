"""The verb ``check``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from onnx_bridge.cli.options import (
    AsTarget,
    Atol,
    Cache,
    Dims,
    Freeze,
    Host,
    HtmlReport,
    Inputs,
    Memory,
    ModelOrBundle,
    OutputFile,
    Pipeline,
    Rtol,
    Runtime,
    Samples,
    Seed,
    Shapes,
    Target,
    Timeout,
    again,
    dims,
    names,
    numbers,
    shapes,
    values,
)
from onnx_bridge.cli.terminal import Json, progress, show
from onnx_bridge.core.errors import InputError
from onnx_bridge.parity.checking import check as checking
from onnx_bridge.parity.checking.check_data import check_data
from onnx_bridge.reference.comparison.tolerances import parse_tolerance
from onnx_bridge.views.html.accuracy import accuracy_page
from onnx_bridge.views.html.check import write_report
from onnx_bridge.views.junit import write_accuracy_junit, write_junit


def check(
    model: ModelOrBundle,
    inputs: Inputs = None,
    reference: Annotated[
        Path | None, typer.Option("--reference", metavar="MODEL", help="The original of a bundle, if it has moved.")
    ] = None,
    data: Annotated[
        Path | None,
        typer.Option("--data", metavar="DIR|FILE|SCRIPT.py", help="A dataset to measure metrics on, instead."),
    ] = None,
    metric: Annotated[
        str | None, typer.Option("--metric", metavar="A,B", help="Of --data: top1, top5, cosine, sqnr, iou.")
    ] = None,
    least: Annotated[
        list[str] | None,
        typer.Option("--min", metavar="METRIC=VALUE", help="What a metric must reach, else exit code 1; repeatable."),
    ] = None,
    seed: Seed = 0,
    samples: Samples = None,
    rtol: Rtol = None,
    atol: Atol = None,
    tolerance: Annotated[
        str | None,
        typer.Option(metavar="PRECISION", help="What MIGraphX computes in: float32, fp16, bf16, int8 or fp8."),
    ] = None,
    tol: Annotated[
        list[str] | None,
        typer.Option("--tol", metavar="NAME:rtol=R,atol=A", help="Tolerance of one output; repeatable."),
    ] = None,
    layers: Annotated[
        bool, typer.Option("--layers", help="Compare every value of the model, and name the first that differs.")
    ] = False,
    html: HtmlReport = None,
    junit: Annotated[Path | None, OutputFile(metavar="OUT.xml", help="Write the results as JUnit's XML.")] = None,
    save_results: Annotated[
        Path | None,
        OutputFile(metavar="OUT.json", help="Write all outputs as Polygraphy's tools read them."),
    ] = None,
    layers_memory: Annotated[
        float, typer.Option(metavar="GiB", min=0.001, help="Memory limit of the values compared at a time.")
    ] = 1.0,
    as_: AsTarget = None,
    strict: Annotated[
        bool, typer.Option("--strict", help="Exit code 1 where outputs are not determined, too.")
    ] = False,
    target: Target = "auto",
    pipeline: Pipeline = "default",
    dim: Dims = None,
    shape: Shapes = None,
    freeze: Freeze = None,
    host: Host = True,
    cache: Cache = True,
    runtime: Runtime = None,
    timeout: Timeout = None,
    memory: Memory = None,
    as_json: Json = False,
) -> None:
    """Compare a model with its reference: the original on ONNX Runtime, all optimizations off.

    The cleaned model on ONNX Runtime and the bundle are compared with it. Exit code 1 where either differs, 3 where
    MIGraphX fails, 4 where the reference does not determine an output that differs (a tie, chaos); files are written in
    any case. With --data, metrics over a dataset are measured instead; exit code 1 where one is below its --min.
    """
    if data is None and (metric is not None or least):
        raise InputError("metrics are measured on a dataset", where="--metric", hint="name one with --data")
    if data is not None:
        others = {
            "--inputs": inputs,
            "--layers": layers,
            "--save-results": save_results,
            "--seed": seed,
            "--strict": strict,
            "--tol": tol,
            "--tolerance": tolerance,
        }
        if given := [name for name, value in {**others, "--rtol": rtol, "--atol": atol}.items() if value]:
            what = f"it measures metrics, for which {' and '.join(given)} mean nothing"
            raise InputError(what, where="--data", hint="--min says what a metric must reach")
        with progress(as_json) as tell:
            measured = check_data(
                model,
                data,
                metrics=names(metric or ""),
                least=numbers(least),
                reference=reference,
                samples=samples,
                as_target=as_.value if as_ else None,
                target=target,
                pipeline=pipeline,
                dims=dims(dim),
                shapes=shapes(shape),
                freeze=values(freeze),
                host=host,
                cache=cache,
                timeout=timeout,
                memory=memory,
                progress=tell,
            )
        if html is not None:
            accuracy_page(measured).write(html)
        if junit is not None:
            write_accuracy_junit(junit, measured)
        show(measured, as_json, written=[html, junit])
        raise typer.Exit(measured.exit_code)
    if save_results is not None:
        from onnx_bridge.parity.polygraphy import (
            runner as polygraphy,  # raises before a long check if Polygraphy is missing
        )

    with progress(as_json) as tell:
        report = checking.check(
            model,
            reference=reference,
            inputs=inputs,
            seed=seed,
            samples=samples,
            rtol=rtol,
            atol=atol,
            tolerance=tolerance,
            tolerances=dict(map(parse_tolerance, tol or ())),
            layers=layers,
            layers_memory=layers_memory,
            evidence=html is not None or save_results is not None,
            as_target=as_.value if as_ else None,
            target=target,
            pipeline=pipeline,
            dims=dims(dim),
            shapes=shapes(shape),
            freeze=values(freeze),
            host=host,
            cache=cache,
            timeout=timeout,
            memory=memory,
            progress=tell,
        )
    if html is not None:
        write_report(html, report, evidence=report.evidence)
    if junit is not None:
        write_junit(junit, report)
    if save_results is not None and report.evidence is not None:
        polygraphy.save_results(save_results, report.evidence.results)
    bisect = ("bisect", model, *again(inputs=inputs, reference=reference, dim=dim, shape=shape, freeze=freeze))
    show(report, as_json, bisect if report.exit_code == 1 else (), [html, junit, save_results])
    if not report.passed:
        raise typer.Exit(1 if strict and report.not_determined else report.exit_code)
