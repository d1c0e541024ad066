"""The driver of passes that look at one node at a time: it walks, checks, budgets and commits; they match and propose.

What every rewrite must respect is checked here and not by its author: operators are compared with their domain, a
function of the model may define an operator of a standard name, values may be sequences, and an outer graph may have a
value of the same name. What a rewrite needs to know of its operands it declares, as class attributes of `NodeRewrite`.
"""

from __future__ import annotations

import dataclasses
import sys
from abc import abstractmethod
from collections import deque
from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Generic, Self, TypeVar

import onnx
import onnx_ir as ir

from passes.core.errors import PassError
from passes.graphs.matching import has_references, is_redefined, producer
from passes.graphs.replacement import can_stand_for, is_visible
from passes.graphs.scopes import Scope, name_nodes, scopes
from passes.rewriting.base import Context, Pass, Result, Skip
from passes.rewriting.edit import Edit, Proposal

EVERY_INPUT = range(sys.maxsize)
"""For `NodeRewrite.needs_shape` and `NodeRewrite.needs_dtype`: all inputs of the node."""
UNKNOWN_SHAPE = "the shape of its input is unknown: freeze the dimensions that are open"
UNKNOWN_DTYPE = "the dtype of its input is unknown"


@dataclass(frozen=True)
class Match:
    """What a rewrite matched; subclasses add the facts that it needs.

    Attributes:
        node: the node whose outputs will be replaced.
        absorbed: nodes before it that the replacement covers as well; the driver removes those that nothing else uses.
    """

    node: ir.Node
    absorbed: tuple[ir.Node, ...] = field(default=(), kw_only=True)


M = TypeVar("M", bound=Match)


@dataclass
class NodeContext(Context):
    """The context of a node.

    Attributes:
        scope: the main graph or function that contains it, with opset, constants and shapes.
    """

    scope: Scope = field(kw_only=True)

    @classmethod
    def within(cls, scope: Scope, context: Context) -> Self:
        """``context``, for the nodes of ``scope``."""
        return cls(**{each.name: getattr(context, each.name) for each in dataclasses.fields(Context)}, scope=scope)

    def producer(self, node: ir.Node, index: int, *operators: str, domain: str = "") -> ir.Node | None:
        """The node that computes input ``index`` of ``node``, if it is one of ``operators`` of ``domain``.

        None for a node of another graph, where a function of the model redefines the operator, and where the caller of
        a function supplies attributes of it.
        """
        value = node.inputs[index] if index < len(node.inputs) else None
        return producer(value, node.graph, self.scope, *operators, domain=domain)

    def shape(self, node: ir.Node, index: int = 0) -> tuple[int, ...]:
        """The shape of an input that `NodeRewrite.needs_shape` lists."""
        shape = self.scope.static_shape(node.inputs[index])
        if shape is None:
            raise PassError(f"input {index} of {node.op_type} has no static shape: needs_shape must list it")
        return shape

    def dtype(self, node: ir.Node, index: int = 0) -> ir.DataType:
        """The dtype of an input that `NodeRewrite.needs_dtype` lists."""
        dtype = self.scope.dtype(node.inputs[index])
        if dtype is None:
            raise PassError(f"input {index} of {node.op_type} has no known dtype: needs_dtype must list it")
        return dtype


class NodeRewrite(Pass, Generic[M]):
    """A pass that rewrites nodes one by one, wherever they are, until nothing matches any more.

    `match` is called for a node only if it is one of ``operators``, no function of the model defines that operator, and
    all that the class needs is known. A match may absorb nodes of the same graph only, and only of ``absorbs``.

    Attributes:
        operators: the (domain, operator) pairs of the nodes that `match` is given.
        absorbs: those of the other nodes that a match may cover; None for the same ones.
        since_opset: the first opset of the standard operators that the replacement can be written in.
        needs_shape: the inputs whose static shape must be known, where they are given; or `EVERY_INPUT`.
        needs_dtype: the inputs whose dtype must be known, likewise.
        tensors_only: leave nodes alone that take or give sequences, optionals or sparse tensors.
        allows_references: also nodes in functions with attributes that the caller supplies.
    """

    declares: ClassVar[bool] = False
    operators: ClassVar[frozenset[tuple[str, str]]]
    absorbs: ClassVar[frozenset[tuple[str, str]] | None] = None
    since_opset: ClassVar[int] = 1
    needs_shape: ClassVar[Container[int]] = ()
    needs_dtype: ClassVar[Container[int]] = ()
    tensors_only: ClassVar[bool] = True
    allows_references: ClassVar[bool] = False

    @abstractmethod
    def match(self, node: ir.Node, context: NodeContext) -> M | Skip | None:
        """Whether the pass applies to ``node``, without changing anything.

        Returns:
            What was found; a Skip where it would apply but for a reason; None where there is nothing to do.
        """

    @abstractmethod
    def rewrite(self, match: M, edit: Edit) -> Sequence[ir.Value | None] | Skip:
        """Propose the replacement of the matched node.

        Returns:
            A value for each of its outputs, None where nothing uses it, which may be left out at the end; or a Skip,
            and the proposal is discarded. Values that are there already may be returned; those that ``edit`` makes take
            the names of the outputs.
        """

    def run(self, model: ir.Model, context: Context) -> Result:
        """Rewrite until nothing matches; the main graph first, then each function."""
        result = Result(model)
        for scope in scopes(model):
            name_nodes(scope)
            self._run_scope(scope, context, result)
        return result

    def find(self, node: ir.Node, context: NodeContext) -> M | Skip | None:
        """What `match` says of a node that fulfils the needs of the class.

        Raises:
            PassError: the match absorbs an operator that the class does not declare.
        """
        if (node.domain, node.op_type) not in self.operators or not self._is_plain(node, context.scope):
            return None
        if self.tensors_only and not all(map(_may_be_tensor, (*node.inputs, *node.outputs))):
            return None
        reason = self._unmet_need(node, context.scope)
        found = Skip(reason) if reason is not None else self.match(node, context)
        return self._checked_match(found, node, context.scope) if isinstance(found, Match) else found

    def propose(self, node: ir.Node, context: NodeContext) -> Proposal | Skip | None:
        """The replacement of ``node``, outside of the graph: to be committed or discarded."""
        found = self.find(node, context)
        if found is None or isinstance(found, Skip):
            return found
        edit = Edit(context.scope, found.node)
        outputs = self.rewrite(found, edit)
        checked = outputs if isinstance(outputs, Skip) else self._checked_outputs(found, outputs, edit)
        if isinstance(checked, Skip):
            Proposal(context.scope, found.node, (), edit.nodes).discard()
            return checked
        return Proposal(context.scope, found.node, checked, edit.nodes, edit.constants, found.absorbed)

    def _is_plain(self, node: ir.Node, scope: Scope) -> bool:
        return not is_redefined(node, scope) and (self.allows_references or not has_references(node))

    def _unmet_need(self, node: ir.Node, scope: Scope) -> str | None:
        """What the class needs and this node does not have."""
        if scope.opset() < self.since_opset:
            return f"it needs opset {self.since_opset}, and the model has {scope.opset()}: convert-opset comes first"
        for index, value in enumerate(node.inputs):
            if value is not None and index in self.needs_shape and scope.static_shape(value) is None:
                return UNKNOWN_SHAPE
            if value is not None and index in self.needs_dtype and scope.dtype(value) is None:
                return UNKNOWN_DTYPE
        return None

    def _checked_match(self, found: M, node: ir.Node, scope: Scope) -> M | Skip | None:
        declared = self.operators if self.absorbs is None else self.absorbs
        for each in (found.node, *found.absorbed):
            if each is node:
                continue
            if (each.domain, each.op_type) not in declared:
                operator = f"{each.domain}.{each.op_type}" if each.domain else each.op_type
                raise PassError(
                    f"it absorbs {each.name}, a node of {operator}, which it does not declare",
                    where=f"pass {self.name}",
                    hint="find nodes with context.producer, and list their operators in `absorbs`",
                )
            if not self._is_plain(each, scope):
                return None
            if each.graph is not node.graph and node.graph is not None:
                return Skip(f"{each.name} is in an outer graph")
        return found

    def _checked_outputs(
        self, found: M, outputs: Sequence[ir.Value | None], edit: Edit
    ) -> Sequence[ir.Value | None] | Skip:
        """A value for each output of the matched node; a Skip where one is missing or would be hidden by its name, or
        an operator is of a later opset.
        """
        node, scope = found.node, edit.scope
        unknown = _unknown_operator(edit.nodes, scope.opset())
        if unknown is not None:
            return Skip(f"it needs {unknown}, which opset {scope.opset()} does not have: convert-opset comes first")
        if len(outputs) > len(node.outputs):
            message = f"it returns {len(outputs)} values for {len(node.outputs)} outputs of {node.name}"
            raise PassError(message, where=f"pass {self.name}")
        outputs = [*outputs, *[None] * (len(node.outputs) - len(outputs))]
        made = {*edit.constants, *(value for each in edit.nodes for value in each.outputs)}
        for old, new in zip(node.outputs, outputs, strict=True):
            if new is None and old.name and (old.uses() or old.is_graph_output()):
                return Skip(f"its output {old.name} is used, and nothing replaces it")
            if new is not None and new not in made and not can_stand_for(new, old, node.graph, scope):
                return Skip(_HIDDEN)
        taken = {value for each in edit.nodes for value in each.inputs} - made - {None, *node.inputs}
        if not all(is_visible(value, node.graph, scope) for value in taken if value is not None):
            return Skip(_HIDDEN)
        return outputs

    def _run_scope(self, scope: Scope, context: Context, result: Result) -> None:
        node_context = NodeContext.within(scope, context)
        work = _Worklist(self.operators, scope.nodes())
        limit = 100 * len(work) + 100
        skips: dict[ir.Node, Skip] = {}
        while (node := work.take()) is not None:
            proposal = self.propose(node, node_context)
            skips.pop(node, None)
            if proposal is None:
                continue
            if isinstance(proposal, Skip):
                skips[node] = Skip(proposal.reason, proposal.node or node.name or "")
                continue
            if not context.budget.take():
                proposal.discard()
                break
            if (limit := limit - 1) < 0:
                message = "it does not terminate: it matches what it makes"
                raise PassError(message, where=f"pass {self.name}")
            before = [producer for value in node.inputs if value is not None and (producer := value.producer())]
            after = [use.node for value in node.outputs for use in value.uses()]
            result.rewrites.append(proposal.commit(self.name))
            work.add(proposal.nodes)
            work.add(before)
            for each in before:  # a value with one use left may match now
                work.add(use.node for value in each.outputs if len(uses := value.uses()) == 1 for use in uses)
            work.add(after)
        result.skips.extend(skips.values())


def _unknown_operator(nodes: Iterable[ir.Node], opset: int) -> str | None:
    """The first standard operator that an opset does not have."""
    for node in nodes:
        if not node.domain and not onnx.defs.has(node.op_type, opset, ""):
            return node.op_type
    return None


def _may_be_tensor(value: ir.Value | None) -> bool:
    return value is None or value.type is None or isinstance(value.type, ir.TensorType)


_HIDDEN = "a subgraph calls another value by the same name: unshadow-names comes first"


class _Worklist:
    """A queue of nodes to visit, in which each is at most once."""

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
        """The next node that is still in a graph; None if there is none."""
        while self._queue:
            node = self._queue.popleft()
            self._queued.discard(node)
            if node.graph is not None:
                return node
        return None
