"""The page of `check`: outputs, layers, passes, and the graph around a fault."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from onnx_bridge.core.values import flat
from onnx_bridge.parity.checking.error_histogram import Sketch
from onnx_bridge.parity.checking.evidence import Evidence
from onnx_bridge.parity.checking.report import CheckReport
from onnx_bridge.reference.comparison.compare import OutputComparison
from onnx_bridge.views.html.colours import BAD, FIRST, GOOD, SECOND, THIRD, WARN, layer_roles
from onnx_bridge.views.html.error_profile import ErrorProfile, NodeError
from onnx_bridge.views.html.graphs import fault_graphs
from onnx_bridge.views.html.html import Cell, Column, Page, Row, Table, cell, facts_of, unfolding
from passes.core.text import counted

if TYPE_CHECKING:
    from onnx_bridge.parity.bisect.bisection import Bisection
    from onnx_bridge.parity.layers.report import Layer, LayerReport

_PLOTTED = 400
"""The most tensors that can be plotted; each takes about 4 KB."""
_ORDER = {BAD: 0, WARN: 1}
"""The colours of the layers that are listed first."""
_LISTED = 200
"""The most lines that unfold under one title."""

_FIGURES: tuple[tuple[str, str, str], ...] = (
    ("max_abs", "max abs", "largest |result − reference|"),
    (
        "moves",
        "reference moves",
        "the reference's own error when its inputs move by one unit in the last place",
    ),
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


def page_of(report: CheckReport, *, evidence: Evidence | None = None, bisection: Bisection | None = None) -> Page:
    """Return the page of a check; without ``evidence`` it has no graphs, passes, or plots of tensors."""
    seen, layers = evidence or Evidence(), report.layers
    plotted = _Histograms()
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
    if report.not_determined:
        headline = "Parity is not determined"
    if report.passed and not passed:
        headline = "Parity holds at the outputs, but not in every layer"
    return Page(
        kind="parity",
        model=report.model,
        passed=None if report.not_determined else report.passed,
        headline=headline,
        sentences=sentences,
        facts=facts_of({"model": report.model, **facts}),
        notes=list(notes),
        tables=tables,
        error_profile=_error_profile(layers, plotted) if layers is not None else None,
        tensors=plotted.kept,
        graphs=fault_graphs(report, seen, layers, bisection),
    )


class _Histograms:
    """The error histograms that can be plotted, by key."""

    def __init__(self) -> None:
        self.kept: dict[str, tuple[str, Sketch]] = {}
        self._keys: dict[str, str] = {}

    def add(self, title: str, sketch: Sketch | None) -> None:
        """Keep a histogram if there is one, up to the limit."""
        if sketch is not None and len(self.kept) < _PLOTTED:
            self._keys[title] = key = f"t{len(self.kept)}"
            self.kept[key] = (title, sketch)

    def find(self, title: str) -> str:
        """Return the key of a title; empty if it has no histogram."""
        return self._keys.get(title, "")


def _outputs(report: CheckReport, evidence: Evidence, sketches: _Histograms) -> Table:
    columns = (
        Column("output", "name"),
        Column("leg", "text", "what was compared with the reference"),
        Column("sample", "text"),
        Column("verdict", "verdict"),
        Column("why", "text"),
        *(Column(label, "number", hint) for _, label, hint in _FIGURES),
        Column("type", "code"),
        Column("tolerance", "code", "absolute + relative part"),
    )
    compared = list(report.outputs())
    # differences first; the largest errors are the first to be plotted
    order = sorted(range(len(compared)), key=lambda index: (compared[index][2].passed, index))
    titles = [f"{output.name} · {leg.name} · sample {sample}" for leg, sample, output in compared]
    for index in sorted(order, key=lambda index: (compared[index][2].passed, -compared[index][2].severity)):
        leg, sample, output = compared[index]
        sketches.add(titles[index], _pair(evidence, leg.name, sample, output.name))
    rows = []
    for index in order:
        leg, sample, output = compared[index]
        key = sketches.find(titles[index])
        figures = (getattr(output, name) for name, *_ in _FIGURES)
        why = "; ".join(filter(None, (output.reason, output.undetermined)))
        limit, colour = output.tolerance, BAD if output.differs else "" if output.passed else WARN
        tolerance = "" if limit is None else f"{limit.atol:.3g} + {limit.rtol:.3g}·|x|"
        values = (output.name, leg.name, sample, _verdict(output), why, *figures)
        about = (f"{output.dtype}{list(output.shape)}", tolerance)
        rows.append(Row.of(*values, *about, choice=output.verdict, tensor=key, colour=colour))
    for leg in report.legs:
        if leg.error is not None:
            values = ("(the run)", leg.name, None, cell("failed", BAD), leg.error, *[None] * (len(_FIGURES) + 2))
            rows.insert(0, Row.of(*values, choice="differs", colour=BAD))
    note = "Each against the original on ONNX Runtime with all optimizations off."
    return Table("outputs", "Outputs", columns, rows, note)


def _pair(evidence: Evidence, leg: str, sample: int, name: str) -> Sketch | None:
    """Return the sketch of an output, or of an element of a sequence."""
    for output, expected, actual in evidence.pairs(leg, sample):
        if name == output or name.startswith(f"{output}["):
            right, got = flat({output: expected}), flat({output: actual})
            if name in right and name in got:
                return Sketch.of(got[name], right[name])
    return None


def _verdict(output: OutputComparison) -> Cell:
    if not output.passed:
        return Cell(output.verdict, colour=BAD if output.differs else WARN)
    if output.nonfinite:
        return Cell(f"agrees, {output.nonfinite} NaN or Inf", colour=WARN)
    return Cell("agrees", colour=GOOD)


def _layers(layers: LayerReport, drawn: Mapping[str, Sketch], sketches: _Histograms) -> Table:
    columns = (
        Column("#", "number", "in the order of computation"),
        Column("node", "name"),
        Column("operator", "code"),
        Column("verdict", "verdict"),
        Column("local", "number", "MIGraphX fed with the values of the reference: the error of the node itself"),
        Column("of tolerance", "number", "the local error as a multiple of the tolerance"),
        Column("accumulated", "number", "MIGraphX from the model's inputs, against the cleaned model"),
        Column("of tolerance", "number", "the accumulated error as a multiple of the tolerance"),
        Column("cleaning", "number", "the cleaned model against the original, both on ONNX Runtime"),
        Column("why", "text"),
        Column("module", "text", "the PyTorch module that it comes from"),
        Column("runs on", "text"),
        Column("details", "text", "the tensor, and the pass that created the node, from which nodes"),
    )
    for row in sorted(layers.rows, key=lambda row: (row.passed, -row.severity)):  # the largest errors get a plot first
        sketches.add(_title(row), drawn.get(row.tensor))
    rows = []
    for index, (row, (name, colour)) in enumerate(zip(layers.rows, layer_roles(layers), strict=True)):
        details = [f"tensor {row.tensor}"]
        details += [f"made by {', '.join(row.by)} from {', '.join(row.origins)}"] if row.by else []
        reasons = [error.reason for error in (row.local, row.accumulated, row.cleaning) if error and error.reason]
        errors = (*_error(row.local), *_error(row.accumulated), _error(row.cleaning)[0])
        why = "; ".join(filter(None, (*dict.fromkeys(reasons), row.reason)))
        values = (index, row.node, row.operator, cell(name, colour), *errors, why)
        about = (row.module, row.runs_on, unfolding(details, "more"))
        shown = colour if colour in (BAD, WARN) else ""
        rows.append(Row.of(*values, *about, choice=name, tensor=sketches.find(_title(row)), colour=shown))
    order = sorted(
        range(len(rows)), key=lambda index: (_ORDER.get(rows[index].colour, 2), -layers.rows[index].severity)
    )
    note = f"Sample {layers.sample}. A node with a small local and a large accumulated error propagates an error."
    return Table("layers", "Layers", columns, [rows[index] for index in order], note)


def _title(row: Layer) -> str:
    return f"{row.tensor} · layer"


def _error(output: OutputComparison | None) -> list[Cell]:
    """Return the largest error, absolute and as a multiple of the tolerance."""
    if output is None:
        return [Cell(""), Cell("")]
    return [cell(error, "" if output.passed else BAD) for error in (output.max_abs, output.severity)]


def _error_profile(layers: LayerReport, sketches: _Histograms) -> ErrorProfile | None:
    def measured(name: str) -> list[NodeError]:
        return [
            NodeError(
                f"{row.operator} {row.node}",
                None if error is None else error.severity,
                error is not None and not error.passed,
                sketches.find(_title(row)),
            )
            for row in layers.rows
            for error in [getattr(row, name)]
        ]

    kinds = [("local", FIRST, measured("local")), ("accumulated", SECOND, measured("accumulated"))]
    return ErrorProfile.of([*kinds, ("cleaning", THIRD, measured("cleaning"))])


def _passes(passes: Sequence[Mapping[str, Any]]) -> Table:
    columns = (
        Column("#", "number"),
        Column("pass", "name"),
        Column("nodes", "code", "before → after"),
        Column("fewer", "number", "nodes removed"),
        Column("rewrites", "number", "applications of the pass"),
        Column("exactness", "text", "how far results may change"),
        Column("seconds", "number"),
        Column("numbers", "verdict", "the model on ONNX Runtime before and after it"),
        Column("options", "code"),
        Column("rewrites in detail", "text"),
        Column("skipped, and why", "text"),
    )
    rows = []
    for index, step in enumerate(passes):
        before, after = step.get("nodes_before", 0), step.get("nodes_after", 0)
        options = ", ".join(f"{name}={value}" for name, value in step.get("options", {}).items())
        skips = [f"{skip['reason']}: {', '.join(skip['nodes'])}" for skip in step.get("skips", ())]
        trace = [_rewrite(rewrite) for rewrite in step.get("trace", ())]
        rewrites = step.get("rewrites", 0)
        checked = step.get("verified")
        verified = Cell("")
        if checked is not None:
            verified = cell("agree", GOOD) if checked["passed"] else cell("differ", BAD)
        left = sum(len(skip["nodes"]) for skip in step.get("skips", ()))
        seconds = round(step["seconds"], 3) if "seconds" in step else None
        fewer, applied = (Cell(str(count or ""), count) for count in (before - after, rewrites))
        values = (index, step["name"], Cell(f"{before} → {after}", after), fewer, applied, step.get("exactness"))
        details = (
            unfolding(trace[:_LISTED], counted(len(trace), "rewrite")),
            unfolding(skips[:_LISTED], f"{left} skipped"),
        )
        choice, colour = f"changed {'the model' if rewrites else 'nothing'}", BAD if verified.colour == BAD else ""
        rows.append(Row.of(*values, seconds, verified, options, *details, choice=choice, colour=colour))
    return Table("passes", "Passes", columns, rows, "The passes of the pipeline, in order.", place="last")


def _rewrite(rewrite: Mapping[str, Any]) -> str:
    note = f" ({rewrite['note']})" if rewrite.get("note") else ""
    return f"{', '.join(rewrite['before']) or 'nothing'} → {', '.join(rewrite['after']) or 'nothing'}{note}"
