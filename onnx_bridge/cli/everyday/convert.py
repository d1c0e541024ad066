"""The verb ``convert``: one model into one bundle, or many into a folder of them.

Batches are imported only if there are many models, the conversion of one model once its processes are starting.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from onnx_bridge.cli.options import again, takes
from onnx_bridge.cli.terminal import Json, show, volume
from onnx_bridge.core.files.locations import Location
from onnx_bridge.requests.batch import BatchRequest, JobRequest
from passes.core.errors import InputError, nearest

Sources = Annotated[
    list[str],
    typer.Argument(
        metavar="SRC…",
        help="An ONNX file; or many: files, folders, globs, a list (.txt), a job file (.toml, .yaml); paths or URLs.",
        show_default=False,
    ),
]
Out = Annotated[
    str | None,
    typer.Option(
        "-o",
        "--output",
        metavar="OUT",
        help="A folder, as a path or a URL; or, for a single model, a name ending in .mxr; default: beside it.",
    ),
]
EngineName = Annotated[
    str,
    typer.Option(
        metavar="local|ray",
        help="The place to convert many models: here, or on a Ray cluster.",
        rich_help_panel="Many models",
    ),
]
Address = Annotated[
    str | None,
    typer.Option(
        metavar="HOST:PORT",
        help="The Ray cluster; default: RAY_ADDRESS, or this machine's.",
        rich_help_panel="Many models",
    ),
]


@takes(BatchRequest)
def convert(
    context: typer.Context,
    sources: Sources,
    request: BatchRequest,
    out: Out = None,
    engine: EngineName = "local",
    address: Address = None,
    as_json: Json = False,
) -> None:
    """Clean a model, compile it with MIGraphX, and write the bundle; many models, a bundle for each.

    Example: onnx-bridge convert bert.onnx -o bert --dim batch=2 --precision fp16

    What MIGraphX cannot run becomes host partitions, which ONNX Runtime runs, unless --no-host forbids it. Each of many
    models gets a folder in OUT; repeating the command converts those that are missing or have changed. Exit code 1 if
    one failed, or if --prove or --check finds a difference; 4 if ONNX Runtime refuses the inputs that a model would be
    compared on, so that the bundle is not proven (--prove never is content with that).
    """
    from onnx_bridge.batch.jobs import is_batch
    from onnx_bridge.core.files.locations import parse_location

    _check_engine(engine, address)
    places = tuple(parse_location(source) for source in sources)
    target = parse_location(out) if out is not None else _beside(places)
    if engine != "local" or not isinstance(target, Path) or is_batch(places) or request.dry_run:
        files = tuple(map(Path, context.find_root().params.get("files") or ()))
        _convert_many(replace(request, sources=places, out=target, passes=files), address, engine == "ray", as_json)
    else:
        for name in ("jobs", "retry", "verify"):
            for option in again(context, name):
                if option.startswith("--") and not volume.quiet:
                    print(f"onnx-bridge: {option} has no effect on a single model", file=sys.stderr)
        conversion = replace(request.job.conversion, reuse=request.resume)
        _convert_one(Path(sources[0]), target, replace(request.job, conversion=conversion), as_json)


def _beside(sources: Sequence[Location]) -> Path:
    """Return a folder beside a model; raises InputError if there are many, or if it is not here."""
    from onnx_bridge.batch.jobs import gather, is_batch

    source = sources[0]
    if not is_batch(sources) and isinstance(source, Path):
        has_suffix = source.suffix and not source.is_dir()
        return source.with_suffix("") if has_suffix else source.absolute().with_name(f"{source.absolute().name}-bundle")
    gather(sources, Path())  # raises what is wrong with them
    raise InputError("the place of the bundles is missing", where="-o", hint="give -o a folder")


def _check_engine(engine: str, address: str | None) -> None:
    if engine not in ("local", "ray"):
        hint = nearest(engine, ("local", "ray")) or "local, or ray"
        raise InputError("the engine does not exist", where=f"--engine {engine}", hint=hint)
    if address is not None and engine != "ray":
        raise InputError("only Ray has an address", where=f"--address {address}", hint="give --engine ray as well")


def _convert_one(source: Path, out: Path, request: JobRequest, as_json: bool) -> None:
    from onnx_bridge.conversion.launch import launch

    launch(request.conversion)
    from onnx_bridge.cli.everyday.convert_one import convert_one

    convert_one(source, out, request, as_json)


def _convert_many(batch: BatchRequest, address: str | None, on_ray: bool, as_json: bool) -> None:
    from onnx_bridge.batch import convert_all
    from onnx_bridge.batch.engines.ray import Ray
    from onnx_bridge.views.terminal.batch_progress import observer

    if batch.out.suffix == ".mxr" and not batch.dry_run:
        raise InputError("many models need a folder", where=str(batch.out), hint="give -o a folder")
    engine = Ray(address, batch.jobs) if on_ray else None
    with observer(quiet=as_json or volume.quiet or batch.dry_run) as watching:
        outcome = convert_all.run(batch, engine, watching)
    show(outcome, as_json, code=outcome.exit_code)
