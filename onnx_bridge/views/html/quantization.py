"""The page of `quantize --min`: accuracy against the share of the work in 8 bits, with all trials."""

from __future__ import annotations

import math

from onnx_bridge.quantization.assignment import Assignment
from onnx_bridge.quantization.quantized import Quantized
from onnx_bridge.views.html.charts import Chart, scatter
from onnx_bridge.views.html.colours import BAD
from onnx_bridge.views.html.html import Column, Page, Row, Table, cell, facts_of, unfolding
from passes.core.text import counted


def page_of(quantized: Quantized, assignment: Assignment) -> Page:
    """Return the page of a search."""
    scores = assignment.chosen.scores
    columns = [Column("trial", "number"), Column("in 8 bits, %", "number"), Column("in float", "name")]
    columns += [Column(f"{score.metric} {score.output}", "number") for score in scores]
    rows = []
    for number, point in enumerate(assignment.points, 1):
        values = [cell(score.value, "" if score.passed else BAD) for score in point.scores]
        kept = unfolding(point.excluded, counted(len(point.excluded), "node"))
        rows.append(Row.of(number, 100 * point.share, kept, *(values or [cell(point.failure)])))
    noise = sorted(assignment.noise.items(), key=lambda item: -item[1])
    tables = [
        Table("trials", "Trials", columns, rows, "Each trial is a quantization of the whole model."),
        Table(
            "noise",
            "Noise of each product",
            [Column("result", "name"), Column("noise", "number")],
            [Row.of(name, value) for name, value in noise],
            "The noise at the outputs that a product in 8 bits causes by itself, relative to the signal.",
        ),
    ]
    share = f"{assignment.chosen.share:.1%} of the work in 8 bits"
    return Page(
        kind="quantization",
        model=str(quantized.path or "the model"),
        passed=True,
        headline=share,
        sentences=[f"left in float: {', '.join(assignment.exclude) or 'nothing'}", *filter(None, [assignment.command])],
        facts=facts_of({"quantizer": quantized.quantizer, "scheme": quantized.scheme, "runs": assignment.runs}),
        notes=list(quantized.notes),
        tables=tables,
        charts=[_chart(assignment, index) for index in range(len(scores))],
    )


def _chart(assignment: Assignment, index: int) -> Chart:
    """Return the plot of one metric of one output."""
    score = assignment.chosen.scores[index]
    points = []
    for number, point in enumerate(assignment.points, 1):
        if point.failure is None and math.isfinite(value := point.scores[index].value):
            said = f"trial {number}: {point.scores[index].shown}, {point.share:.1%} in 8 bits"
            points.append((100 * point.share, value, point is assignment.chosen, said))
    title = f"{score.metric} of {score.output}"
    unit = f"{score.metric}, {score.unit}" if score.unit else score.metric
    across = "% of the multiply-adds in 8 bits"
    note = "Each ring is a quantization; the line is what was asked for."
    return scatter(f"plot-{index}", title, note, across, unit, points, score.least or 0.0)
