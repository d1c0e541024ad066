"""The page of `quantize --min` and `mixed-precision`: accuracy against the share in fewer bits, with all trials."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from onnx_bridge.placement.placement import Placement
from onnx_bridge.views.html.charts import Chart, scatter
from onnx_bridge.views.html.colours import BAD
from onnx_bridge.views.html.html import Column, Page, Row, Table, cell, facts_of, unfolding
from passes.core.text import counted


def page_of(placement: Placement, model: str, facts: Mapping[str, object], notes: Sequence[str] = ()) -> Page:
    """Return the page of a search."""
    scores, bits = placement.chosen.scores, placement.bits
    columns = [Column("trial", "number"), Column(f"in {bits}, %", "number"), Column("in float", "name")]
    columns += [Column(f"{score.metric} {score.output}", "number") for score in scores]
    rows = []
    for number, point in enumerate(placement.points, 1):
        values = [cell(score.value, "" if score.passed else BAD) for score in point.scores]
        kept = unfolding(point.excluded, counted(len(point.excluded), "node"))
        rows.append(Row.of(number, 100 * point.share, kept, *(values or [cell(point.failure)])))
    noise = sorted(placement.noise.items(), key=lambda item: -item[1])
    tables = [
        Table("trials", "Trials", columns, rows, "Each trial is a version of the whole model."),
        Table(
            "noise",
            "Noise of each node",
            [Column("node or result", "name"), Column("noise", "number")],
            [Row.of(name, value) for name, value in noise],
            f"The noise at the outputs that a node in {bits} causes by itself, relative to the signal.",
        ),
    ]
    share = f"{placement.chosen.share:.1%} of the work in {bits}"
    return Page(
        kind="quantization",
        model=model,
        passed=True,
        headline=share,
        sentences=[f"left in float: {', '.join(placement.kept) or 'nothing'}", *filter(None, [placement.command])],
        facts=facts_of({**facts, "runs": len(placement.points)}),
        notes=list(notes),
        tables=tables,
        charts=[_chart(placement, index) for index in range(len(scores))],
    )


def _chart(placement: Placement, index: int) -> Chart:
    """Return the plot of one metric of one output."""
    score = placement.chosen.scores[index]
    points = []
    for number, point in enumerate(placement.points, 1):
        if point.failure is None and math.isfinite(value := point.scores[index].value):
            said = f"trial {number}: {point.scores[index].shown}, {point.share:.1%} in {placement.bits}"
            points.append((100 * point.share, value, point is placement.chosen, said))
    title = f"{score.metric} of {score.output}"
    unit = f"{score.metric}, {score.unit}" if score.unit else score.metric
    across = f"% of the work in {placement.bits}"
    note = "Each ring is a trial; the line is what was asked for."
    return scatter(f"plot-{index}", title, note, across, unit, points, score.least or 0.0)
