"""The results of ``doctor`` and ``passes``."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.text import Text

from onnx_bridge.conversion.compiling.gpu_forecast import GpuForecast
from onnx_bridge.conversion.diagnosis.diagnosis import Diagnosis, NodeDiagnosis, PlannedAction, tallied
from onnx_bridge.conversion.diagnosis.explain import Catalogue, Explanation
from onnx_bridge.views.terminal.tables import judged, notes_of, plain_table
from onnx_bridge.views.terminal.view import view
from passes.core.text import counted

_SHOWN, _NAMED = 24, 6
"""The most kernels that are listed, and the most nodes of one."""


@view.register
def _diagnosis(diagnosis: Diagnosis, verbose: bool) -> RenderableType:
    """Return tables: by operator, or by node if ``verbose``."""
    totals = ", ".join(f"{count} {action}" for action, count in diagnosis.totals.items())
    partitions = (
        " → ".join(f"{part['side']} ({counted(part['nodes'], 'node')})" for part in diagnosis.partitions) or "none"
    )
    products = ", ".join(f"{count} in {kernel}" for kernel, count in diagnosis.kernels.items()) or "none"
    return Group(
        _by_node(diagnosis.nodes) if verbose else _by_operator(diagnosis.nodes),
        "",
        *(f"{name}: {value}" for name, value in diagnosis.facts.items()),
        f"nodes: {totals}",
        f"partitions: {partitions}; {diagnosis.share:.1%} of the work on MIGraphX",
        f"numbers: {diagnosis.proofs}",
        f"products: {products}",
        *(f"compiling: {line}" for line in diagnosis.compile_lines),
        *([_kernels(diagnosis.gpu, verbose)] if diagnosis.gpu else []),
        f"memory: about {diagnosis.memory / 2**30:.1f} GiB while MIGraphX saves the program",
        *notes_of(diagnosis.notes),
        _conclusion(diagnosis),
        *([f"written to {diagnosis.path_fixed}"] if diagnosis.path_fixed else []),
    )


def _kernels(forecast: GpuForecast, verbose: bool) -> RenderableType:
    """Return the distinct kernels and products, the largest first; all of them if ``verbose``."""
    steps = [*forecast.problems, *forecast.kernels]
    shown = steps if verbose else steps[:_SHOWN]
    table = plain_table("kernel or call", "code", "uses", "nodes", "sizes", numbers=["code", "uses"])
    for step in shown:
        code = f"{step.code_bytes:,} B" if step.code_bytes else "–"
        names = [*step.nodes][: None if verbose else _NAMED]
        others = f", and {rest} more" if (rest := len(step.nodes) - len(names)) else ""
        table.add_row(step.name, code, str(step.uses), ", ".join(names) + others, step.shapes)
    more = len(steps) - len(shown)
    return Group(table, *([f"and {more} more: --verbose shows them"] if more else []))


def _conclusion(diagnosis: Diagnosis) -> Text:
    if not diagnosis.passed:
        return Text.assemble(("it cannot run", "red"), f": {diagnosis.problem}")
    on_host = any(partition["side"] == "host" for partition in diagnosis.partitions)
    host = ", with ONNX Runtime on the host" if on_host else ""
    count = sum(diagnosis.proofs.unproven.values())
    unproven = Text(f", {counted(count, 'node')} unproven" if count else "", style="yellow")
    parsed = f": {diagnosis.runtime} has parsed the whole of it"
    if (named := diagnosis.target.partition(":")[2]) and not diagnosis.gpu:
        parsed += f", and compiled each node on the device for {named}"
    parsed += f", and compiled it for {named}" if diagnosis.gpu else ""
    return Text.assemble(("everything will run", "green"), host, unproven, parsed)


def _by_operator(nodes: Sequence[NodeDiagnosis]) -> RenderableType:
    headings = ("operator", "nodes", "verdict", "proof", "planned action", "reason")
    table = plain_table(*headings, numbers=["nodes"])
    groups: dict[str, list[NodeDiagnosis]] = {}
    for node in nodes:
        groups.setdefault(node.operator, []).append(node)
    # obstacles first, then the most frequent operators
    for operator, group in sorted(groups.items(), key=lambda item: (_rank(item[1]), -len(item[1]))):
        verdicts = Counter(node.verdict for node in group)
        actions = Counter(_action(node, node.action is PlannedAction.REWRITTEN) for node in group)
        proofs = Counter(node.proof.value for node in group)
        message = next((node.reason for node in group if node.message), "")
        verdict = judged(tallied(verdicts), all(node.passed for node in group))
        table.add_row(operator, str(len(group)), verdict, tallied(proofs), tallied(actions), message)
    return table


def _by_node(nodes: Sequence[NodeDiagnosis]) -> RenderableType:
    table = plain_table("node", "operator", "module", "verdict", "proof", "planned action", "reason")
    for node in nodes:
        cells = judged(node.verdict, node.passed), node.proof.value, _action(node, bool(node.by)), node.reason
        table.add_row(node.name, node.operator, node.module, *cells)
    return table


def _action(node: NodeDiagnosis, with_passes: bool) -> str:
    return f"{node.action}: {node.by}" if with_passes else str(node.action)


def _rank(group: Sequence[NodeDiagnosis]) -> int:
    order = (PlannedAction.HOST, PlannedAction.REWRITTEN, PlannedAction.REMOVED, PlannedAction.UNCHANGED)
    bad = not all(node.passed for node in group)
    return min(order.index(node.action) for node in group) + (0 if bad else len(order))


@view.register
def _catalogue(catalogue: Catalogue, verbose: bool) -> RenderableType:
    table = plain_table("pass", "exactness", "options", "does")
    for info in catalogue.passes:
        options = ", ".join(f"{name}={default}" for name, default in info.options.items())
        table.add_row(info.name, info.exactness, options, info.does)
    pipelines = plain_table("pipeline", "passes")
    for name, spec in catalogue.pipelines.items():
        pipelines.add_row(name, spec.replace(",", ", ") or "(nothing)")
    return Group(table, "", pipelines)


@view.register
def _explanation(explanation: Explanation, verbose: bool) -> RenderableType:
    """Return a line for each rewrite or skip."""
    lines = [f"would rewrite {rewrite.line}" for rewrite in explanation.rewrites]
    lines += [f"skips {skip.node or 'the model'}: {skip.reason}" for skip in explanation.skips]
    node = f" at {explanation.node}" if explanation.node else ""
    return Group(*lines or [f"{explanation.name} matches nothing{node}"])
