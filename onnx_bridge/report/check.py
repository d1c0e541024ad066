"""The page of a check."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from onnx_bridge.core.values import flat
from onnx_bridge.parity.error_histogram import Sketch
from onnx_bridge.parity.evidence import Evidence
from onnx_bridge.parity.report import Leg, Report
from onnx_bridge.reference.compare import OutputComparison
from onnx_bridge.report.colours import BAD, FIRST, GOOD, SECOND, THIRD, WARN, blame
from onnx_bridge.report.error_along_graph import Course, Measured
from onnx_bridge.report.graphs import around_the_fault
from onnx_bridge.report.html import Cell, Column, Page, Row, Table, figure, listed, shown, text

if TYPE_CHECKING:
    from onnx_bridge.parity.bisect.bisection import Bisection
    from onnx_bridge.parity.layer_report import Layer, Layers

_PLOTTED = 400
"""Tensors that can be plotted, at most; about 4 KB each."""
_LISTED = 200
"""Lines that unfold under one title, at most."""

_FIGURES: tuple[tuple[str, str, str], ...] = (
    ("max_abs", "max abs", "largest |result − reference|"),
    ("max_rel", "max rel", "largest |result − reference| / |reference|"),
    ("mean_abs", "mean abs", "mean of |result − reference|"),
    ("rmse", "RMSE", "root of the mean square of the differences"),
    ("cosine", "cosine", "of the angle between both, as vectors"),
    ("sqnr_db", "SQNR dB", "signal to noise: 10·log₁₀(Σ reference² / Σ difference²)"),
    ("max_ulp", "max ULP", "largest error in units in the last place"),
    ("same", "same", "the share of elements that are the same"),
    ("top1", "top-1", "the share of rows with the same best class"),
    ("top5", "top-5", "the share of rows whose best class is among the best five"),
)


def write_report(
    path: str | os.PathLike[str],
    report: Report,
    *,
    evidence: Evidence | None = None,
    bisection: Bisection | None = None,
) -> None:
    """Write the page of a check.

    Args:
        path: the file.
        report: the verdict, and what was found of layers.
        evidence: what the check saw; without it there are no graphs, no passes, and no plots of tensors.
        bisection: who is to blame, if that was asked.

    Raises:
        InputError: the file cannot be written.
    """
    page_of(report, evidence=evidence, bisection=bisection).write(path)


def page_of(
    report: Report,
    *,
    evidence: Evidence | None = None,
    bisection: Bisection | None = None,
) -> Page:
    """What `write_report` writes."""
    seen, layers = evidence or Evidence(), report.layers
    plotted = _Sketches()
    bisection = bisection or report.bisection
    tables = [_outputs(report, seen, plotted)]
    if layers is not None:
        tables.append(_layers(layers, seen.sketches, plotted))
    if seen.passes:
        tables.append(_passes(seen.passes))
    passed = report.passed and (layers is None or layers.passed)
    sentences = [report.summary]
    sentences += [layers.sentence] if layers is not None else []
    sentences += [f"{leg.name}: {leg.error}" for leg in report.legs if leg.error is not None]
    sentences += [bisection.summary] if bisection is not None else []
    facts = {**report.versions, **({} if report.seed is None else {"seed": report.seed})}
    facts["samples"] = max((len(leg.comparisons) for leg in report.legs), default=0)
    notes = dict.fromkeys((*report.notes, *(layers.notes if layers else ()), *(bisection.notes if bisection else ())))
    failed = any(leg.failure is not None for leg in report.legs)
    headline = "Parity holds" if passed else "MIGraphX fails" if failed else "Parity fails"
    if report.passed and not passed:
        headline = "Parity holds at the outputs, and not in all layers"
    return Page(
        kind="parity",
        model=report.model,
        passed=report.passed,
        headline=headline,
        sentences=sentences,
        facts=shown({"model": report.model, **facts}),
        notes=list(notes),
        tables=tables,
        course=_course(layers, plotted) if layers is not None else None,
        tensors=plotted.kept,
        graphs=around_the_fault(report, seen, layers, bisection),
    )


class _Sketches:
    """What can be plotted, by key."""

    def __init__(self) -> None:
        self.kept: dict[str, tuple[str, Sketch]] = {}
        self._keys: dict[str, str] = {}

    def add(self, title: str, sketch: Sketch | None) -> None:
        """Keep a sketch, if there is one, and room for it."""
        if sketch is not None and len(self.kept) < _PLOTTED:
            self._keys[title] = key = f"t{len(self.kept)}"
            self.kept[key] = (title, sketch)

    def find(self, title: str) -> str:
        """The key of the sketch of this title; empty where there is none."""
        return self._keys.get(title, "")


def _outputs(report: Report, evidence: Evidence, sketches: _Sketches) -> Table:
    columns = (
        Column("output", "name"),
        Column("leg", "text", "what was compared with the reference"),
        Column("sample", "number"),
        Column("verdict", "verdict"),
        *(Column(label, "number", hint) for _, label, hint in _FIGURES),
        Column("why", "text"),
        Column("type", "code"),
        Column("tolerance", "code", "absolute + relative part"),
    )
    found = [(leg, sample, output) for leg in report.legs for sample, output in _compared(leg)]
    # differences come first, and what is off most is what is plotted first
    order = sorted(range(len(found)), key=lambda index: (found[index][2].passed, index))
    titles = [f"{output.name} · {leg.name} · sample {sample}" for leg, sample, output in found]
    for index in sorted(order, key=lambda index: (found[index][2].passed, -found[index][2].severity)):
        leg, sample, output = found[index]
        sketches.add(titles[index], _pair(evidence, leg.name, sample, output.name))
    rows = []
    for index in order:
        leg, sample, output = found[index]
        key = sketches.find(titles[index])
        cells = [text(output.name), text(leg.name), Cell(str(sample), sample), _verdict(output)]
        values = output.to_json()
        cells += [
            *(figure(values[name]) for name, *_ in _FIGURES),
            text(output.reason or ""),
            text(f"{output.dtype}{list(output.shape)}"),
            text("" if output.tolerance is None else f"{output.tolerance.atol:.3g} + {output.tolerance.rtol:.3g}·|x|"),
        ]
        rows.append(Row(cells, "agrees" if output.passed else "differs", key, "" if output.passed else BAD))
    for leg in report.legs:
        if leg.error is not None:
            blank = [Cell("")] * len(_FIGURES)
            cells = [text("(the run)"), text(leg.name), Cell(""), Cell("failed", tone=BAD), *blank, text(leg.error)]
            cells += [Cell(""), Cell("")]
            rows.insert(0, Row(cells, "differs", tone=BAD))
    note = "Each against the original on ONNX Runtime with all optimizations off."
    return Table("outputs", "Outputs", columns, rows, note)


def _compared(leg: Leg) -> Iterator[tuple[int, OutputComparison]]:
    for sample, comparison in enumerate(leg.comparisons):
        for output in comparison.outputs:
            yield sample, output


def _pair(evidence: Evidence, leg: str, sample: int, name: str) -> Sketch | None:
    """The sketch of an output, or of an element of a sequence."""
    for output, expected, actual in evidence.pairs(leg, sample):
        if name == output or name.startswith(f"{output}["):
            right, got = flat({output: expected}), flat({output: actual})
            if name in right and name in got:
                return Sketch.of(got[name], right[name])
    return None


def _verdict(output: OutputComparison) -> Cell:
    if not output.passed:
        return Cell("differs", tone=BAD)
    if output.nonfinite:
        return Cell(f"agrees, {output.nonfinite} NaN or Inf", tone=WARN)
    return Cell("agrees", tone=GOOD)


def _layers(layers: Layers, drawn: Mapping[str, Sketch], sketches: _Sketches) -> Table:
    columns = (
        Column("#", "number", "in the order in which they are computed"),
        Column("node", "name"),
        Column("operator", "code"),
        Column("verdict", "verdict"),
        Column("local", "number", "MIGraphX fed with the reference's own values: the error that the node makes"),
        Column("× tol", "number", "the local error as a multiple of the tolerance"),
        Column("accumulated", "number", "MIGraphX from the model's inputs, against the cleaned model"),
        Column("× tol ", "number", "the accumulated error as a multiple of the tolerance"),
        Column("cleaning", "number", "the cleaned model against the original, both on ONNX Runtime"),
        Column("why", "text"),
        Column("made by", "text", "the pass that made the node, and from what"),
        Column("module", "text", "the PyTorch module that it comes from"),
        Column("runs on", "text"),
        Column("tensor", "name"),
    )
    for row in sorted(layers.rows, key=lambda row: (row.passed, -row.severity)):  # the worst have their place first
        sketches.add(_title(row), drawn.get(row.tensor))
    rows = []
    for index, (row, (name, tone)) in enumerate(zip(layers.rows, blame(layers), strict=True)):
        made = f"{', '.join(row.by)} from {', '.join(row.origins)}" if row.by else ""
        reasons = [each.reason for each in (row.local, row.accumulated, row.cleaning) if each and each.reason]
        cells = [
            Cell(str(index), index),
            text(row.node),
            text(row.operator),
            Cell(name, tone=tone),
            *_error(row.local),
            *_error(row.accumulated),
            _error(row.cleaning)[0],
            text("; ".join(filter(None, (*dict.fromkeys(reasons), row.reason)))),
            text(made),
            text(row.module),
            text(row.runs_on),
            text(row.tensor),
        ]
        rows.append(Row(cells, name, sketches.find(_title(row)), tone if tone in (BAD, WARN) else ""))
    note = f"Sample {layers.sample}. A node whose local error is small and whose accumulated one is large passes it on."
    return Table("layers", "Layers", columns, rows, note)


def _title(row: Layer) -> str:
    return f"{row.tensor} · layer"


def _error(output: OutputComparison | None) -> list[Cell]:
    """The largest error, and what share of the tolerance it is."""
    if output is None:
        return [Cell(""), Cell("")]
    values = output.to_json()
    tone = "" if output.passed else BAD
    return [figure(values["max_abs"], tone), figure(output.severity, tone)]


def _course(layers: Layers, sketches: _Sketches) -> Course | None:
    def measured(name: str) -> list[Measured]:
        return [
            Measured(
                f"{row.operator} {row.node}",
                None if found is None else found.severity,
                found is not None and not found.passed,
                sketches.find(_title(row)),
            )
            for row in layers.rows
            for found in [getattr(row, name)]
        ]

    kinds = [("local", FIRST, measured("local")), ("accumulated", SECOND, measured("accumulated"))]
    return Course.of([*kinds, ("cleaning", THIRD, measured("cleaning"))])


def _passes(passes: Sequence[Mapping[str, Any]]) -> Table:
    columns = (
        Column("#", "number"),
        Column("pass", "name"),
        Column("nodes", "code", "before → after"),
        Column("fewer", "number", "nodes that it took out"),
        Column("rewrites", "number", "its applications"),
        Column("exactness", "text", "how far numbers may move"),
        Column("seconds", "number"),
        Column("numbers", "verdict", "the model on ONNX Runtime before and after it"),
        Column("options", "code"),
        Column("what it did", "text"),
        Column("what it left alone, and why", "text"),
    )
    rows = []
    for index, step in enumerate(passes):
        before, after = step.get("nodes_before", 0), step.get("nodes_after", 0)
        options = ", ".join(f"{name}={value}" for name, value in step.get("options", {}).items())
        skips = [f"{each['reason']}: {', '.join(each['nodes'])}" for each in step.get("skips", ())]
        trace = [_rewrite(each) for each in step.get("trace", ())]
        rewrites = step.get("rewrites", 0)
        checked = step.get("verified")
        verified = Cell("")
        if checked is not None:
            verified = Cell("agree", tone=GOOD) if checked["passed"] else Cell("differ", tone=BAD)
        left = sum(len(each["nodes"]) for each in step.get("skips", ()))
        cells = [
            Cell(str(index), index),
            text(step["name"]),
            Cell(f"{before} → {after}", after),
            Cell(str(before - after) if before != after else "", before - after),
            Cell(str(rewrites) if rewrites else "", rewrites),
            text(step.get("exactness", "")),
            figure(round(step["seconds"], 3) if "seconds" in step else None),
            verified,
            text(options),
            listed(trace[:_LISTED], f"{len(trace)} rewrites"),
            listed(skips[:_LISTED], f"{left} skipped"),
        ]
        tone = BAD if verified.tone == BAD else ""
        rows.append(Row(cells, "changed the model" if rewrites else "changed nothing", tone=tone))
    return Table("passes", "Passes", columns, rows, "What cleaning did, in order.", place="last")


def _rewrite(rewrite: Mapping[str, Any]) -> str:
    note = f" ({rewrite['note']})" if rewrite.get("note") else ""
    return f"{', '.join(rewrite['before']) or 'nothing'} → {', '.join(rewrite['after']) or 'nothing'}{note}"
