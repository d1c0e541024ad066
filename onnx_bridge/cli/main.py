"""The console script ``onnx-bridge``: finds the module of a verb, runs it, and turns errors into a message and a code.

Exit codes: 0 success, 1 the answer is no, 2 usage or bad input, 3 the runtime failed, 4 nothing is wrong or proven.
With ``--json`` exactly one JSON document goes to standard output, also for an error; all else to standard error.
"""

from __future__ import annotations

import ast
import contextlib
import errno
import importlib.util
import io
import json
import os
import shlex
import shutil
import signal
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer
from typer.core import TyperGroup

import passes
from onnx_bridge.cli import terminal
from onnx_bridge.cli.help import GroupedCommand
from onnx_bridge.core.errors import OutOfMemory
from onnx_bridge.core.version import VERSION
from passes.core.errors import BridgeError, InputError, nearest
from passes.isolation import deferred

_PARSER: Any = sys.modules[typer.BadParameter.__module__]
"""The parser's errors: those of click, which some versions of typer carry themselves."""
_VERBS = {
    "everyday": ("doctor", "convert", "check", "run"),
    "models": ("passes", "clean", "quantize", "export"),
    "bundles": ("generate", "inspect", "diff", "pack", "unpack", "verify"),
    "faults": ("bisect", "reduce"),
    "speed": ("bench", "tune", "mixed-precision"),
    "setup": ("runtime", "cache", "docs"),
}
"""The verbs by package of `onnx_bridge.cli`, in the order of ``--help``; each has a module there.

It has a function of the verb's name, or, for a verb that has verbs of its own, a typer application ``app``."""
VERBS = {verb: f"onnx_bridge.cli.{package}.{verb.replace('-', '_')}" for package in _VERBS for verb in _VERBS[package]}
"""The module of each verb."""


class _Verbs(TyperGroup):
    """The verbs, whose modules are imported when they are called: importing them all would take a second.

    For ``--help`` and completion the first line of a verb's docstring is read without importing its module.
    """

    _listing = False

    def list_commands(self, ctx: Any) -> list[str]:
        return list(VERBS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name not in VERBS:
            return None
        return _listed(cmd_name) if self._listing else _loaded(cmd_name)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args[0] not in VERBS and not args[0].startswith("-"):
            hint = nearest(args[0], VERBS) or "`onnx-bridge --help` lists the verbs"
            raise InputError(f"there is no verb {args[0]!r}", hint=hint)
        return super().resolve_command(ctx, args)

    def format_help(self, ctx: Any, formatter: Any) -> None:
        with self._list_only():
            super().format_help(ctx, formatter)

    def shell_complete(self, ctx: Any, incomplete: str) -> Any:
        with self._list_only():
            return super().shell_complete(ctx, incomplete)

    @contextlib.contextmanager
    def _list_only(self) -> Iterator[None]:
        self._listing = True
        try:
            yield
        finally:
            self._listing = False


def _function(verb: str) -> str:
    return verb.replace("-", "_")


def _loaded(verb: str) -> Any:
    """Return the command of a verb, with its options."""
    module = deferred.load(VERBS[verb])
    app = getattr(module, "app", None)
    if app is None:
        app = typer.Typer(context_settings=_CONTEXT, add_completion=False)
        app.command(verb, cls=GroupedCommand, epilog=_EPILOG)(getattr(module, _function(verb)))
    command: Any = typer.main.get_command(app)
    command.name = verb
    for part_command in (command, *getattr(command, "commands", {}).values()):
        part_command.rich_markup_mode = None  # the help is plain, and its lines are not broken as the code's are
        paragraphs = [" ".join(part.split()) for part in (part_command.help or "").split("\n\n")]
        unbroken = [f"\b\n{part}" if part.startswith("Example: ") else part for part in paragraphs]  # to be copied
        part_command.help, part_command.short_help = "\n\n".join(unbroken), paragraphs[0]
    return command


def _listed(verb: str) -> Any:
    """Return the name and the summary of a verb."""
    spec = importlib.util.find_spec(VERBS[verb])
    assert spec is not None
    assert spec.origin is not None
    tree: ast.Module | ast.FunctionDef = ast.parse(Path(spec.origin).read_text(encoding="utf-8"))
    for statement in tree.body:
        if isinstance(statement, ast.FunctionDef) and statement.name == _function(verb):
            tree = statement
    summary = (ast.get_docstring(tree) or "").partition("\n\n")[0]
    app = typer.Typer()
    app.command(verb, short_help=" ".join(summary.split()))(lambda: None)
    return typer.main.get_command(app)


_ANYWHERE = {"--debug": "debug", "--quiet": "quiet", "-q": "quiet", "--verbose": "verbose", "-v": "verbose"}
"""Options of every verb, which may stand before it and after it."""
_BATCHES = ("--batch", "--batch-size", "--fill1")
_OF_OTHER_TOOLS = {
    **{f"--{precision}": f"--precision {precision}" for precision in ("fp32", "fp16", "bf16", "int8", "fp8")},
    **{f"--{target}": f"--target {target}" for target in ("gpu", "ref")},
    **dict.fromkeys(("--shapes", "--input-shapes", "--input-dim", "--minShapes"), "--shape NAME:[1,3,224,224]"),
    **dict.fromkeys(("--optShapes", "--maxShapes"), "--bucket NAME=1,4,16"),
    **dict.fromkeys(_BATCHES, "--dim batch=N"),
    **dict.fromkeys(("--saveEngine", "--save-engine"), "-o OUT"),
    "--load-inputs": "--inputs X.npz",
}
"""Options of trtexec, Polygraphy and migraphx-driver, and ours of the same meaning."""
_EPILOG = "Every verb also takes --quiet, --verbose and --debug."
_CONTEXT = {"help_option_names": ["-h", "--help"], "max_content_width": 120}

app = typer.Typer(
    name="onnx-bridge",
    cls=_Verbs,
    rich_markup_mode=None,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings=_CONTEXT,
    help="Clean ONNX models, compile them with AMD MIGraphX, and prove that they still compute the same.",
)


def _version(wanted: bool) -> None:
    if wanted:
        print(f"onnx-bridge {VERSION}")
        raise typer.Exit


@app.callback()
def _main(
    version: Annotated[
        bool, typer.Option("--version", is_eager=True, callback=_version, help="Print the version and leave.")
    ] = False,
    quiet: Annotated[bool, typer.Option("-q", "--quiet", help="Print only errors; use the exit code.")] = False,
    verbose: Annotated[
        bool, typer.Option("-v", "--verbose", help="Results in full: every node, job and pass, not only what matters.")
    ] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show a traceback with an error.")] = False,
    files: Annotated[
        list[Path] | None, typer.Option("--passes", metavar="FILE.py", help="Passes of your own; repeatable.")
    ] = None,
) -> None:
    for path in files or ():
        passes.load_file(path)


def main() -> NoReturn:
    """Run a command, and turn errors into one message and an exit code: the console script."""
    deferred.quick_start()
    arguments = [argument for argument in sys.argv[1:] if argument not in _ANYWHERE]
    said = {_ANYWHERE[argument] for argument in sys.argv[1:] if argument in _ANYWHERE}
    terminal.volume.quiet, terminal.volume.verbose = "quiet" in said, "verbose" in said
    debug, as_json = "debug" in said, "--json" in arguments
    _prepare_streams()
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
    except MemoryError:
        what = "there is not enough memory"
        _fail(OutOfMemory(what, hint="free some, or raise the limit (ulimit) of this process"), as_json)
    except BrokenPipeError:  # the reader (head, less) has seen enough
        _leave(0)
    except Exception as error:
        if isinstance(error, _PARSER.ClickException):
            _fail_to_parse(error, as_json)
        if isinstance(error, OSError) and error.errno in (errno.ENAMETOOLONG, errno.ELOOP):
            _fail(InputError(f"no file can be there: {error.strerror}", where=str(error.filename)), as_json)
        if debug:
            raise
        what = f"unexpected {type(error).__name__}: {error}"
        _fail(BridgeError(what, hint="this is a defect; `onnx-bridge --debug …` shows where"), as_json, code=3)
    if code == 130:  # typer's own for Ctrl-C, too
        print("interrupted", file=sys.stderr)
    _leave(code if isinstance(code, int) else 0)


def _prepare_streams() -> None:
    """Prepare the standard streams so that failing to write to them is an error like others."""
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:  # closed: the next file that is opened would get its number, and what is printed
            os.open(os.devnull, os.O_RDWR)
    sys.stderr = sys.stderr or io.TextIOWrapper(io.FileIO(2, "w"))
    if sys.stdout is None:
        sys.stdout = io.TextIOWrapper(io.FileIO(1, "w"))
        _fail(InputError("standard output is closed", hint="redirect it to a file, or to /dev/null"), False)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # names and signs that the terminal cannot show are no error
            stream.reconfigure(errors="backslashreplace")
    if type(sys.stdout) is io.TextIOWrapper:  # not one that a test reads
        encoding, errors, by_line = sys.stdout.encoding, sys.stdout.errors, sys.stdout.line_buffering
        sys.stdout = _Output(sys.stdout.detach(), encoding, errors, line_buffering=by_line)


class _Output(io.TextIOWrapper):
    """Standard output; failing to write to it is an `InputError`."""

    def write(self, text: str) -> int:
        with _reported():
            return super().write(text)

    def flush(self) -> None:
        with _reported():
            super().flush()


@contextlib.contextmanager
def _reported() -> Iterator[None]:
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        raise InputError(f"standard output cannot be written: {error.strerror}") from error


def _terminated(number: int, _frame: object) -> NoReturn:
    sys.exit(128 + number)


def _fail(error: BridgeError, as_json: bool, code: int | None = None) -> NoReturn:
    code = error.exit_code if code is None else code
    if as_json:
        fields: dict[str, Any] = {"kind": type(error).__name__, "what": error.what, "where": error.where}
        fields |= {"hint": error.hint, "page": error.page, "exit_code": code}
        fields |= {"details": error.details} if error.details else {}
        with contextlib.suppress(OSError, InputError):  # a full disk may be what it is about
            print(json.dumps({"error": fields}, indent=2))
    with contextlib.suppress(OSError):
        more = f"; see `onnx-bridge docs {error.page.replace('.md', '')}`" if error.page and not error.options else ""
        text = f"onnx-bridge: {error}{more}"
        if sys.stderr.isatty():  # which would cut words
            width = shutil.get_terminal_size().columns
            wrapper = textwrap.TextWrapper(width, break_long_words=False, break_on_hyphens=False)
            text = "\n".join(map(wrapper.fill, text.splitlines()))
        print(text, file=sys.stderr)
        repeated = shlex.join(["onnx-bridge", *sys.argv[1:], *error.options]) if error.options else None
        if command := repeated or error.details.get("command"):
            print(f"type: {command}", file=sys.stderr)
    _leave(code)


def _fail_to_parse(error: Any, as_json: bool) -> NoReturn:
    """Say what is wrong with the command line; an empty one gets the help."""
    what = error.format_message()
    if isinstance(error, _PARSER.NoArgsIsHelpError):  # its message is the help
        if not as_json:
            print(what)
            _leave(InputError.exit_code)
        what = "the verb is missing"
    verb = error.ctx.command_path if error.ctx is not None else app.info.name
    hint = f"`{verb} --help` shows what it takes"
    meant = _OF_OTHER_TOOLS.get(getattr(error, "option_name", ""))
    if meant and any(meant.split()[0] in option.opts for option in error.ctx.command.params):
        advice = _batch_advice(error.option_name) if error.option_name in _BATCHES else f"write {meant}"
        what, hint = f"there is no option {error.option_name}", f"{advice}; {hint}"
    _fail(InputError(what, hint=hint), as_json)


def _batch_advice(option: str) -> str:
    """Return how the model of the command line gets the batch that an option of other tools asks for."""
    words = " ".join(sys.argv).replace(f"{option}=", f"{option} ").split(f"{option} ")[-1].split()
    size = words[0] if words and words[0].isdecimal() else "1" if option == "--fill1" else "N"
    names: set[Any] = {"batch"}
    with contextlib.suppress(BridgeError):
        from onnx_bridge.model import io as models
        from onnx_bridge.samples.inputs import specs

        path = next((Path(word) for word in sys.argv if word.endswith(".onnx")), Path())
        names = {spec.shape[0] for spec in specs(models.load(path)) if spec.shape}
    if any(isinstance(name, int) for name in names):
        return f"the batch of {path} is {', '.join(map(str, names))}: export it with an open one for others"
    return "write " + " ".join(f"--dim {name}={size}" for name in sorted(name or "batch" for name in names))


def _leave(code: int) -> NoReturn:
    try:
        sys.stdout.flush()
    except (OSError, InputError) as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # what is left in the buffer is dropped, instead of failing again
        if code == 0 and isinstance(error, InputError):
            _fail(error, False)
    sys.exit(code)
