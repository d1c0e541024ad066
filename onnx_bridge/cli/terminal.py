"""What the verbs of the command line share: printing a result, and progress while it is made."""

from __future__ import annotations

import contextlib
import inspect
import json
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Annotated, Any

import typer

from onnx_bridge.core.console import console
from onnx_bridge.core.progress import TimedProgress
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


def show(result: Any, as_json: bool) -> None:
    """Print a result of the API: all that commands print has ``to_json`` and ``render``.

    A ``render`` that has a longer form takes ``verbose``. A JSON document is printed in any case.
    """
    if as_json:
        print(json.dumps(result.to_json(), indent=2, allow_nan=False))
        return
    if volume.quiet:
        return
    width = None if sys.stdout.isatty() else shutil.get_terminal_size((120, 24)).columns
    longer = {"verbose": True} if volume.verbose and "verbose" in inspect.signature(result.render).parameters else {}
    console(width=width).print(result.render(**longer), crop=False)


@contextlib.contextmanager
def progress(as_json: bool) -> Iterator[Callable[[str], None] | None]:
    """A spinner with the present stage, on a terminal; silence elsewhere."""
    if as_json or volume.quiet or not sys.stderr.isatty():
        yield None
        return
    # the stream as it is now: what silences a stage by another one must not silence this
    with console(file=sys.stderr).status("starting") as status:
        yield lambda stage: status.update(_Ticking(stage) if isinstance(stage, TimedProgress) else printable(stage))


class _Ticking:
    """A detail with the time that is left, which is shown anew as it passes."""

    def __init__(self, detail: TimedProgress) -> None:
        self._what, self._end = printable(detail.what), time.monotonic() + detail.seconds

    def __rich__(self) -> str:
        left = self._end - time.monotonic()
        return TimedProgress(self._what, left) if left > 0 else f"{self._what}, longer than estimated"
