"""The page of `check --data`, and its JUnit XML: a suite for each side, a case for each output and metric."""

from __future__ import annotations

import os
from xml.etree import ElementTree as xml

from onnx_bridge.parity.checking.accuracy import AccuracyReport
from onnx_bridge.views.html.colours import BAD
from onnx_bridge.views.html.html import Cell, Column, Page, Row, Table, facts_of, text_cell
from onnx_bridge.views.junit import write_suites, xml_text


def accuracy_page(report: AccuracyReport) -> Page:
    """The page of a report: one table with a column for each side."""
    sides, rows = report.table()
    columns = [Column("output", "name"), Column("metric", "text"), Column("against", "text")]
    columns += [Column(side, "text") for side in sides]
    columns += [Column("least", "text", "what every side but the reference must reach")]
    cells = [[text_cell(text, BAD if low else "") for text, low in row] for row in rows]
    table = Table("accuracy", "Accuracy", columns, [Row(row, _verdict(row)) for row in cells])
    return Page(
        kind="accuracy",
        model=report.model,
        passed=report.passed,
        headline="MIGraphX fails" if report.failures else "Accuracy" if report.passed else "Accuracy is too low",
        sentences=[report.summary, *(f"{side}: {each}" for side, each in report.failures.items())],
        facts=facts_of({"model": report.model, **report.versions, "samples": report.samples}),
        notes=list(report.notes),
        tables=[table],
    )


def _verdict(row: list[Cell]) -> str:
    return "too low" if any(cell.colour == BAD for cell in row) else "reached"


def write_accuracy_junit(path: str | os.PathLike[str], report: AccuracyReport) -> None:
    """Write the scores as JUnit's XML.

    Raises:
        InputError: the file cannot be written.
    """
    suites = []
    for side in dict.fromkeys((*(each.side for each in report.scores), *report.failures)):
        suite = xml.Element("testsuite", name=xml_text(f"{report.model}: {side}"))
        for each in report.scores:
            if each.side != side:
                continue
            name = xml_text(f"{each.output} {each.metric}")
            case = xml.SubElement(suite, "testcase", classname=xml_text(f"{report.model}.{side}"), name=name)
            if not each.passed:
                message = xml_text(f"{each.shown}, below {each.least:g}")
                xml.SubElement(case, "failure", message=message, type="minimum")
        if side in report.failures:
            failure = report.failures[side]
            case = xml.SubElement(suite, "testcase", classname=xml_text(f"{report.model}.{side}"), name=failure.step)
            xml.SubElement(case, "error", message=xml_text(failure), type=failure.kind.value)
        suites.append(suite)
    write_suites(path, suites)
