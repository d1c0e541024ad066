"""The results of ``check``, ``bisect`` and ``reduce``."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import Group, RenderableType
from rich.text import Text

from onnx_bridge.core.values import dtype_name
from onnx_bridge.parity.bisect.bisection import Bisection, Fault, listed
from onnx_bridge.parity.checking.accuracy import AccuracyReport
from onnx_bridge.parity.checking.report import CheckReport, Leg
from onnx_bridge.parity.layers.report import LayerReport
from onnx_bridge.parity.reduce.reduce import Reduction
from onnx_bridge.parity.reduce.reproduction import FILES
from onnx_bridge.parity.submodels.submodels import RunCounts
from onnx_bridge.reference.comparison.compare import OutputComparison
from onnx_bridge.views.terminal.tables import judged, notes_of, plain_table, versions_line
from onnx_bridge.views.terminal.view import view
from passes.core.text import counted

_MOST_DIFFERENCES = 20
_DIGITS = (3, 2, 6, 4)
"""The digits of the largest error, of how far the reference moves, of the cosine and of the SQNR."""
_MOST_LAYERS, _EXAMPLES = 60, 10
"""The most layers that are shown if values differ, and if all agree: those with the largest errors."""


@view.register
def _check(report: CheckReport, verbose: bool) -> RenderableType:
    """Return a table of the outputs, each with its worst sample, then every difference and a sentence."""
    numbers = ("max error", "moves", "cosine", "SQNR dB")
    table = plain_table("leg", "output", "type", *numbers, "", numbers=numbers, last=["type"])
    for leg in report.legs:
        for index, output in enumerate(_worst_samples(leg)):
            figures = zip((output.max_abs, output.moves, output.cosine, output.sqnr_db), _DIGITS, strict=True)
            shown = ["–" if figure is None else f"{figure:.{digits}g}" for figure, digits in figures]
            name = "" if index else leg.name
            table.add_row(name, output.name, f"{output.dtype}{list(output.shape)}", *shown, _verdict(output))
    parts: list[RenderableType] = [] if report.layers is None else [_layers(report.layers, verbose), ""]
    parts += [table] if table.row_count else []
    differences = list(_differences(report))
    parts += [Text(line, style="red") for line in differences[:_MOST_DIFFERENCES]]
    if len(differences) > _MOST_DIFFERENCES:
        parts.append(f"… and {len(differences) - _MOST_DIFFERENCES} more")
    parts += [] if report.blame is None else [Text(report.blame, style="red")]
    parts += [*notes_of(report.notes), *versions_line(report.versions, report.seed)]
    colour = "green" if report.passed else "yellow" if report.not_determined else "red"
    return Group(*parts, Text(report.summary, style=f"bold {colour}"))


def _differences(report: CheckReport) -> Iterator[str]:
    for leg in report.legs:
        if leg.error is not None:
            yield f"{leg.name}: {leg.error}"
    for leg, sample, output in report.outputs():
        if not output.passed:
            why = "" if output.undetermined is None else f"; not determined: {output.undetermined}"
            yield f"{leg.name}, sample {sample}, output {output.name}: {output.reason}{why}"


def _worst_samples(leg: Leg) -> list[OutputComparison]:
    """Return for each output the comparison with the largest error, differences first."""
    worst: dict[str, OutputComparison] = {}
    for comparison in leg.comparisons:
        for output in comparison.outputs:
            known = worst.setdefault(output.name, output)
            ranks = [(compared.differs, not compared.passed, compared.max_abs or 0.0) for compared in (output, known)]
            if ranks[0] > ranks[1]:
                worst[output.name] = output
    return list(worst.values())


def _verdict(output: OutputComparison) -> Text:
    """Return the verdict, and what errors do not show: NaN and Inf, integers that differ, other classes."""
    more = [f"{output.nonfinite} of {output.elements} NaN or Inf"] if output.nonfinite else []
    if "int" in output.dtype and output.same is not None and output.same < 1:
        more.append(f"{output.same:.2%} the same")
    if output.top1 is not None and output.top1 < 1:
        more.append(f"top-1 {output.top1:.1%}, top-5 {output.top5:.1%}")
    good = False if output.differs else None if more or not output.passed else True
    return judged(output.verdict + (f" ({', '.join(more)})" if more else ""), good)


@view.register
def _layers(report: LayerReport, verbose: bool) -> RenderableType:
    """Return the sentence, and a table of the layers."""
    most = _EXAMPLES if report.passed else _MOST_LAYERS
    worst = sorted(report.rows, key=lambda row: (row.passed, -row.severity))[:most]
    chosen = {row.tensor for row in worst}
    shown = [row for row in report.rows if row.tensor in chosen]
    cleaning = any(row.cleaning is not None and not row.cleaning.passed for row in report.rows)
    kinds = (*(["cleaning"] if cleaning else []), "accumulated", "local")
    table = plain_table("node", "operator", "module", *kinds, "made by", "")
    for row in shown:
        errors = (*([row.cleaning] if cleaning else []), row.accumulated, row.local)
        reason = Text(row.reason, style="yellow")
        table.add_row(row.node, row.operator, row.module, *map(_error, errors), ", ".join(row.by), reason)
    parts: list[RenderableType] = [Text(report.sentence, style="bold green" if report.passed else "bold red"), table]
    if len(shown) < len(report.rows):
        count = f"{len(shown)} of {len(report.rows)}"
        parts.append(f"these are the {count} layers with the largest errors; --json has them all")
    return Group(*parts, *notes_of(report.notes))


def _error(output: OutputComparison | None) -> Text:
    if output is None:
        return Text("–")
    number = output.reason if output.max_abs is None and output.reason else f"{output.max_abs or 0.0:.3g}"
    return Text(number, style="" if output.passed else "red")


@view.register
def _accuracy(report: AccuracyReport, verbose: bool) -> RenderableType:
    """Return a table with a column for each side, then failures and a sentence."""
    sides, rows = report.table()
    table = plain_table("output", "metric", "against", *sides, "least", numbers=(*sides, "least"))
    for row in rows:
        table.add_row(*(Text(text, style="red" if low else "") for text, low in row))
    failures = [Text(f"{side}: {failure}", style="red") for side, failure in report.failures.items()]
    summary = Text(report.summary, style=f"bold {'green' if report.passed else 'red'}")
    return Group(table, *failures, *notes_of(report.notes), *versions_line(report.versions), summary)


@view.register
def _bisection(bisection: Bisection, verbose: bool) -> RenderableType:
    """Return the sentence, the nodes, and how many runs it took."""
    colour = "green" if bisection.passed else "yellow" if bisection.fault is None else "red"
    details = [] if bisection.fault is None else [f"  {line}" for line in _details(bisection.fault, bisection.samples)]
    took = "; ".join(f"{component.value}: {_runs(runs)}" for component, runs in bisection.runs.items())
    return Group(
        Text(bisection.summary, style=f"bold {colour}"),
        *details,
        *notes_of(bisection.notes),
        *([Text(took, style="dim")] if took else []),
        *versions_line(bisection.versions, bisection.seed),
    )


def _details(fault: Fault, samples: int) -> Iterator[str]:
    for node in fault.nodes:
        origin = f", from {', '.join(node.origin)}" if node.origin else ""
        maker = f", made by {node.made_by}" if node.made_by else ""
        module = f", in {node.module}" if node.module else ""
        yield f"node {node.name}: {node.operator}{module}{maker}{origin}"
    if fault.before or fault.after:
        before, after = (listed(names) or "nothing" for names in (fault.before, fault.after))
        yield f"that application: {before} → {after}"
    if fault.error is not None:
        yield f"largest absolute error: {fault.error:.6g}"
    if fault.sample is not None and samples > 1:
        yield f"sample: {fault.sample}"


def _runs(runs: RunCounts) -> str:
    counts = ((runs.reference, "of ONNX Runtime"), (runs.migraphx, "of MIGraphX"))
    return " and ".join(f"{counted(count, 'run')} {whose}" for count, whose in counts if count) or "nothing to run"


@view.register
def _reduction(reduction: Reduction, verbose: bool) -> RenderableType:
    """Return the sentence, and the folder of the reproduction."""
    lines: list[RenderableType] = [Text(reduction.summary, style="bold")]
    if reduction.reproduction is not None and reduction.path is not None:
        sample = reduction.reproduction.sample
        shapes = [f"{name} {dtype_name(array.dtype)}{list(array.shape)}" for name, array in sample.items()]
        lines += [f"  inputs: {', '.join(shapes) or 'none'}", f"  {', '.join(FILES)} in {reduction.path}"]
    took = f"{reduction.runs.reference} runs of ONNX Runtime and {reduction.runs.migraphx} of MIGraphX"
    return Group(*lines, *notes_of(reduction.notes), Text(took, style="dim"))
