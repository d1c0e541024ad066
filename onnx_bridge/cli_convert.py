"""The verb ``convert``: one model into one bundle, or many into a folder of them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from onnx_bridge.cli_options import (
    Cache,
    Calibration,
    Dims,
    Freeze,
    Host,
    Keep,
    Memory,
    Options,
    Pipeline,
    Precision,
    Shapes,
    Target,
    Timeout,
    dims,
    shapes,
    values,
)
from onnx_bridge.terminal import Json, progress, show
from passes.errors import InputError

if TYPE_CHECKING:
    from onnx_bridge.conversion.jobs import Settings

Sources = Annotated[
    list[Path],
    typer.Argument(
        metavar="SRC…",
        help="An ONNX file; or many: files, folders, globs, a list (.txt), a job file (.toml, .yaml).",
        show_default=False,
    ),
]


def convert(
    context: typer.Context,
    sources: Sources,
    out: Annotated[
        Path,
        typer.Option(
            "-o",
            "--output",
            metavar="OUT",
            help="A folder, or, for one model, a name ending in .mxr.",
            show_default=False,
        ),
    ],
    target: Target = "auto",
    pipeline: Pipeline = "default",
    dim: Dims = None,
    input_: Shapes = None,
    freeze: Freeze = None,
    host: Host = True,
    cache: Cache = True,
    precision: Precision = "fp32",
    calibration: Calibration = None,
    keep_fp32: Keep = None,
    option: Options = None,
    timeout: Timeout = None,
    memory: Memory = None,
    check: Annotated[bool, typer.Option("--check", help="Compare each bundle with the reference.")] = False,
    rtol: Annotated[float | None, typer.Option(min=0.0, help="Of --check: relative tolerance.")] = None,
    atol: Annotated[float | None, typer.Option(min=0.0, help="Of --check: absolute tolerance.")] = None,
    bucket: Annotated[
        list[str] | None,
        typer.Option("--bucket", metavar="NAME=1,4,16", help="Sizes of a dimension, a program for each; repeatable."),
    ] = None,
    pad: Annotated[
        list[str] | None,
        typer.Option("--pad", metavar="NAME=VALUE", help="What fills an input up to its bucket: a number (0) or edge."),
    ] = None,
    jobs: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="How many at a time; default: by cores and memory.")
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume/--no-resume", help="Whether many models go on from what was done before.")
    ] = True,
    retry: Annotated[bool, typer.Option("--retry", help="Try again what failed before.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be done, write nothing.")] = False,
    verbose: Annotated[bool, typer.Option("-v", "--verbose", help="Every job, not the failures alone.")] = False,
    as_json: Json = False,
) -> None:
    """Clean a model, compile it with MIGraphX, and write the bundle; many models, a bundle for each.

    What MIGraphX cannot run becomes stages that ONNX Runtime runs, unless --no-host forbids it. Of many, each gets a
    folder in OUT; the same command again does what is not done yet, or has changed. Exit code 1 where one failed, or
    where --check finds a difference.
    """
    from onnx_bridge.conversion.jobs import Settings, is_batch
    from onnx_bridge.options import parse_option

    settings = Settings(
        target=target,
        pipeline=pipeline,
        dims=dims(dim),
        inputs={name: tuple(shape) for name, shape in shapes(input_).items()},
        freeze=values(freeze),
        buckets=_buckets(bucket),
        pad=values(pad, "--pad", "mask=0"),
        host=host,
        cache=cache,
        precision=precision,
        calibration=calibration,
        keep_fp32=tuple(keep_fp32 or ()),
        options=dict(map(parse_option, option or ())),
        timeout=timeout,
        memory=memory,
        check=check,
        rtol=rtol,
        atol=atol,
    )
    if is_batch(sources) or dry_run:
        files = list(context.find_root().params.get("files") or ())
        _convert_many(sources, out, settings, jobs, resume, retry, dry_run, files, verbose, as_json)
    else:
        _convert_one(sources[0], out, settings, as_json)


def _convert_one(source: Path, out: Path, settings: Settings, as_json: bool) -> None:
    import onnx_bridge
    from onnx_bridge.conversion.buckets import Buckets, convert_buckets
    from onnx_bridge.conversion.bundle import Bundle
    from onnx_bridge.inspection import describe_bundle

    with progress(as_json) as tell:
        bundle: Bundle | Buckets
        if settings.buckets:
            bundle = convert_buckets(
                source, out, settings.buckets, pad=settings.pad, **settings.conversion(), progress=tell
            )
        else:
            bundle = onnx_bridge.convert(source, out, **settings.conversion(), progress=tell)
        report = None
        if settings.check:
            report = onnx_bridge.check(bundle, rtol=settings.rtol, atol=settings.atol, progress=tell)
    if report is None or not as_json:
        show(describe_bundle(bundle) if isinstance(bundle, Bundle) else bundle, as_json)
    if report is not None:
        show(report, as_json)
        if not report.passed:
            raise typer.Exit(1)


def _buckets(texts: list[str] | None) -> dict[str, tuple[int, ...]]:
    """Sizes by dimension, of ``NAME=1,4,16``; raises InputError."""
    found = {}
    for text in texts or ():
        name, _, sizes = text.rpartition("=")
        parts = [each.strip() for each in sizes.split(",")]
        if not name or not all(each.isdecimal() for each in parts):
            hint = "for example --bucket batch=1,4,16"
            raise InputError(f"{text!r} is not NAME=SIZE,SIZE", where="--bucket", hint=hint)
        found[name] = tuple(map(int, parts))
    return found


def _convert_many(
    sources: list[Path],
    out: Path,
    settings: Settings,
    jobs: int | None,
    resume: bool,
    retry: bool,
    dry_run: bool,
    passes: list[Path],
    verbose: bool,
    as_json: bool,
) -> None:
    from onnx_bridge.conversion.batch import convert_all
    from onnx_bridge.conversion.watching import watching

    if out.suffix == ".mxr" and not dry_run:
        raise InputError("many models need a folder", where=str(out), hint="give -o a folder")
    with watching(quiet=as_json or dry_run) as watcher:
        outcome = convert_all(
            sources,
            out,
            settings,
            jobs=jobs,
            resume=resume,
            retry=retry,
            dry_run=dry_run,
            passes=passes,
            watcher=watcher,
        )
    show(outcome, as_json, verbose=verbose)
    if not outcome.passed:
        raise typer.Exit(1)
