"""Legalization: what the runtime rejects is rewritten until it accepts it, and nothing else is touched.

The runtime itself is asked about each node. Where it rejects one, crashes on it, or computes it wrongly, the rules for
its operator (`passes.legalize.rules`) propose replacements, one after the other. A proposal's own nodes are asked
about, and replaced by the rules in their turn; what then stands there is put to the runtime as a whole, and compared
with what the node computed before. Only what passes is committed; all else is discarded without a trace.

Skips: nodes that no rule can mend, with the runtime's words and the reason of each rule.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import onnx_ir as ir

from passes.analysis.randomness import is_random
from passes.cleanup.fold_constants import FoldConstants
from passes.cleanup.remove_dead import RemoveDead
from passes.core import graphs
from passes.core.base import Context, Exactness, Pass, Result, Skip, Status, Verdict
from passes.core.edit import Proposal
from passes.core.graphs import Scope
from passes.core.inference import infer_after
from passes.core.rewrite import NodeContext
from passes.legalize import rules
from passes.target.judge import RULE, Judge
from passes.target.probes import Probe

_ROUNDS = 4
"""How often all nodes are asked about: what is committed can make a new pair that is wrong together."""
_OPSET = 17
_AFTERWARDS = (FoldConstants(), RemoveDead())
"""What rules leave behind: arithmetic of constants and shapes, and what nothing uses any more."""
_DEPTH = 12
"""How deep rules may be nested: a rule's proposal, the proposals for its nodes, and so on."""


@dataclass(frozen=True)
class Legalize(Pass):
    """Rewrite what the runtime rejects, crashes on or gets wrong into operators that it runs right."""

    name = "legalize"
    exactness = Exactness.ROUNDING

    def run(self, model: ir.Model, context: Context) -> Result:
        """Ask about every node of the main graph, and mend what can be mended."""
        result = Result(model)
        if context.target is None:
            result.skips.append(Skip("there is no runtime to ask"))
            return result
        model.graph.opset_imports.setdefault("", _OPSET)  # which rules write in, and a model of others may lack
        scope = Scope(model, model.graph)
        graphs.name_nodes(scope)
        mender = _Mender(Judge(context.target, scope), scope, context, result)
        for _ in range(_ROUNDS):
            before = len(result.rewrites)
            skips = list(mender.mend(list(model.graph)))
            if len(result.rewrites) == before or context.budget.left == 0:
                result.skips = skips
                break
            for each in _AFTERWARDS:
                result.rewrites += each.run(model, context).rewrites
        return result


@dataclass
class _Mender:
    judge: Judge
    scope: Scope
    context: Context
    result: Result
    where: NodeContext = field(init=False)

    def __post_init__(self) -> None:
        given = self.context
        self.where = NodeContext(given.target, given.budget, given.progress, scope=self.scope)

    def mend(self, nodes: Sequence[ir.Node]) -> Iterator[Skip]:
        """Rewrite those of ``nodes`` that the runtime does not run right; yields why it is not done where it is not."""
        before = len(self.result.rewrites)
        wrong = self.judge.alone(nodes)
        sound = {node for node in nodes if node not in wrong}
        for node in wrong:
            # more may be known by now of what it takes
            verdict = wrong[node].verdict if len(self.result.rewrites) == before else self._alone(node)
            if verdict is None:
                sound.add(node)
            elif node.graph is not None and self.context.budget.left != 0:
                yield from self._mend(node, verdict)
        if nodes and nodes[0].graph is self.scope.graph:
            for each in self.judge.together({node for node in sound if node.graph is not None}):
                if all(node.graph is not None for node in each.nodes) and self.context.budget.left != 0:
                    yield from self._mend(each.nodes[-1], each.verdict)

    def _mend(self, node: ir.Node, verdict: Verdict) -> Iterator[Skip]:
        if next(graphs.subgraphs(node), None) is not None:
            for graph in list(graphs.subgraphs(node)):
                yield from self.mend(list(graph))
            if self._alone(node) is None:
                return
        found = self._attempt(node, ())
        if isinstance(found, Skip):
            yield Skip("; ".join(filter(None, (_words(verdict), found.reason))), node.name or "")
        elif self.context.budget.take():
            rewrite = found.proposal.commit(f"{RULE}{found.rules[0]}")
            infer_after([value for value in found.proposal.outputs if value is not None], self.scope)
            note = f"{', '.join(found.rules)}, since {_words(verdict)}"
            self.result.rewrites.append(dataclasses.replace(rewrite, note=note))
        else:
            found.proposal.discard()

    def _alone(self, node: ir.Node) -> Verdict | None:
        """What is wrong with a node; None where nothing is."""
        found = self.judge.alone([node])
        return found[node].verdict if found else None

    def _attempt(self, node: ir.Node, chain: tuple[tuple[str, str], ...]) -> _Replacement | Skip:
        """The first proposal for ``node`` that the runtime runs right.

        Args:
            node: in a graph, or in a proposal.
            chain: the rules that are being tried, each with its operator: none is applied to what it made of the same.
        """
        reasons = []
        for rule in rules().get((node.domain, node.op_type), ()):
            link = (rule.name, node.op_type)
            if link in chain or len(chain) >= _DEPTH:
                continue
            found = rule.match(node, self.where)
            if found is None:
                continue
            proposal = found if isinstance(found, Skip) else rule.propose(found, self.scope)
            if isinstance(proposal, Skip):
                reasons.append(f"{rule.name}: {proposal.reason}")
                continue
            replacement = _Replacement(proposal, [rule.name])
            failure = self._settle(replacement, node, (*chain, link))
            if failure is None:
                return replacement
            proposal.discard()
            reasons.append(f"{rule.name}: {failure}")
        return Skip("; ".join(reasons) or f"no rule is known for {node.op_type}")

    def _settle(self, replacement: _Replacement, node: ir.Node, chain: tuple[tuple[str, str], ...]) -> str | None:
        """Mend what does not run right in a proposal, and put the whole to the runtime; says what stands in the way."""
        proposal = replacement.proposal
        before = self._original(proposal)
        proposal.prune()
        lacking = ""
        for each, found in self.judge.alone(list(proposal.nodes)).items():
            if before.chance is not None and is_random(each, self.scope):
                continue  # it is all that need stay where it is
            if next(graphs.subgraphs(each), None) is not None:
                for graph in graphs.subgraphs(each):
                    for _ in self.mend(list(graph)):
                        pass
                if self._alone(each) is None:
                    continue
            inner = self._attempt(each, chain)
            if isinstance(inner, Skip):  # what fails alone may still do in its place
                lacking = lacking or f"; it needs {each.op_type}: {_words(found.verdict)}; {inner.reason}"
                continue
            replacement.rules += [name for name in inner.rules if name not in replacement.rules]
            proposal.substitute(each, inner.proposal)
        made = [value for value in proposal.outputs if value is not None and value.producer() in set(proposal.nodes)]
        if not made:
            return None
        if before.chance is not None:  # of what is random no two runs are the same
            lacking = lacking or _same_seeds(proposal.nodes)
            return f"what it makes of {node.op_type} does not do{lacking}" if lacking else None
        whole = Probe.of(
            proposal.nodes, self.scope, made, instead_of=before if len(made) == len(before.outputs) else None
        )
        verdict = self.judge.ask(whole)
        if verdict.status is Status.OK:
            return None
        return f"what it makes of {node.op_type} does not do: {_words(verdict)}{lacking}"

    def _original(self, proposal: Proposal) -> Probe:
        """What a proposal is to replace."""
        nodes = [proposal.node]
        if proposal.absorbed and proposal.node.graph is not None:
            replaced = {proposal.node, *proposal.absorbed}
            nodes = [node for node in proposal.node.graph if node in replaced]
        pairs = zip(proposal.node.outputs, proposal.outputs, strict=True)
        return Probe.of(nodes, self.scope, [old for old, new in pairs if old.name and new is not None])


@dataclass
class _Replacement:
    """A proposal that holds, and the rules that made it."""

    proposal: Proposal
    rules: list[str]


def _same_seeds(nodes: Sequence[ir.Node]) -> str:
    """What is wrong with copies of a node that draws from a seed: the turns of a loop go on from where others ended."""
    seeds = [seed.value for node in graphs.with_nested(nodes) if (seed := node.attributes.get("seed")) is not None]
    return "; its copies would all draw the same from one seed" if len(seeds) > len(set(seeds)) else ""


def _words(verdict: Verdict) -> str:
    """A verdict for the user."""
    match verdict.status:
        case Status.WRONG:
            return f"the runtime computes it wrongly ({verdict.message})"
        case Status.CRASHES:
            return f"the runtime crashes on it ({verdict.message})"
        case Status.HANGS:
            return "the runtime does not come to an end with it"
    return verdict.message
