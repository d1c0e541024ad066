"""The driver of passes that look at one node at a time: it walks, budgets and commits; they match and propose."""

from __future__ import annotations

from abc import abstractmethod
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Generic, TypeVar

import onnx_ir as ir

from passes.core import graphs
from passes.core.base import Context, Pass, Result, Skip
from passes.core.edit import Edit, Proposal
from passes.core.errors import PassError
from passes.core.graphs import Scope
from passes.core.visibility import can_stand_for


@dataclass(frozen=True)
class Match:
    """What a rewrite found; subclasses add the facts that it needs.

    Attributes:
        node: the node whose outputs will be replaced.
        absorbed: nodes before it that the replacement covers as well; the driver removes those that nothing else uses.
    """

    node: ir.Node
    absorbed: tuple[ir.Node, ...] = field(default=(), kw_only=True)


M = TypeVar("M", bound=Match)


@dataclass
class NodeContext(Context):
    """A context that knows where the node is.

    Attributes:
        scope: its graph or function, with opset, constants and shapes.
    """

    scope: Scope = field(kw_only=True)


@dataclass(frozen=True)
class NodeRewrite(Pass, Generic[M]):
    """A pass that rewrites nodes one by one, wherever they are, until nothing matches any more.

    Attributes:
        operators: the (domain, operator) pairs that `match` is asked about.
    """

    operators: ClassVar[frozenset[tuple[str, str]]]

    @abstractmethod
    def match(self, node: ir.Node, context: NodeContext) -> M | Skip | None:
        """Whether the pass applies to ``node``, without changing anything.

        Returns:
            What was found; a Skip where it would apply but for a reason; None where there is nothing to do.
        """

    @abstractmethod
    def rewrite(self, match: M, edit: Edit) -> Sequence[ir.Value | None] | Skip:
        """Propose what stands in the place of the matched node.

        Returns:
            A value for each of its outputs, None where nothing uses it; or a Skip, and the proposal is discarded.
            Values that are there already may be returned; those that ``edit`` makes take the names of the outputs.
        """

    def run(self, model: ir.Model, context: Context) -> Result:
        """Rewrite until nothing matches; the main graph first, then each function."""
        result = Result(model)
        for scope in graphs.scopes(model):
            graphs.name_nodes(scope)
            self._run_scope(scope, context, result)
        return result

    def propose(self, match: M, scope: Scope) -> Proposal | Skip:
        """The replacement of a match, outside of the graph: to be probed, then committed or discarded."""
        edit = Edit(scope, match.node)
        outputs = self.rewrite(match, edit)
        if not isinstance(outputs, Skip) and _hidden(match.node, outputs, edit):
            outputs = Skip("a subgraph calls another value by the same name: unshadow-names comes first")
        if isinstance(outputs, Skip):
            Proposal(scope, match.node, (), edit.nodes).discard()
            return outputs
        return Proposal(scope, match.node, outputs, edit.nodes, edit.constants, match.absorbed)

    def _run_scope(self, scope: Scope, context: Context, result: Result) -> None:
        where = NodeContext(context.target, context.budget, context.progress, scope=scope)
        work = _Worklist(self.operators, scope.nodes())
        limit = 100 * len(work) + 100
        skips: dict[ir.Node, Skip] = {}
        while (node := work.take()) is not None:
            found = self.match(node, where)
            skips.pop(node, None)
            if found is None:
                continue
            proposal = found if isinstance(found, Skip) else self.propose(found, scope)
            if isinstance(proposal, Skip):
                skips[node] = Skip(proposal.reason, proposal.node or node.name or "")
                continue
            if not context.budget.take():
                proposal.discard()
                break
            if (limit := limit - 1) < 0:
                raise PassError("it goes on for ever: what it makes, it matches again", where=f"pass {self.name}")
            before = [producer for value in node.inputs if value is not None and (producer := value.producer())]
            after = [use.node for value in node.outputs for use in value.uses()]
            result.rewrites.append(proposal.commit(self.name))
            work.add(proposal.nodes)
            work.add(before)
            for each in before:  # a value that lost its other uses may match now
                work.add(use.node for value in each.outputs if len(uses := value.uses()) == 1 for use in uses)
            work.add(after)
        result.skips.extend(skips.values())


def _hidden(node: ir.Node, outputs: Sequence[ir.Value | None], edit: Edit) -> bool:
    """Whether a value that was there before would, by its name, mean another one where the node's output is used."""
    made = {*edit.constants, *(value for each in edit.nodes for value in each.outputs)}
    return any(
        new is not None and new not in made and not can_stand_for(new, old, node.graph, edit.scope)
        for old, new in zip(node.outputs, outputs, strict=False)
    )


class _Worklist:
    """Nodes still to be looked at, each at most once at a time, in the order in which they came."""

    def __init__(self, operators: frozenset[tuple[str, str]], nodes: Iterable[ir.Node]) -> None:
        self._operators = operators
        self._queue: deque[ir.Node] = deque()
        self._queued: set[ir.Node] = set()
        self.add(nodes)

    def __len__(self) -> int:
        return len(self._queue)

    def add(self, nodes: Iterable[ir.Node | None]) -> None:
        for node in nodes:
            if node is not None and node not in self._queued and (node.domain, node.op_type) in self._operators:
                self._queued.add(node)
                self._queue.append(node)

    def take(self) -> ir.Node | None:
        """The next node that is still in a graph; None at the end."""
        while self._queue:
            node = self._queue.popleft()
            self._queued.discard(node)
            if node.graph is not None:
                return node
        return None
