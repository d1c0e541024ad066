"""The results of ``runtime``."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from onnx_bridge.migraphx.install.results import Paths, RuntimeList
from onnx_bridge.migraphx.install.status import RuntimeStatus
from onnx_bridge.migraphx.runtime import Choice
from onnx_bridge.views.terminal.tables import unbroken
from onnx_bridge.views.terminal.view import view

_COLOURS = {"ok": "green", "warn": "yellow", "error": "red"}


@view.register
def _runtimes(runtimes: RuntimeList, verbose: bool) -> RenderableType:
    """Return two lines for each runtime; the one that is used is marked."""
    lines: list[RenderableType] = [line for choice in runtimes.choices for line in _lines(choice)]
    if not lines:
        lines = ["There is no MIGraphX on this machine; install one with: onnx-bridge runtime install"]
    return Group(*lines, *map(unbroken, map(str, runtimes.providers)))


def _lines(choice: Choice) -> tuple[RenderableType, RenderableType]:
    runtime = choice.runtime
    kernels = ", compiles for gpu:ARCHITECTURE" if runtime.compiles_kernels else ""
    what = f"{runtime.kind}, MIGraphX {runtime.version} for {', '.join(runtime.targets)}{kernels} ({choice.why})"
    return f"{'→' if choice.used else ' '} {what}", unbroken(f"  {runtime.path}")


@view.register
def _paths(paths: Paths, verbose: bool) -> RenderableType:
    return Group(*[f"{paths.done} {path}" for path in paths.paths] or [f"nothing {paths.done}"])


@view.register
def _status(status: RuntimeStatus, verbose: bool) -> RenderableType:
    table = Table.grid(padding=(0, 2))
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for check in status.checks:
        lines = [check.what, *([f"→ {check.hint}"] if check.hint else [])]
        lines += [check.details] if verbose and check.details else []
        table.add_row(Text(check.level, style=_COLOURS[check.level]), Group(*lines))
    return table
