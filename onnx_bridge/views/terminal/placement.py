"""The trials of a search for the nodes that must stay in float."""

from __future__ import annotations

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from onnx_bridge.placement.placement import Placement
from onnx_bridge.views.terminal.tables import plain_table, unbroken


def trials_table(placement: Placement) -> Table:
    """Return the table of all trials."""
    metrics = [f"{score.metric} {score.output}" for score in placement.chosen.scores]
    numbers = ("trial", "in float", f"in {placement.bits}", *metrics)
    table = plain_table(*numbers, "", numbers=numbers)
    for number, point in enumerate(placement.points, 1):
        scores = [Text(score.shown, style="" if score.passed else "red") for score in point.scores]
        said = "chosen" if point is placement.chosen else point.failure or ""
        cells = scores or [Text("–")] * len(metrics)
        table.add_row(str(number), str(len(point.excluded)), f"{point.share:.1%}", *cells, said)
    return table


def again(placement: Placement) -> list[RenderableType]:
    """Return how the chosen model is made again."""
    return ["again, without a search:", unbroken(placement.command)] if placement.command else []
