"""Legalization: rewrite the nodes that the runtime does not run correctly, and leave all others unchanged.

The driver asks the runtime for a verdict on every node. For a node that the runtime rejects, crashes on, computes
wrongly, or makes too much of, it tries the rules for the operator (`passes.legalize.rules`) in order:

    1. A rule proposes a replacement, which is not yet part of the graph.
    2. The nodes of the proposal are judged, and replaced by their own rules if they fail (recursively).
    3. The complete proposal is probed and its results are compared with those of the nodes that it replaces.
    4. Where that is too large to run, the same rules are applied to the witness of those nodes, and their proposal is
       compared.
    5. The first proposal that passes is committed. All others are discarded and leave the graph unchanged.

Skips: nodes for which no rule succeeds, with the runtime's message and the reason of each rule.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import onnx_ir as ir

from passes.cleanup.fold_constants import FoldConstants
from passes.cleanup.remove_dead import RemoveDead
from passes.core.errors import InputError
from passes.graphs.randomness import is_random
from passes.graphs.scopes import Scope, name_nodes
from passes.graphs.traversal import has_subgraphs, subgraphs, with_nested
from passes.legalize import rules
from passes.probing.node_verdicts import PROVEN, RULE, UNSOLVED, NodeVerdicts
from passes.probing.probe import Probe
from passes.probing.witness import witness
from passes.rewriting.base import Context, Obstacle, Proof, Result, Skip, Status, Unproven, Verdict
from passes.rewriting.edit import Proposal
from passes.rewriting.rewrite import NodeRewrite
from passes.shapes.inference import infer_after
from passes.specialize.convert_opset import ConvertOpset

_MAX_ROUNDS = 4
"""The most rounds in which all nodes are judged: committed nodes can form a group that is wrong only together."""
_MAX_DEPTH = 12
"""The greatest depth of nested rules: a rule's proposal, the proposals for its nodes, and so on."""
_DEFAULT_OPSET = 17
"""The opset that rules write in if the model does not import the standard domain."""
_CLEANUP = (FoldConstants(), RemoveDead())
"""Passes after each round: rules leave constant arithmetic and unused nodes behind."""

RuleChain = tuple[tuple[str, str], ...]
"""The rules that are being tried, outermost first, each with the operator that it is applied to."""


def legalize(model: ir.Model, context: Context) -> Result:
    """Judge and legalize the nodes of the main graph for ``context.target`` until a round changes nothing."""
    assert context.target is not None
    result = Result(model)
    model.graph.opset_imports.setdefault("", _DEFAULT_OPSET)
    scope = Scope(model, model.graph)
    name_nodes(scope)
    _legalize(_Legalizer(NodeVerdicts(context.target, scope), scope, context, result))
    if _raise_opset(scope, context, result):
        _legalize(_Legalizer(NodeVerdicts(context.target, scope), scope, context, result))
    return result


def _legalize(legalizer: _Legalizer) -> None:
    """Legalize the nodes of the graph until a round changes nothing; the skips are those of nodes that are left."""
    scope, context, result = legalizer.scope, legalizer.context, legalizer.result
    for _ in range(_MAX_ROUNDS):
        before = len(result.rewrites)
        result.skips = list(legalizer.legalize_nodes(list(scope.graph)))
        if len(result.rewrites) == before or context.budget.left == 0:
            break
        for cleanup in _CLEANUP:
            result.rewrites += cleanup.run(scope.model, context).rewrites
    left = {node.name for node in scope.nodes()}
    result.skips = [skip for skip in result.skips if skip.node in left]


def _raise_opset(scope: Scope, context: Context, result: Result) -> bool:
    """Convert the model to the opset that rules for nodes that are left need; returns whether it was."""
    needed = max((skip.opset for skip in result.skips), default=0)
    if needed <= scope.opset():
        return False
    try:
        converted = ConvertOpset(to=needed).run(scope.model, context)
    except InputError:  # an operator has no equivalent: the skips say which opset is needed
        return False
    result.rewrites += converted.rewrites
    return scope.opset() >= needed


@dataclass
class _Replacement:
    """A proposal, the names of its rules, outermost first, and the verdict; None if there is nothing to compare."""

    proposal: Proposal
    rules: list[str]
    verdict: Verdict | None = None

    def add_rules(self, names: Iterable[str]) -> None:
        self.rules = list(dict.fromkeys((*self.rules, *names)))


@dataclass
class _Legalizer:
    """Legalizes the nodes of a scope, those of the graph or those of the subgraphs of a ``proposal``."""

    verdicts: NodeVerdicts
    scope: Scope
    context: Context
    result: Result
    is_witness: bool = False
    proposal: Proposal | None = None

    def legalize_nodes(self, nodes: Sequence[ir.Node]) -> Iterator[Skip]:
        """Legalize the nodes of one graph; yields a Skip for each failing node that is left."""
        before = len(self.result.rewrites)
        failing = self.verdicts.failing_nodes(nodes)
        sound = {node for node in nodes if node not in failing}
        for node, finding in failing.items():
            # a rewrite may have made shapes or constants of later nodes known
            verdict = finding.verdict if len(self.result.rewrites) == before else self._failing_verdict(node)
            if verdict is None:
                sound.add(node)
            elif node.graph is not None and self.context.budget.left != 0:
                yield from self._legalize_node(node, verdict)
        if nodes and nodes[0].graph is self.scope.graph:
            yield from self._legalize_groups({node for node in sound if node.graph is not None})

    def _legalize_groups(self, sound: set[ir.Node]) -> Iterator[Skip]:
        """Legalize groups of nodes that pass alone and fail together, by rewriting the last node of each."""
        for group in self.verdicts.failing_clusters(sound):
            if all(node.graph is not None for node in group.nodes) and self.context.budget.left != 0:
                yield from self._legalize_node(group.nodes[-1], group.verdict)

    def _legalize_node(self, node: ir.Node, verdict: Verdict) -> Iterator[Skip]:
        if has_subgraphs(node):
            for graph in list(subgraphs(node)):
                yield from self.legalize_nodes(list(graph))
            if self._failing_verdict(node) is None:
                return
        replacement = self._find_replacement(node, ())
        if isinstance(replacement, Skip):
            reason = "; ".join(filter(None, (_describe(verdict), replacement.reason)))
            yield replace(replacement, reason=reason, node=node.name or "")
        elif self.context.budget.take():
            self._commit(replacement, verdict)
        else:
            replacement.proposal.discard()

    def _commit(self, replacement: _Replacement, verdict: Verdict) -> None:
        rewrite = replacement.proposal.commit(f"{RULE}{replacement.rules[0]}", self.proposal)
        infer_after([value for value in replacement.proposal.outputs if value is not None], self.scope)
        for node in replacement.proposal.nodes:
            node.meta[PROVEN] = replacement.verdict
        note = f"{', '.join(replacement.rules)}, since {_describe(verdict)}"
        self.result.rewrites.append(replace(rewrite, note=note, rules=tuple(replacement.rules)))

    def _failing_verdict(self, node: ir.Node) -> Verdict | None:
        """Return the verdict on a node that fails; None if it passes."""
        failing = self.verdicts.failing_nodes([node])
        return failing[node].verdict if failing else None

    def _find_replacement(
        self, node: ir.Node, chain: RuleChain, outer: Sequence[ir.Value | None] = ()
    ) -> _Replacement | Skip:
        """Return the first replacement of ``node`` that the runtime runs correctly.

        A rule in ``chain``, the enclosing ones, is not applied again to an operator that it produced itself. The
        ``outer`` outputs of the proposal that the node is in count as used.
        """
        skips: list[Skip] = []
        node.metadata_props.pop(UNSOLVED, None)
        for rule in rules().get((node.domain, node.op_type), ()):
            if (rule.name, node.op_type) in chain or len(chain) >= _MAX_DEPTH:
                continue
            replacement = self._replacement(node, rule, chain, outer)
            if isinstance(replacement, _Replacement):
                return replacement
            if replacement is not None:
                skips.append(replace(replacement, reason=f"{rule.name}: {replacement.reason}"))
        if not skips:
            return Skip(f"there is no rule for {node.op_type}")
        reason = node.metadata_props[UNSOLVED] = "; ".join(skip.reason for skip in skips)
        opset = next((skip.opset for skip in skips if skip.opset), 0)
        return Skip(reason, is_defect=any(skip.is_defect for skip in skips), opset=opset)

    def _replacement(
        self, node: ir.Node, rule: NodeRewrite, chain: RuleChain, outer: Sequence[ir.Value | None]
    ) -> _Replacement | Skip | None:
        """Return the replacement by a rule, if the runtime runs it correctly; None if the rule is for other nodes."""
        proposal = rule.propose(node, self.scope)
        if not isinstance(proposal, Proposal):
            return proposal
        if any(new is None and old in outer for old, new in zip(node.outputs, proposal.outputs, strict=True)):
            proposal.discard()
            return Skip("the rule does not compute all outputs that are used")
        replacement = _Replacement(proposal, [rule.name])
        failure = self._verify(replacement, rule, (*chain, (rule.name, node.op_type)))
        if failure is not None:
            proposal.discard()
        return failure or replacement

    def _verify(self, replacement: _Replacement, rule: NodeRewrite, chain: RuleChain) -> Skip | None:
        """Legalize the nodes of a proposal, then probe it as a whole; return why it fails, None if it passes."""
        proposal = replacement.proposal
        node = proposal.node
        original = self._original_probe(proposal)
        is_random_original = original.randomness is not None
        proposal.prune()
        unresolved = self._legalize_proposal(replacement, chain, keep_random=is_random_original)
        new_nodes = set(proposal.nodes)
        outputs = {
            new: old
            for old, new in zip(node.outputs, proposal.outputs, strict=True)
            if old.name and new is not None and new.producer() in new_nodes
        }
        if not outputs:
            return None
        if is_random_original:  # random results differ from run to run and cannot be compared
            problem = unresolved or _shared_seed(proposal.nodes)
            return problem and replace(problem, reason=f"the replacement of {node.op_type} fails; {problem.reason}")
        replaced = Probe.of(original.nodes, self.scope, list(outputs.values()))
        verdict = self.verdicts.of_probe(Probe.of(proposal.nodes, self.scope, list(outputs), replaces=replaced))
        if _is_too_large(verdict):
            verdict = self._prove_by_witness(replacement, replaced, rule, chain)
        replacement.verdict = verdict
        if verdict.status is Status.OK:
            return None
        failure = f"the replacement of {node.op_type} fails: {_describe(verdict)}"
        return Skip(failure) if unresolved is None else replace(unresolved, reason=f"{failure}; {unresolved.reason}")

    def _legalize_proposal(self, replacement: _Replacement, chain: RuleChain, *, keep_random: bool) -> Skip | None:
        """Substitute the failing nodes of a proposal, random ones only if not ``keep_random``.

        Return why the first node without a substitute fails, otherwise None; it may still pass in the proposal.
        """
        proposal, unresolved = replacement.proposal, None
        for node, finding in self.verdicts.failing_nodes(list(proposal.nodes)).items():
            if keep_random and is_random(node, self.scope):
                continue
            if has_subgraphs(node):
                # what is rewritten there is a part of the proposal: no rewrite of its own, and none if it is discarded
                context, result = Context(self.context.target), Result(self.scope.model)
                nested = replace(self, context=context, result=result, proposal=proposal)
                for graph in subgraphs(node):
                    list(nested.legalize_nodes(list(graph)))
                replacement.add_rules(rule for rewrite in nested.result.rewrites for rule in rewrite.rules)
                if self._failing_verdict(node) is None:
                    continue
            inner = self._find_replacement(node, chain, proposal.outputs)
            if isinstance(inner, Skip):
                reason = f"the rewrite needs {node.op_type}: {_describe(finding.verdict)}; {inner.reason}"
                unresolved = unresolved or replace(inner, reason=reason)
                continue
            replacement.add_rules(inner.rules)
            proposal.substitute(node, inner.proposal)
        return unresolved

    def _prove_by_witness(
        self, replacement: _Replacement, original: Probe, rule: NodeRewrite, chain: RuleChain
    ) -> Verdict:
        """Return the verdict on a replacement that the runtime accepts, by the same replacement of a witness."""
        small = Skip("a witness has none") if self.is_witness else witness(original)
        if isinstance(small, Skip):
            return _unproven(small.reason)
        name_nodes(small.scope)
        verdicts, context = NodeVerdicts(self.verdicts.target, small.scope), Context(self.context.target)
        inner = _Legalizer(verdicts, small.scope, context, Result(small.scope.model), is_witness=True)
        proposal = rule.propose(small.nodes[original.nodes.index(replacement.proposal.node)], inner.scope)
        if not isinstance(proposal, Proposal):
            return _unproven(f"{rule.name} does not apply to its witness")
        twin = _Replacement(proposal, [rule.name])
        inner._verify(twin, rule, chain)
        if twin.rules != replacement.rules or twin.verdict is None:
            return _unproven(f"other rules apply to its witness: {', '.join(twin.rules)}")
        if twin.verdict.status is Status.REJECTED or twin.verdict.proof is Proof.NONE:
            return _unproven(f"its witness: {twin.verdict.message or twin.verdict.unproven}")
        return replace(twin.verdict, proof=Proof.WITNESS, unproven=Unproven(Obstacle.SIZE))

    def _original_probe(self, proposal: Proposal) -> Probe:
        nodes = [proposal.node]
        if proposal.absorbed and proposal.node.graph is not None:
            replaced = {proposal.node, *proposal.absorbed}
            nodes = [node for node in proposal.node.graph if node in replaced]
        pairs = zip(proposal.node.outputs, proposal.outputs, strict=True)
        return Probe.of(nodes, self.scope, [old for old, new in pairs if old.name and new is not None])


def _is_too_large(verdict: Verdict) -> bool:
    """Return whether a runtime accepts what is too large to compare."""
    why = verdict.unproven
    too_large = why is not None and why.obstacle is Obstacle.SIZE
    return verdict.status is Status.OK and verdict.proof is Proof.NONE and too_large


def _unproven(why: str) -> Verdict:
    return Verdict(Status.OK, unproven=Unproven(Obstacle.SIZE, why))


def _shared_seed(nodes: Sequence[ir.Node]) -> Skip | None:
    """Return why copies of a seeded random node are not equivalent to it; None if no two nodes have the same seed.

    The iterations of a loop continue one sequence of numbers; the unrolled copies would each start it again.
    """
    seeds = [seed.value for node in with_nested(nodes) if (seed := node.attributes.get("seed")) is not None]
    return Skip("the copies would all draw the same numbers from one seed") if len(seeds) > len(set(seeds)) else None


def _describe(verdict: Verdict) -> str:
    """Return a failing verdict for the user."""
    judge = verdict.by or "the runtime"
    match verdict.status:
        case Status.WRONG:
            return f"{judge} computes it wrongly ({verdict.message})"
        case Status.CRASHES:
            return f"{judge} crashes on it ({verdict.message})"
        case Status.HANGS:
            return f"{judge} takes too long for it ({verdict.message})"
    return f"{judge}: {verdict.message}" if verdict.by else verdict.message
