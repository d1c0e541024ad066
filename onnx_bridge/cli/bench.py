"""The verbs ``bench``, ``tune`` and ``mixed-precision``: measure a model, and search for a faster conversion."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated

import typer

from onnx_bridge.cli.options import (
    Atol,
    Buckets,
    Calibration,
    Dims,
    Host,
    Inputs,
    Keep,
    Memory,
    Model,
    Options,
    Pad,
    Pipeline,
    Rtol,
    Samples,
    Seed,
    Target,
    Timeout,
    dims,
    sizes,
    values,
)
from onnx_bridge.cli.terminal import Json, progress, show
from passes.core.errors import InputError

_UNITS = {"s": 1.0, "": 1.0, "ms": 1e-3, "m": 60.0, "min": 60.0, "h": 3600.0}


def bench(
    model: Annotated[
        str,
        typer.Argument(
            metavar="SRC",
            help="An ONNX file; what `convert` wrote; or a factory of a PyTorch module (package.module:name).",
            show_default=False,
        ),
    ],
    batch: Annotated[
        str | None, typer.Option("--batch", metavar="1,2,4", help="Sizes of the batch dimension, to sweep.")
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
        typer.Option("--module", metavar="FACTORY", help="For torch: makes the module of an ONNX file."),
    ] = None,
    inputs: Inputs = None,
    iterations: Annotated[int, typer.Option(min=1, help="Rounds, at most.")] = 50,
    warmup: Annotated[int, typer.Option(min=0, help="Calls before that do not count.")] = 3,
    seconds: Annotated[
        float | None, typer.Option(min=0.0, help="No round begins after so many, for each batch size.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of the sample and of the order.")] = 0,
    out: Annotated[
        Path | None, typer.Option("-o", "--output", metavar="OUT.json", help="All of it, which is also a baseline.")
    ] = None,
    table: Annotated[Path | None, typer.Option("--csv", metavar="OUT.csv", help="The table.")] = None,
    against: Annotated[
        Path | None, typer.Option("--against", metavar="BASELINE.json", help="What it must not be slower than.")
    ] = None,
    max_slowdown: Annotated[
        str, typer.Option("--max-slowdown", metavar="5%", help="By how much it may be slower than the baseline.")
    ] = "5%",
    per_operator: Annotated[
        bool, typer.Option("--per-operator", help="Also ask MIGraphX which operators its time goes to.")
    ] = False,
    report: Annotated[
        Path | None, typer.Option("--report", metavar="OUT.html", help="A page with plots, which opens offline.")
    ] = None,
    target: Target = "auto",
    pipeline: Pipeline = "default",
    dim: Dims = None,
    calibration: Calibration = None,
    keep_fp32: Keep = None,
    option: Options = None,
    timeout: Timeout = None,
    memory: Memory = None,
    as_json: Json = False,
) -> None:
    """Measure engines side by side: latency, throughput, memory, time to load and to the first result.

    Exit code 1 where something is slower than the baseline allows, and not by chance.
    """
    from onnx_bridge.benchmark.bench import bench as measure
    from onnx_bridge.migraphx.compile_options import parse_option

    slowdown = _share(max_slowdown)
    with progress(as_json) as tell:
        found = measure(
            model,
            batches=_sizes(batch),
            precisions=_words(precision),
            engines=_words(engine),
            module=module,
            inputs=inputs,
            iterations=iterations,
            warmup=warmup,
            seconds=seconds,
            seed=seed,
            against=against,
            max_slowdown=slowdown,
            per_operator=per_operator,
            target=target,
            pipeline=pipeline,
            dims=dims(dim),
            calibration=calibration,
            keep_fp32=tuple(keep_fp32 or ()),
            options=dict(map(parse_option, option or ())),
            timeout=timeout,
            memory=memory,
            progress=tell,
        )
    if out is not None:
        import json

        _write(out, json.dumps(found.to_json(), indent=1) + "\n")
    if table is not None:
        _write(table, found.to_csv())
    if report is not None:
        from onnx_bridge.report.benchmark import write_report

        write_report(report, found)
    show(found, as_json)
    if not found.passed:
        raise typer.Exit(1)


def tune(
    model: Model,
    out: Annotated[
        Path,
        typer.Option("-o", "--output", metavar="OUT.toml", help="The job file of the winner.", show_default=False),
    ],
    budget: Annotated[str, typer.Option(metavar="TIME", help="How long to search, as in 90s, 10m, 2h.")] = "10m",
    precision: Annotated[
        str, typer.Option(metavar="P,…", help="To try; the first is what others are compared with.")
    ] = "fp32,fp16,bf16,int8,fp8",
    pipeline: Annotated[
        list[str] | None, typer.Option("--pipeline", metavar="SPEC", help="To try; repeatable.")
    ] = None,
    option: Annotated[
        list[str] | None,
        typer.Option("--option", metavar="NAME=VALUE", help="To try instead of the usual ones; repeatable."),
    ] = None,
    target: Target = "auto",
    dim: Dims = None,
    bucket: Buckets = None,
    pad: Pad = None,
    inputs: Inputs = None,
    calibration: Calibration = None,
    host: Host = True,
    iterations: Annotated[int, typer.Option(min=1, help="Rounds in which a trial is measured.")] = 20,
    seed: Annotated[int, typer.Option(help="Seed of samples and of the order.")] = 0,
    resume: Annotated[
        bool, typer.Option("--resume/--no-resume", help="Whether to go on from what was found before.")
    ] = True,
    timeout: Timeout = None,
    memory: Memory = None,
    as_json: Json = False,
) -> None:
    """Search for the fastest way to convert a model that still agrees with its reference.

    Exit code 1 where nothing that was tried agrees.
    """
    from onnx_bridge.benchmark.tune import tune as search
    from onnx_bridge.migraphx.compile_options import parse_option

    sets = [{}, *({name: value} for name, value in map(parse_option, option))] if option else None
    with progress(as_json) as tell:
        found = search(
            model,
            out,
            budget=_seconds(budget),
            precisions=_words(precision),
            options=sets,
            pipelines=tuple(pipeline or ("default",)),
            target=target,
            dims=dims(dim),
            buckets=sizes(bucket),
            pad=values(pad, "--pad", "mask=0"),
            inputs=inputs,
            calibration=calibration,
            host=host,
            iterations=iterations,
            seed=seed,
            resume=resume,
            timeout=timeout,
            memory=memory,
            progress=tell,
        )
    show(found, as_json)
    if not found.passed:
        raise typer.Exit(1)


def mixed_precision(
    model: Model,
    precision: Annotated[str, typer.Option(metavar="P", help="fp16, bf16, int8 or fp8.")] = "fp16",
    target: Target = "auto",
    pipeline: Pipeline = "default",
    dim: Dims = None,
    calibration: Calibration = None,
    inputs: Inputs = None,
    seed: Seed = 0,
    samples: Samples = None,
    rtol: Rtol = None,
    atol: Atol = None,
    host: Host = True,
    timeout: Timeout = None,
    memory: Memory = None,
    as_json: Json = False,
) -> None:
    """Find the nodes that must stay in float32 for a model in fewer bits to agree with its reference."""
    from onnx_bridge.benchmark.mixed_precision import mixed_precision as find

    with progress(as_json) as tell:
        found = find(
            model,
            precision,
            calibration=calibration,
            inputs=inputs,
            seed=seed,
            samples=samples,
            rtol=rtol,
            atol=atol,
            target=target,
            pipeline=pipeline,
            dims=dims(dim),
            host=host,
            timeout=timeout,
            memory=memory,
            progress=tell,
        )
    show(found, as_json)


def _words(text: str) -> tuple[str, ...]:
    return tuple(each.strip() for each in text.split(",") if each.strip())


def _sizes(text: str | None) -> tuple[int, ...]:
    words = _words(text or "")
    if not all(each.isdecimal() for each in words) or (text is not None and not words):
        raise InputError(f"{text!r} are no sizes", where="--batch", hint="for example --batch 1,2,4")
    return tuple(map(int, words))


def _share(text: str) -> float:
    number = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*(%?)\s*", text)
    if number is None:
        raise InputError(f"{text!r} is no share", where="--max-slowdown", hint="for example --max-slowdown 5%")
    return float(number[1]) / (100 if number[2] else 1)


def _seconds(text: str) -> float:
    number = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([a-z]*)\s*", text)
    if number is None or number[2] not in _UNITS:
        raise InputError(f"{text!r} is no time", where="--budget", hint="for example --budget 10m")
    return float(number[1]) * _UNITS[number[2]]


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise InputError(f"it cannot be written: {error.strerror}", where=str(path)) from error
