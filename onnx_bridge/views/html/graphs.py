"""The graph around the faulty nodes, before and after cleaning: which nodes, and in which colour."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import TYPE_CHECKING

from onnx_bridge.parity.checking.evidence import Evidence, Network
from onnx_bridge.parity.checking.report import CheckReport
from onnx_bridge.views.html.colours import BAD, GOOD, PLAIN, RANK, WARN, layer_roles
from onnx_bridge.views.html.html import Graphs
from onnx_bridge.views.html.neighbourhood import draw

if TYPE_CHECKING:
    from onnx_bridge.parity.bisect.bisection import Bisection
    from onnx_bridge.parity.layers.report import LayerReport

_LEGEND = ((BAD, "introduces the error"), (WARN, "propagates it, or differs"), (GOOD, "agrees"), (PLAIN, "unknown"))


def fault_graphs(
    report: CheckReport, evidence: Evidence, layers: LayerReport | None, bisection: Bisection | None
) -> Graphs | None:
    """Return the graphs around the faulty nodes; None if nothing differs or no graph is known.

    The nodes are those found by bisection, else by layer, else the producers of the first output that differs.
    """
    before, after = evidence.before or Network(()), evidence.after or Network(())
    old, new = _faulty(report, after, layers, bisection)
    sources = {node.name: node.origin for node in after.nodes}
    old |= {origin for name in new for origin in sources.get(name, (name,))}
    new |= {node.name for node in after.nodes if old.intersection(node.origin)} if not new else set()
    if not old and not new:
        return None
    status = _status(layers)
    if bisection is not None and bisection.fault is not None:
        status |= dict.fromkeys(new, BAD)
    drawn = draw(before, old, _inherited(status, after, old, known=bool(status))), draw(after, new, status)
    if drawn == (None, None):
        return None
    middle = [node for node in after.nodes if node.name in new] or [node for node in before.nodes if node.name in old]
    title = f"Around {middle[0].operator} {middle[0].name}"
    return Graphs(title, *drawn, _LEGEND)


def _faulty(
    report: CheckReport, after: Network, layers: LayerReport | None, bisection: Bisection | None
) -> tuple[set[str], set[str]]:
    """Return the names of faulty nodes of the original, and of the cleaned model."""
    if bisection is not None and bisection.fault is not None:
        fault = bisection.fault
        names = {node.name for node in fault.nodes} | set(fault.after)
        if names or fault.before:
            return set(fault.before), names
    if layers is not None:
        row = layers.culprit or layers.first
        if row is not None:
            return set(), {row.node, *layers.together}
    for *_, output in report.outputs():
        if not output.passed:
            names = {output.name, output.name.split("[")[0]}
            return set(), {node.name for node in after.nodes if names.intersection(node.outputs)}
    return set(), set()


def _status(layers: LayerReport | None) -> dict[str, str]:
    """Return the worst known colour of each node."""
    if layers is None:
        return {}
    return _worst((row.node, colour) for row, (_, colour) in zip(layers.rows, layer_roles(layers), strict=True))


def _worst(known: Iterable[tuple[str, str]]) -> dict[str, str]:
    status: dict[str, str] = {}
    for name, colour in known:
        if RANK.index(colour) >= RANK.index(status.get(name, PLAIN)):
            status[name] = colour
    return status


def _inherited(status: Mapping[str, str], after: Network, old: Collection[str], *, known: bool) -> dict[str, str]:
    """Return for nodes of the original: the worst colour of the nodes that replaced them."""
    worst = _worst((origin, status[node.name]) for node in after.nodes if node.name in status for origin in node.origin)
    return worst if known else dict.fromkeys(old, PLAIN)
