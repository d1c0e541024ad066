"""What a runtime makes of the nodes of a model: alone, with what shields them, and with their neighbours.

A legalization rule may shield an operator from what the runtime gets wrong: indices are made positive before ScatterND.
Judged alone the operator still fails; with all that the rule made of one node, which is its *unit*, it does not. The
reverse are neighbours that are right alone and wrong together (``suspects.py``).

The probe of a node is kept with the node, and serves as long as nothing changes that it was made of: whoever asks next,
another round of legalization or the cutting into stages, need not cut it out and sign it again.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Sequence
from dataclasses import dataclass

import onnx_ir as ir

from passes.core import graphs
from passes.core.base import Status, Target, Verdict
from passes.core.graphs import Scope
from passes.target.probes import Probe
from passes.target.suspects import suspects

RULE = "legalize/"
"""How the name of a pass begins that stands for a legalization rule."""
_KEPT = "onnx_bridge.probe"
"""The key of a node's probe among its transient notes, with what it was made of."""


@dataclass(frozen=True)
class Finding:
    """Nodes that the runtime does not run right, in topological order: one, or several together."""

    nodes: tuple[ir.Node, ...]
    probe: Probe
    verdict: Verdict


@dataclass
class Judge:
    """Asks a runtime about nodes, which are in the main graph or in a subgraph, or proposed."""

    target: Target
    scope: Scope

    def alone(self, nodes: Iterable[ir.Node]) -> dict[ir.Node, Finding]:
        """What is wrong with each node by itself; without those that run with their unit, as far as it is given."""
        asked = [node for node in nodes if graphs.constant_of(node) is None]
        found = self._ask([((node,), self._probe(node)) for node in asked])
        for each in found:  # it is asked about anew next time: more may be known of what leads to it
            each.nodes[0].meta.pop(_KEPT, None)
        return {each.nodes[0]: each for each in self._unshielded(found, asked)}

    def together(self, sound: Collection[ir.Node]) -> list[Finding]:
        """The groups of nodes that are wrong together though each is sound; without those that their unit shields."""
        groups = [group for group in suspects(self.scope) if all(node in sound for node in group)]
        found = self._ask([(group, Probe.of(group, self.scope)) for group in groups])
        return self._unshielded(found, [node for node in self.scope.graph if node in sound] if found else [])

    def ask(self, probe: Probe) -> Verdict:
        """The verdict on a probe; a refusal where there is no asking."""
        if probe.problem is not None:
            return Verdict(Status.REJECTED, probe.problem)
        return self.target.verdicts([probe])[0]

    def _ask(self, probes: Sequence[tuple[tuple[ir.Node, ...], Probe]]) -> list[Finding]:
        """Those that fail."""
        possible = [(nodes, probe) for nodes, probe in probes if probe.problem is None]
        verdicts = self.target.verdicts([probe for _, probe in possible]) if possible else []
        known = {nodes: verdict for (nodes, _), verdict in zip(possible, verdicts, strict=True)}
        found = []
        for nodes, probe in probes:
            verdict = known.get(nodes) or Verdict(Status.REJECTED, str(probe.problem))
            if verdict.status is not Status.OK:
                found.append(Finding(nodes, probe, verdict))
        return found

    def _unshielded(self, found: list[Finding], nodes: Iterable[ir.Node]) -> list[Finding]:
        """Without those that lie within a unit that runs."""
        if not found:
            return found
        unit_of = units(nodes)
        inside = {
            each.nodes: unit for each in found if (unit := unit_of.get(each.nodes[0])) and set(unit) >= set(each.nodes)
        }
        whole = [(unit, Probe.of(unit, self.scope)) for unit in dict.fromkeys(inside.values())]
        failed = {each.nodes for each in self._ask(whole)}
        return [each for each in found if each.nodes not in inside or inside[each.nodes] in failed]

    def _probe(self, node: ir.Node) -> Probe:
        """The probe of a node, the kept one if it still holds."""
        if node.graph is None:
            return Probe.of([node], self.scope)
        state = _state(node, self.scope)
        kept = node.meta.get(_KEPT)
        if kept is not None and kept[0] == state and kept[1].nodes == (node,):  # a clone has its original's notes
            probe: Probe = kept[1]
            return probe
        probe = Probe.of([node], self.scope)
        if probe.is_local:
            node.meta[_KEPT] = state, probe
        return probe


def _state(node: ir.Node, scope: Scope) -> Hashable:
    """What the probe of a node is made of, where that is the node and its operands alone."""
    operands = tuple([value if value is None else (value, *_known(value, scope)) for value in node.inputs])
    results = tuple([(value.name == "", _is_used(value), *_known(value, scope)) for value in node.outputs])
    return operands, results, tuple(node.attributes.values()), tuple(scope.opset_imports.items())


def _known(value: ir.Value, scope: Scope) -> tuple[object, ...]:
    tensor = scope.constant(value)
    if tensor is not None:
        return (tensor,)
    shape = scope.shape(value)
    return value.type, None if shape is None else shape.dims


def _is_used(value: ir.Value) -> bool:
    return value.is_graph_output() or bool(value.uses())


def units(nodes: Iterable[ir.Node]) -> dict[ir.Node, tuple[ir.Node, ...]]:
    """For each of the nodes that a rule made, in order, those that it made with it of the same nodes of the source."""
    groups: dict[tuple[str, str, ir.Graph | None], list[ir.Node]] = {}
    for node in nodes:
        maker = node.metadata_props.get(graphs.PASS, "")
        if maker.startswith(RULE):
            groups.setdefault((maker, node.metadata_props.get(graphs.ORIGIN, ""), node.graph), []).append(node)
    return {node: tuple(group) for group in groups.values() for node in group if len(group) > 1}
