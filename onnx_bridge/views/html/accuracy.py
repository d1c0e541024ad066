"""The page of `check --data`."""

from __future__ import annotations

from onnx_bridge.parity.checking.accuracy import AccuracyReport
from onnx_bridge.views.html.colours import BAD
from onnx_bridge.views.html.html import Column, Page, Row, Table, cell, facts_of


def accuracy_page(report: AccuracyReport) -> Page:
    """Return the page of a report: one table with a column for each side."""
    sides, rows = report.table()
    columns = [Column("output", "name"), Column("metric", "text"), Column("against", "text")]
    columns += [Column(side, "text") for side in sides]
    columns += [Column("least", "text", "what every side but the reference must reach")]
    cells = [[cell(text, BAD if low else "") for text, low in row] for row in rows]
    verdicts = ["too low" if any(low for _, low in row) else "reached" for row in rows]
    table = Table("accuracy", "Accuracy", columns, list(map(Row, cells, verdicts)))
    return Page(
        kind="accuracy",
        model=report.model,
        passed=report.passed,
        headline="MIGraphX fails" if report.failures else "Accuracy" if report.passed else "Accuracy is too low",
        sentences=[report.summary, *(f"{side}: {failure}" for side, failure in report.failures.items())],
        facts=facts_of({"model": report.model, **report.versions, "samples": report.samples}),
        notes=list(report.notes),
        tables=[table],
    )
