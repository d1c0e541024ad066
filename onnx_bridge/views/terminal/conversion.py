"""The result of ``clean``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import Group, RenderableType
from rich.text import Text

from onnx_bridge.conversion.cleaning import Cleaned
from onnx_bridge.views.terminal.tables import notes_of, pass_table, written_line
from onnx_bridge.views.terminal.view import view

if TYPE_CHECKING:
    from onnx_bridge.reference.comparison.compare import Comparison


@view.register
def _cleaned(cleaned: Cleaned, verbose: bool) -> RenderableType:
    """Return a table of the passes that did something, or of all if ``verbose``."""
    steps = [step.to_json() for step in cleaned.steps]
    table = pass_table(steps, idle=verbose, checked=[_checked(comparison) for comparison in cleaned.checked])
    return Group(table, *notes_of(cleaned.notes), written_line(cleaned.path, "dry run: nothing was written"))


def _checked(comparison: Comparison | None) -> str | Text:
    if comparison is None:
        return "–"
    if not comparison.passed:
        return Text("differ", style="red")
    largest = max((output.max_abs for output in comparison.outputs if output.max_abs is not None), default=0.0)
    return f"{largest:.1e}" if largest else "equal"


def trace(cleaned: Cleaned) -> RenderableType:
    """Return every rewrite of each pass, and every skip with its reason."""
    lines = []
    for step in cleaned.steps:
        lines += [f"{step.name}: {rewrite.line}" for rewrite in step.result.rewrites]
        lines += [f"{step.name} skips {skip.node or 'the model'}: {skip.reason}" for skip in step.result.skips]
    return Group(*lines)
