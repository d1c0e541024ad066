"""The command line: each verb reads its options, calls the API function of the same name, and renders the result.

Exit codes: 0 good, 1 the answer is no, 2 usage or bad input, 3 the runtime failed. With ``--json`` exactly one JSON
document goes to standard output, an error too; everything else goes to standard error.
"""

from __future__ import annotations

import contextlib
import enum
import io
import json
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from onnx_bridge.cli import bench, convert, export, parity, quantize, runtime
from onnx_bridge.cli import bundle as cli_bundle
from onnx_bridge.cli import cache as cli_cache
from onnx_bridge.cli import passes as cli_passes
from onnx_bridge.cli.options import (
    Atol,
    Cache,
    Dims,
    Freeze,
    Host,
    Memory,
    Model,
    Pipeline,
    Rtol,
    Samples,
    Seed,
    Shapes,
    Target,
    Timeout,
    dims,
    shapes,
    values,
)
from onnx_bridge.cli.terminal import Json, progress, show
from onnx_bridge.core.deferred import defer
from passes.core.errors import BridgeError, InputError

if TYPE_CHECKING:
    from onnx_bridge.reference.tolerances import Part

app = typer.Typer(
    name="onnx-bridge",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Clean ONNX models, compile them with AMD MIGraphX, and prove that they still compute the same.",
)
app.add_typer(cli_passes.app, name="passes")
app.add_typer(runtime.app, name="runtime")
app.add_typer(cli_cache.app, name="cache")


class AsTarget(enum.Enum):
    """What `check` can compute as on."""

    gpu = "gpu"


ModelOrBundle = Annotated[
    Path, typer.Argument(metavar="MODEL|BUNDLE", help="An ONNX file, or what `convert` wrote.", show_default=False)
]
Html = Annotated[
    Path | None, typer.Option("--report", metavar="OUT.html", help="Write a page that a browser shows, offline.")
]


class Verify(enum.Enum):
    """When `clean` compares numbers."""

    none = "none"
    each = "each"


def _version(wanted: bool) -> None:
    if wanted:
        from onnx_bridge.core.version import VERSION

        print(f"onnx-bridge {VERSION}")
        raise typer.Exit


@app.callback()
def _main(
    version: Annotated[
        bool, typer.Option("--version", is_eager=True, callback=_version, help="Print the version and leave.")
    ] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show a traceback with an error.")] = False,
    files: Annotated[
        list[Path] | None, typer.Option("--passes", metavar="FILE.py", help="Passes of your own; repeatable.")
    ] = None,
) -> None:
    import passes

    for path in files or ():
        passes.load_file(path)


app.command()(export.export)
app.command()(quantize.quantize)


@app.command()
def clean(
    model: Model,
    out: Annotated[Path | None, typer.Option("-o", "--output", metavar="OUT.onnx", help="The cleaned model.")] = None,
    pipeline: Pipeline = "default",
    dim: Dims = None,
    input_: Shapes = None,
    freeze: Freeze = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be done, write nothing.")] = False,
    verify: Annotated[
        Verify, typer.Option(help="'each' runs the model on ONNX Runtime before and after each pass.")
    ] = Verify.none,
    max_rewrites: Annotated[int | None, typer.Option(min=0, help="Stop after so many rewrites.")] = None,
    trace: Annotated[bool, typer.Option("--trace", help="Show every rewrite, with its nodes.")] = False,
    as_json: Json = False,
) -> None:
    """Rewrite a model with the passes of a pipeline. Exit code 1 where `--verify` finds that numbers moved."""
    if (out is None) != dry_run:
        raise InputError("say where the cleaned model goes with -o OUT.onnx, or only look with --dry-run (not both)")
    import onnx_bridge

    with progress(as_json) as tell:
        cleaned = onnx_bridge.clean(
            model,
            out,
            pipeline=pipeline,
            dims=dims(dim),
            inputs=shapes(input_),
            freeze=values(freeze),
            verify=verify.value,
            max_rewrites=max_rewrites,
            progress=tell,
        )
    if trace and not as_json:
        print(cleaned.trace())
    show(cleaned, as_json)
    if not cleaned.passed:
        raise typer.Exit(1)


@app.command()
def doctor(
    model: Model,
    fix: Annotated[bool, typer.Option("--fix", help="Write the rewritten model to -o.")] = False,
    out: Annotated[Path | None, typer.Option("-o", "--output", metavar="OUT.onnx", help="The rewritten model.")] = None,
    verbose: Annotated[bool, typer.Option("-v", "--verbose", help="Every node, not every kind of operator.")] = False,
    html: Html = None,
    pipeline: Pipeline = "default",
    dim: Dims = None,
    input_: Shapes = None,
    freeze: Freeze = None,
    host: Host = True,
    cache: Cache = True,
    as_json: Json = False,
) -> None:
    """Ask MIGraphX about every node before a long compile, and say what will be done about those that it rejects.

    Exit code 0 where everything will run, which is said only after MIGraphX has parsed the whole; 1 where not.
    """
    if fix != (out is not None):
        raise InputError("say where the rewritten model goes with --fix -o OUT.onnx")
    import onnx_bridge

    with progress(as_json) as tell:
        found = onnx_bridge.doctor(
            model,
            out,
            pipeline=pipeline,
            dims=dims(dim),
            inputs=shapes(input_),
            freeze=values(freeze),
            host=host,
            cache=cache,
            progress=tell,
        )
    if html is not None:
        from onnx_bridge.report.diagnosis import write_diagnosis

        write_diagnosis(html, found)
    show(found, as_json, verbose=verbose)
    if not found.passed:
        raise typer.Exit(1)


app.command()(convert.convert)


@app.command()
def check(
    model: ModelOrBundle,
    inputs: Annotated[
        Path | None,
        typer.Option(
            "--inputs",
            metavar="FILE|DIR|SCRIPT.py[:FUNCTION]",
            help="Inputs: an .npz, a folder of .pb, a Polygraphy .json or loader script.",
        ),
    ] = None,
    reference: Annotated[
        Path | None, typer.Option("--reference", metavar="MODEL", help="The original of a bundle, if it has moved.")
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
        bool, typer.Option("--layers", help="Compare every value within the model, and say where it begins to differ.")
    ] = False,
    html: Html = None,
    junit: Annotated[Path | None, typer.Option(metavar="OUT.xml", help="Write the results as JUnit's XML.")] = None,
    save_results: Annotated[
        Path | None, typer.Option(metavar="OUT.json", help="Write all outputs as Polygraphy's tools read them.")
    ] = None,
    layers_memory: Annotated[
        float | None, typer.Option(metavar="GiB", min=0.001, help="Most memory of the values compared at a time (1).")
    ] = None,
    as_: Annotated[
        AsTarget | None, typer.Option("--as", help="Also run on ref what a GPU would compute of quantization.")
    ] = None,
    target: Target = "auto",
    pipeline: Pipeline = "default",
    dim: Dims = None,
    input_: Shapes = None,
    freeze: Freeze = None,
    host: Host = True,
    cache: Cache = True,
    timeout: Timeout = None,
    memory: Memory = None,
    as_json: Json = False,
) -> None:
    """Compare a model with its reference: the original on ONNX Runtime, all optimizations off.

    Compared are the cleaned model on ONNX Runtime, and the bundle. Exit code 1 where either differs, 3 where MIGraphX
    fails: files are written all the same.
    """
    import onnx_bridge

    if save_results is not None:
        from onnx_bridge.parity import polygraphy  # which may not be installed: better told before a long check

    with progress(as_json) as tell:
        report = onnx_bridge.check(
            model,
            reference=reference,
            inputs=inputs,
            seed=seed,
            samples=samples,
            rtol=rtol,
            atol=atol,
            tolerance=tolerance,
            tolerances=_tolerances(tol),
            layers=layers,
            layers_memory=layers_memory,
            evidence=html is not None or save_results is not None,
            as_target="gpu" if as_ else None,
            target=target,
            pipeline=pipeline,
            dims=dims(dim),
            input_shapes=shapes(input_),
            freeze=values(freeze),
            host=host,
            cache=cache,
            timeout=timeout,
            memory=memory,
            progress=tell,
        )
    if html is not None:
        from onnx_bridge.report.check import write_report

        write_report(html, report, evidence=report.evidence)
    if junit is not None:
        from onnx_bridge.report.junit import write_junit

        write_junit(junit, report)
    if save_results is not None and report.evidence is not None:
        polygraphy.save_results(save_results, report.evidence.results)
    show(report, as_json)
    if not report.passed:
        raise typer.Exit(report.exit_code)


app.command()(parity.bisect)
app.command()(parity.reduce)


@app.command()
def run(
    bundle: Annotated[Path, typer.Argument(metavar="BUNDLE", help="What `convert` wrote.", show_default=False)],
    inputs: Annotated[Path, typer.Option("--inputs", metavar="X.npz", help="One array an input.", show_default=False)],
    out: Annotated[
        Path, typer.Option("-o", "--output", metavar="Y.npz", help="One array an output.", show_default=False)
    ],
    timeout: Timeout = None,
    memory: Memory = None,
    as_json: Json = False,
) -> None:
    """Run a bundle on arrays from a file."""
    from onnx_bridge.bundle.run import run_files

    with progress(as_json) as tell:
        result = run_files(bundle, inputs, out, timeout=timeout, memory=memory, progress=tell)
    show(result, as_json)


@app.command()
def diff(
    first: Annotated[Path, typer.Argument(metavar="A.onnx", help="The model before.", show_default=False)],
    second: Annotated[Path, typer.Argument(metavar="B.onnx", help="The model after.", show_default=False)],
    as_json: Json = False,
) -> None:
    """Show which nodes were removed, added and changed between two models, and by which passes."""
    import onnx_bridge

    show(onnx_bridge.diff(first, second), as_json)


@app.command()
def inspect(model: ModelOrBundle, as_json: Json = False) -> None:
    """Show inputs, outputs, operators, parameters and quantization at a glance."""
    import onnx_bridge

    show(onnx_bridge.inspect(model), as_json)


app.command()(cli_bundle.pack)
app.command()(cli_bundle.unpack)
app.command()(cli_bundle.verify)
app.command()(bench.bench)
app.command()(bench.tune)
app.command("mixed-precision")(bench.mixed_precision)


def main() -> NoReturn:
    """The console script: runs a command and turns errors into one message and an exit code."""
    defer()
    arguments = [each for each in sys.argv[1:] if each != "--debug"]  # which may stand anywhere
    debug, as_json = len(arguments) < len(sys.argv) - 1, "--json" in arguments
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # names and signs that the terminal cannot show are no error
            stream.reconfigure(errors="backslashreplace")
    for number in (signal.SIGTERM, signal.SIGHUP):  # or what is half written would stay
        if signal.getsignal(number) is not signal.SIG_IGN:  # as nohup wants it
            signal.signal(number, _terminated)
    try:
        code = app(arguments, standalone_mode=False)
    except BridgeError as error:
        if debug:
            raise
        _fail(error, as_json)
    except (KeyboardInterrupt, typer.Abort):
        code = 130
    except BrokenPipeError:  # the reader (head, less) has seen enough
        _leave(0)
    except Exception as error:
        if hasattr(error, "format_message"):  # the parser's own, whose class typer does not export
            _fail(InputError(error.format_message(), hint="`onnx-bridge --help` shows verbs and options"), as_json)
        if debug:
            raise
        what = f"unexpected {type(error).__name__}: {error}"
        _fail(BridgeError(what, hint="this is a defect; `onnx-bridge --debug …` shows where"), as_json, code=3)
    if code == 130:  # typer's own for Ctrl-C, too
        print("interrupted", file=sys.stderr)
    _leave(code if isinstance(code, int) else 0)


def _terminated(number: int, _frame: object) -> NoReturn:
    sys.exit(128 + number)


def _fail(error: BridgeError, as_json: bool, code: int | None = None) -> NoReturn:
    code = error.exit_code if code is None else code
    if as_json:
        kind = type(error).__name__
        fields = {"kind": kind, "what": error.what, "where": error.where, "hint": error.hint, "exit_code": code}
        with contextlib.suppress(OSError):  # a full disk may be what it is about
            print(json.dumps({"error": fields}, indent=2))
    print(f"onnx-bridge: {error}", file=sys.stderr)
    _leave(code)


def _leave(code: int) -> NoReturn:
    with contextlib.suppress(OSError):
        sys.stdout.flush()
    sys.exit(code)


def _tolerances(values: list[str] | None) -> dict[str, Part]:
    from onnx_bridge.reference.tolerances import parse_tolerance

    return dict(map(parse_tolerance, values or ()))
