"""What the verbs of the command line share: printing a result, and progress while it is made."""

from __future__ import annotations

import contextlib
import inspect
import json
import shlex
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from onnx_bridge.core.console import console, unbroken
from onnx_bridge.core.progress import QUIET_SECONDS, TimedProgress, duration
from passes.core.text import printable


@dataclass
class Volume:
    """How much is said: what ``--quiet`` and ``--verbose`` set, which may stand anywhere on the command line.

    Attributes:
        quiet: no progress and no result; errors and exit codes say what there is to say.
        verbose: results in full, where they have a shorter form.
    """

    quiet: bool = False
    verbose: bool = False


volume = Volume()
"""That of this process."""
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document on standard output.")]


def show(result: Any, as_json: bool, then: Sequence[object] = (), written: Sequence[Path | None] = ()) -> None:
    """Print a result of the API: all that commands print has ``to_json`` and ``render``.

    A ``render`` that has a longer form takes ``verbose``. A JSON document is printed in any case.

    Args:
        result: of the API.
        as_json: print its JSON document.
        then: the arguments of the command to go on with, which is printed as a line to copy.
        written: the files that were written besides, each printed in a line; None for one that was not asked for.
    """
    if as_json:
        print(json.dumps(result.to_json(), indent=2, allow_nan=False))
        return
    if volume.quiet:
        return
    width = None if sys.stdout.isatty() else shutil.get_terminal_size((120, 24)).columns
    longer = {"verbose": True} if volume.verbose and "verbose" in inspect.signature(result.render).parameters else {}
    out = console(width=width)
    out.print(result.render(**longer), crop=False)
    for path in filter(None, written):
        out.print(unbroken(f"written to {path}"), crop=False)
    if then:
        out.print(unbroken(f"next: onnx-bridge {shlex.join(map(str, then))}"), crop=False)


@contextlib.contextmanager
def progress(as_json: bool, beginning: str = "starting") -> Iterator[Callable[[str], None] | None]:
    """A spinner with the present stage, on a terminal; silence elsewhere.

    Args:
        as_json: silence as well.
        beginning: the first stage.
    """
    if as_json or volume.quiet or not sys.stderr.isatty():
        yield None
        return
    # the stream as it is now: what silences a stage by another one must not silence this
    with console(file=sys.stderr).status(_Ticking(beginning)) as status:
        yield lambda stage: status.update(_Ticking(stage))


class _Ticking:
    """A stage or detail with the time that is left, or else, after two seconds, the time that it has taken."""

    def __init__(self, detail: str) -> None:
        self._detail, self._begun = detail, time.monotonic()

    def __rich__(self) -> str:
        detail, passed = self._detail, time.monotonic() - self._begun
        if isinstance(detail, TimedProgress):
            what, left = printable(detail.what), detail.seconds - passed
            return TimedProgress(what, left) if left > 0 else f"{what}, longer than estimated"
        return printable(detail) if passed < QUIET_SECONDS else f"{printable(detail)}, {duration(passed)}"
