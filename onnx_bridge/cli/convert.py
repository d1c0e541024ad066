"""The verb ``convert``: one model into one bundle, or many into a folder of them.

Batches are imported where they are asked for, which would take a twentieth of a small conversion; the conversion of one
model, once its processes are starting.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from onnx_bridge.batch.jobs import is_batch
from onnx_bridge.cli.options import (
    As,
    Buckets,
    Cache,
    Calibration,
    Dims,
    Freeze,
    Host,
    Keep,
    MaxLength,
    Memory,
    Options,
    Pad,
    PadBefore,
    Pipeline,
    Precision,
    Prefill,
    ProbeBudget,
    Runtime,
    Shapes,
    Target,
    Timeout,
    dims,
    is_size,
    shapes,
    sizes,
    ties,
    values,
)
from onnx_bridge.cli.terminal import Json, show, volume
from onnx_bridge.conversion.launch import launch
from onnx_bridge.core.files.locations import parse_location
from onnx_bridge.migraphx.compile_options import parse_option
from onnx_bridge.requests.batch import BatchRequest, JobRequest
from onnx_bridge.requests.conversion import PROVE_BUDGET, ConvertRequest, DecoderSizes
from onnx_bridge.requests.parity import CheckRequest
from passes.core.errors import InputError, nearest

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
    probe_budget: ProbeBudget = None,
    precision: Precision = "fp32",
    calibration: Calibration = None,
    keep_fp32: Keep = None,
    option: Options = None,
    rehearse: Annotated[
        str | None,
        typer.Option(metavar="gpu", help="Rehearse the gpu target's passes, too, and rewrite what they get wrong."),
    ] = None,
    runtime: Runtime = None,
    timeout: Timeout = None,
    memory: Memory = None,
    prove: Annotated[
        str,
        typer.Option(
            metavar="auto|always|never",
            help="Run the bundle against the reference: within the budget, else by a witness; at real size; or not.",
        ),
    ] = "auto",
    prove_budget: Annotated[
        float, typer.Option(metavar="S", min=0.001, help="Of --prove auto: the most estimated seconds of a run.")
    ] = PROVE_BUDGET,
    check: Annotated[bool, typer.Option("--check", help="Compare each bundle with the reference.")] = False,
    rtol: Annotated[float | None, typer.Option(min=0.0, help="Of --check: relative tolerance.")] = None,
    atol: Annotated[float | None, typer.Option(min=0.0, help="Of --check: absolute tolerance.")] = None,
    bucket: Buckets = None,
    pad: Pad = None,
    pad_before: PadBefore = None,
    as_: As = None,
    max_length: MaxLength = None,
    prefill: Prefill = "",
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
    verify: Annotated[
        bool, typer.Option("--verify", help="Read kept bundles whole, also where their files seem unchanged.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be done, write nothing.")] = False,
    as_json: Json = False,
) -> None:
    """Clean a model, compile it with MIGraphX, and write the bundle; many models, a bundle for each.

    What MIGraphX cannot run becomes host partitions, which ONNX Runtime runs, unless --no-host forbids it. Each of many
    models gets a folder in OUT; repeating the command converts those that are missing or have changed. Exit code 1 if
    one failed, or if --prove or --check finds a difference.
    """
    listed, tied = ties(bucket)
    conversion = ConvertRequest(
        target=target,
        pipeline=pipeline,
        dims=dims(dim),
        shapes={name: tuple(sizes) for name, sizes in shapes(shape).items()},
        freeze=values(freeze),
        buckets=sizes(listed),
        ties=tied,
        pad=values(pad, "--pad", "mask=0"),
        pad_before=tuple(pad_before or ()),
        decoder=_decoder_sizes(as_, max_length, prefill),
        host=host,
        cache=cache,
        probe_budget=probe_budget,
        precision=precision,
        calibration=calibration,
        keep_fp32=tuple(keep_fp32 or ()),
        options=dict(map(parse_option, option or ())),
        timeout=timeout,
        memory=memory,
        rehearse=rehearse,
        prove=prove,
        prove_budget=prove_budget,
    )
    request = JobRequest(conversion, check, CheckRequest(rtol=rtol, atol=atol))
    _check_engine(engine, address)
    places, target_place = [parse_location(each) for each in sources], parse_location(out)
    if engine != "local" or not isinstance(target_place, Path) or is_batch(places) or dry_run:
        files = tuple(map(Path, context.find_root().params.get("files") or ()))
        batch = BatchRequest(tuple(places), target_place, request, jobs, resume, retry, verify, dry_run, files)
        _convert_many(batch, address, engine == "ray", as_json)
    else:
        _convert_one(Path(sources[0]), target_place, request, as_json)


def _decoder_sizes(kind: str | None, max_length: int | None, prefill: str) -> DecoderSizes | None:
    """The sizes of ``--as decoder``; None without it; raises InputError."""
    if kind not in (None, "decoder"):
        raise InputError("there is no such kind of model", where=f"--as {kind}", hint="there is decoder")
    if kind is None:
        given = "--max-length" if max_length is not None else "--prefill" if prefill else None
        if given is not None:
            raise InputError("only a decoder has it", where=given, hint="give --as decoder as well")
        return None
    if max_length is None:
        raise InputError("a decoder needs the size of its cache", where="--as decoder", hint="give --max-length 512")
    widths = [each.strip() for each in prefill.split(",") if each.strip()]
    if not all(map(is_size, widths)):
        raise InputError(f"{prefill!r} is not SIZE,SIZE", where="--prefill", hint="for example --prefill 16,64")
    return DecoderSizes(max_length, tuple(map(int, widths)))


def _check_engine(engine: str, address: str | None) -> None:
    if engine not in ("local", "ray"):
        hint = nearest(engine, ("local", "ray")) or "local, or ray"
        raise InputError("there is no such engine", where=f"--engine {engine}", hint=hint)
    if address is not None and engine != "ray":
        raise InputError("only Ray has an address", where=f"--address {address}", hint="give --engine ray as well")


def _convert_one(source: Path, out: Path, request: JobRequest, as_json: bool) -> None:
    launch(request.conversion)
    from onnx_bridge.cli.convert_one import convert_one

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
    show(outcome, as_json)
    if not outcome.passed:
        raise typer.Exit(1)
