"""Which nodes to look at, and how they are coloured: the graph around what is at fault, before and after cleaning."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import TYPE_CHECKING

from onnx_bridge.parity.evidence import Evidence, Network
from onnx_bridge.parity.report import Report
from onnx_bridge.report.colours import BAD, GOOD, PLAIN, RANK, WARN, blame
from onnx_bridge.report.html import Graphs
from onnx_bridge.report.neighbourhood import draw

if TYPE_CHECKING:
    from onnx_bridge.parity.bisect.bisection import Bisection
    from onnx_bridge.parity.layer_report import Layers

_LEGEND = ((BAD, "makes the error"), (WARN, "passes it on, or differs"), (GOOD, "agrees"), (PLAIN, "not known"))


def around_the_fault(
    report: Report, evidence: Evidence, layers: Layers | None, bisection: Bisection | None
) -> Graphs | None:
    """The graphs around what is at fault: by bisection, else by layer, else what makes the first output that differs.

    None where nothing differs, or no graph is known.
    """
    before, after = evidence.before or Network(()), evidence.after or Network(())
    old, new = _suspects(report, after, layers, bisection)
    sources = {node.name: node.origin for node in after.nodes}
    old |= {origin for name in new for origin in sources.get(name, (name,))}
    new |= {node.name for node in after.nodes if old.intersection(node.origin)} if not new else set()
    if not old and not new:
        return None
    status = _status(layers)
    if bisection is not None and bisection.finding is not None:
        status |= dict.fromkeys(new, BAD)
    drawn = draw(before, old, _inherited(status, after, old, known=bool(status))), draw(after, new, status)
    if drawn == (None, None):
        return None
    middle = [node for node in after.nodes if node.name in new] or [node for node in before.nodes if node.name in old]
    title = f"Around {middle[0].operator} {middle[0].name}"
    return Graphs(title, *drawn, _LEGEND)


def _suspects(
    report: Report, after: Network, layers: Layers | None, bisection: Bisection | None
) -> tuple[set[str], set[str]]:
    """The names of nodes of the original, and of the cleaned model."""
    if bisection is not None and bisection.finding is not None:
        found = bisection.finding
        names = {node.name for node in found.nodes} | set(found.after)
        if names or found.before:
            return set(found.before), names
    if layers is not None:
        row = layers.culprit or layers.first
        if row is not None:
            return set(), {row.node, *layers.together}
    for leg in report.legs:
        for comparison in leg.comparisons:
            for output in comparison.outputs:
                if not output.passed:
                    return set(), _makers(after, output.name)
    return set(), set()


def _makers(network: Network, output: str) -> set[str]:
    return {node.name for node in network.nodes if output in node.outputs or output.split("[")[0] in node.outputs}


def _status(layers: Layers | None) -> dict[str, str]:
    """The worst that is known of each node."""
    if layers is None:
        return {}
    return _worst((row.node, tone) for row, (_, tone) in zip(layers.rows, blame(layers), strict=True))


def _worst(known: Iterable[tuple[str, str]]) -> dict[str, str]:
    status: dict[str, str] = {}
    for name, tone in known:
        if RANK.index(tone) >= RANK.index(status.get(name, PLAIN)):
            status[name] = tone
    return status


def _inherited(status: Mapping[str, str], after: Network, old: Collection[str], *, known: bool) -> dict[str, str]:
    """For nodes of the original, the worst that is known of those that stand for them."""
    found = _worst((origin, status[node.name]) for node in after.nodes if node.name in status for origin in node.origin)
    return found if known else dict.fromkeys(old, PLAIN)
