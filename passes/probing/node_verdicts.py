"""The verdicts of a runtime on nodes: on each alone, with the other nodes of a rewrite, and in fusion clusters.

A legalization rule may protect an operator from what the runtime gets wrong: it makes indices positive before
ScatterND. Alone the operator still fails; together with all nodes that the rule made for the same source nodes, its
*rule group*, it does not. The reverse are clusters whose nodes are right alone and wrong together (`fusion_clusters`).

The probe of a node is cached in its ``meta``, and stays valid as long as what it was made of does not change.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Sequence
from dataclasses import dataclass, replace

import onnx_ir as ir

from passes.graphs import lineage
from passes.graphs.dependencies import unchanged_graphs
from passes.graphs.scopes import Scope
from passes.graphs.tensors import constant_of
from passes.graphs.traversal import is_used
from passes.probing.fusion_clusters import fusion_clusters
from passes.probing.probe import Probe
from passes.rewriting.base import Proof, Status, Target, Verdict

RULE = "legalize/"
"""The prefix of the pass name of a legalization rule."""
PROVEN = "onnx_bridge.proven"
"""The key of the verdict on a rewrite in the ``meta`` of the nodes that it made."""
UNSOLVED = "onnx_bridge.not_legalized"
"""The key in the metadata of a node that fails: why the rules for its operator do not legalize it."""
_CACHED = "onnx_bridge.probe"
"""The key of a node's probe in its ``meta``, together with the state that it was made of."""


@dataclass(frozen=True)
class Finding:
    """The verdict on nodes, in topological order: one node, or a cluster."""

    nodes: tuple[ir.Node, ...]
    probe: Probe
    verdict: Verdict

    @property
    def fails(self) -> bool:
        return self.verdict.status is not Status.OK


@dataclass
class NodeVerdicts:
    """The verdicts of a runtime on nodes of the main graph, of subgraphs, or of proposals."""

    target: Target
    scope: Scope

    def of_nodes(self, nodes: Iterable[ir.Node]) -> dict[ir.Node, Finding]:
        """Return the verdict on each node, except constants: on it alone, or on its rule group if it fails alone.

        Only the part of a rule group that is in ``nodes`` is considered.
        """
        asked = [node for node in nodes if constant_of(node) is None]
        with unchanged_graphs():
            findings = self._ask([((node,), self._probe(node)) for node in asked])
            for finding in findings:
                if finding.fails:  # it is probed again next time: more may be known of its inputs by then
                    finding.nodes[0].meta.pop(_CACHED, None)
            return {group.nodes[0]: _as_rewritten(group) for group in self._in_groups(findings, asked)}

    def failing_nodes(self, nodes: Iterable[ir.Node]) -> dict[ir.Node, Finding]:
        """Return the nodes that fail alone, except those that pass within their rule group in ``nodes``."""
        return {node: finding for node, finding in self.of_nodes(nodes).items() if finding.fails}

    def failing_clusters(self, sound: Collection[ir.Node]) -> list[Finding]:
        """Return the clusters of ``sound`` nodes that fail together, except those that pass within their rule group."""
        clusters = fusion_clusters(self.scope, rehearsed=self.target.rehearses)
        asked = [cluster for cluster in clusters if all(node in sound for node in cluster.nodes)]
        failing = [finding for finding in self._ask(asked) if finding.fails]
        nodes = [node for node in self.scope.graph if node in sound] if failing else []
        return [finding for finding in self._in_groups(failing, nodes) if finding.fails]

    def of_probe(self, probe: Probe) -> Verdict:
        """Return the verdict on a probe: a rejection if it cannot be given to a runtime."""
        return self._ask([(probe.nodes, probe)])[0].verdict

    def _ask(self, probes: Sequence[tuple[tuple[ir.Node, ...], Probe]]) -> list[Finding]:
        possible = [probe for _, probe in probes if probe.problem is None]
        verdicts = iter(self.target.verdicts(possible) if possible else ())
        return [
            Finding(nodes, probe, next(verdicts) if probe.problem is None else Verdict(Status.REJECTED, probe.problem))
            for nodes, probe in probes
        ]

    def _in_groups(self, findings: list[Finding], nodes: Iterable[ir.Node]) -> list[Finding]:
        """Return the findings; a failure that lies within a rule group that passes has the verdict on the group."""
        failing = [finding for finding in findings if finding.fails]
        group_of = rule_groups(nodes) if failing else {}
        groups: dict[tuple[ir.Node, ...], tuple[ir.Node, ...]] = {}
        for finding in failing:
            group = group_of.get(finding.nodes[0], ())
            if group and set(group) >= set(finding.nodes):
                groups[finding.nodes] = group
        asked = self._ask([(group, Probe.of(group, self.scope)) for group in dict.fromkeys(groups.values())])
        passing = {group.nodes: group.verdict for group in asked if not group.fails}
        return [
            replace(finding, verdict=passing[groups[finding.nodes]])
            if groups.get(finding.nodes) in passing
            else finding
            for finding in findings
        ]

    def _probe(self, node: ir.Node) -> Probe:
        """Return the probe of a node: the cached one if it is still valid."""
        if node.graph is None:
            return Probe.of([node], self.scope)
        state = _state(node, self.scope)
        cached = node.meta.get(_CACHED)
        # a clone has the meta of its original
        if cached is not None and cached[0] == state and cached[1].nodes == (node,):
            probe: Probe = cached[1]
            return probe
        probe = Probe.of([node], self.scope)
        if probe.is_local:
            node.meta[_CACHED] = state, probe
        return probe


def _as_rewritten(finding: Finding) -> Finding:
    """Return a finding on one node; if nothing proves the node by itself, with the verdict on its rewrite."""
    known = finding.nodes[0].meta.get(PROVEN)
    unproven = not finding.fails and finding.verdict.proof is Proof.NONE
    return replace(finding, verdict=known) if unproven and known is not None else finding


def _state(node: ir.Node, scope: Scope) -> Hashable:
    """Return what the probe of a node depends on, if that is the node and its operands only."""
    operands = tuple([value if value is None else (value, *_known(value, scope)) for value in node.inputs])
    results = tuple([(value.name == "", is_used(value), *_known(value, scope)) for value in node.outputs])
    return operands, results, tuple(node.attributes.values()), tuple(scope.opset_imports.items())


def _known(value: ir.Value, scope: Scope) -> tuple[object, ...]:
    tensor = scope.constant(value)
    if tensor is not None:
        return (tensor,)
    shape = scope.shape(value)
    return value.type, None if shape is None else shape.dims


def made_by_rule(node: ir.Node) -> bool:
    """Return whether a legalization rule made a node."""
    return node.metadata_props.get(lineage.PASS, "").startswith(RULE)


def rule_groups(nodes: Iterable[ir.Node]) -> dict[ir.Node, tuple[ir.Node, ...]]:
    """Return, for each node that a rule made, all nodes that it made for the same source nodes, if several."""
    by_origin: dict[tuple[str, str, ir.Graph | None], list[ir.Node]] = {}
    for node in nodes:
        if made_by_rule(node):
            maker = node.metadata_props[lineage.PASS]
            by_origin.setdefault((maker, node.metadata_props.get(lineage.ORIGIN, ""), node.graph), []).append(node)
    return {node: tuple(group) for group in by_origin.values() for node in group if len(group) > 1}
