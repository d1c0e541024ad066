"""Output of the verbs of the command line: results, and progress before them."""

from __future__ import annotations

import contextlib
import json
import shlex
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from onnx_bridge.core.progress import QUIET_SECONDS, TimedProgress, duration
from passes.core.text import printable


@dataclass
class Volume:
    """The amount that is printed: errors alone if ``quiet``, all of a result that has a shorter form if ``verbose``."""

    quiet: bool = False
    verbose: bool = False


volume = Volume()
"""The volume of this process."""
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document on standard output.")]


def show(
    result: Any, as_json: bool, then: Sequence[object] = (), written: Sequence[Path | None] = (), code: int = 0
) -> None:
    """Print a result of the API: its JSON document, also with ``--quiet``, or its view; raises `typer.Exit`.

    Args:
        result: a result that has ``to_json`` and a view (`onnx_bridge.views.terminal`).
        as_json: whether to print the JSON document.
        then: the arguments of the next command, which is printed as a line to copy.
        written: the other files that were written, each printed in a line; None for a file that was not requested.
        code: the exit code.
    """
    if as_json:
        print(json.dumps(result.to_json(), indent=2, allow_nan=False))
    elif not volume.quiet:
        from onnx_bridge.views.terminal.tables import console, unbroken
        from onnx_bridge.views.terminal.view import render

        width = None if sys.stdout.isatty() else shutil.get_terminal_size((120, 24)).columns
        out = console(width=width)
        out.print(render(result, verbose=volume.verbose), crop=False)
        for path in filter(None, written):
            out.print(unbroken(f"written to {path}"), crop=False)
        if then:
            out.print(unbroken(f"next: onnx-bridge {shlex.join(map(str, then))}"), crop=False)
    if code:
        raise typer.Exit(code)


@contextlib.contextmanager
def progress(
    as_json: bool, beginning: str = "starting", *, lines: bool = False
) -> Iterator[Callable[[str], None] | None]:
    """Show a spinner with the present stage if the result is not JSON; without a terminal nothing, or ``lines``."""
    if as_json or volume.quiet or not sys.stderr.isatty():
        told = lines and not as_json and not volume.quiet
        yield partial(print, file=sys.stderr, flush=True) if told else None
        return
    from onnx_bridge.views.terminal.tables import console

    # the stream as it is now: silencing a stage by another stream must not silence this
    with console(file=sys.stderr).status(_Ticking(beginning)) as status:
        yield lambda stage: status.update(_Ticking(stage))


class _Ticking:
    """A stage or detail with the time that is left; if that is unknown, the time so far, after two seconds."""

    def __init__(self, detail: str) -> None:
        self._detail, self._begun = detail, time.monotonic()

    def __rich__(self) -> str:
        detail, passed = self._detail, time.monotonic() - self._begun
        if isinstance(detail, TimedProgress):
            what, left = printable(detail.what), detail.seconds - passed
            return TimedProgress(what, left) if left > 0 else f"{what}, {duration(passed)}, longer than estimated"
        return printable(detail) if passed < QUIET_SECONDS else f"{printable(detail)}, {duration(passed)}"
