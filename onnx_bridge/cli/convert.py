"""The verb ``convert``: one model into one bundle, or many into a folder of them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from onnx_bridge.cli.options import (
    Buckets,
    Cache,
    Calibration,
    Dims,
    Freeze,
    Host,
    Keep,
    Memory,
    Options,
    Pad,
    Pipeline,
    Precision,
    Shapes,
    Target,
    Timeout,
    dims,
    shapes,
    sizes,
    values,
)
from onnx_bridge.cli.terminal import Json, progress, show
from passes.core.errors import InputError, nearest

if TYPE_CHECKING:
    from onnx_bridge.batch.jobs import Settings
    from onnx_bridge.core.locations import Location

Sources = Annotated[
    list[str],
    typer.Argument(
        metavar="SRC…",
        help="An ONNX file; or many: files, folders, globs, a list (.txt), a job file (.toml, .yaml); paths or URLs.",
        show_default=False,
    ),
]


def convert(
    context: typer.Context,
    sources: Sources,
    out: Annotated[
        str,
        typer.Option(
            "-o",
            "--output",
            metavar="OUT",
            help="A folder, as a path or a URL; or, for one model, a name ending in .mxr.",
            show_default=False,
        ),
    ],
    target: Target = "auto",
    pipeline: Pipeline = "default",
    dim: Dims = None,
    shape: Shapes = None,
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
    bucket: Buckets = None,
    pad: Pad = None,
    engine: Annotated[
        str, typer.Option(metavar="local|ray", help="Where many models are converted: here, or on a Ray cluster.")
    ] = "local",
    address: Annotated[
        str | None,
        typer.Option(metavar="HOST:PORT", help="Of the Ray cluster; default: RAY_ADDRESS, or the one of this machine."),
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

    What MIGraphX cannot run becomes partitions that ONNX Runtime runs, unless --no-host forbids it. Of many, each gets
    a folder in OUT; the same command again does what is not done yet, or has changed. Exit code 1 where one failed, or
    where --check finds a difference.
    """
    from onnx_bridge.batch.jobs import Settings, is_batch
    from onnx_bridge.core.locations import parse_location
    from onnx_bridge.migraphx.compile_options import parse_option

    settings = Settings(
        target=target,
        pipeline=pipeline,
        dims=dims(dim),
        shapes={name: tuple(sizes) for name, sizes in shapes(shape).items()},
        freeze=values(freeze),
        buckets=sizes(bucket),
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
    _check_engine(engine, address)
    places, target_place = [parse_location(each) for each in sources], parse_location(out)
    if engine != "local" or not isinstance(target_place, Path) or is_batch(places) or dry_run:
        files = list(context.find_root().params.get("files") or ())
        chosen = (engine, address, jobs)
        _convert_many(places, target_place, settings, chosen, resume, retry, dry_run, files, verbose, as_json)
    else:
        _convert_one(Path(sources[0]), target_place, settings, as_json)


def _check_engine(engine: str, address: str | None) -> None:
    if engine not in ("local", "ray"):
        hint = nearest(engine, ("local", "ray")) or "local, or ray"
        raise InputError("there is no such engine", where=f"--engine {engine}", hint=hint)
    if address is not None and engine != "ray":
        raise InputError("only Ray has an address", where=f"--address {address}", hint="give --engine ray as well")


def _convert_one(source: Path, out: Path, settings: Settings, as_json: bool) -> None:
    import onnx_bridge
    from onnx_bridge.bundle.bundle import Bundle
    from onnx_bridge.bundle.inspect import describe_bundle
    from onnx_bridge.conversion.buckets import convert_buckets

    with progress(as_json) as tell:
        bundle: Bundle | onnx_bridge.Buckets
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
            raise typer.Exit(report.exit_code)


def _convert_many(
    sources: list[Location],
    out: Location,
    settings: Settings,
    chosen: tuple[str, str | None, int | None],
    resume: bool,
    retry: bool,
    dry_run: bool,
    passes: list[Path],
    verbose: bool,
    as_json: bool,
) -> None:
    from onnx_bridge.batch.batch import convert_all
    from onnx_bridge.batch.progress import watching

    engine, address, jobs = chosen

    if out.suffix == ".mxr" and not dry_run:
        raise InputError("many models need a folder", where=str(out), hint="give -o a folder")
    cluster = None
    if engine == "ray":
        from onnx_bridge.batch.ray_engine import Ray

        cluster = Ray(address, jobs)
    with watching(quiet=as_json or dry_run) as watcher:
        outcome = convert_all(
            sources,
            out,
            settings,
            engine=cluster,
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
