"""Rules, and their driver: a rule is a function of one node; the driver walks, checks, budgets and commits.

    @rewrite("Clip", needs_dtype=(0,))
    def decompose_clip(node: ir.Node, edit: Edit) -> Replacement:
        ...

What every rule must respect is checked here and not by its author: operators are compared with their domain, a function
of the model may define an operator of a standard name, values may be sequences, and an outer graph may have a value of
the same name. What a rule needs to know of its operands is an argument of the decorator.
"""

from __future__ import annotations

import sys
from abc import abstractmethod
from collections import deque
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import ClassVar

import onnx
import onnx_ir as ir

from passes.core.errors import PassError
from passes.core.schemas import has_dtype
from passes.graphs.matching import has_references, is_redefined
from passes.graphs.replacement import can_stand_for, detach_nodes, is_visible
from passes.graphs.scopes import Scope, name_nodes, nodes_of, scopes
from passes.graphs.traversal import is_used
from passes.rewriting.base import Context, Exactness, NotApplicable, OpsetTooOld, Pass, Result, Skip
from passes.rewriting.edit import Edit, Proposal
from passes.rewriting.old_signatures import LOWEST
from passes.shapes.inference import infer
from passes.shapes.validity import check_nodes

EVERY_INPUT = range(sys.maxsize)
"""For `NodeRewrite.needs_shape` and `NodeRewrite.needs_dtype`: all inputs of the node."""
UNKNOWN_SHAPE = "the shape of its input is unknown: freeze the dimensions that are open"
UNKNOWN_DTYPE = "the dtype of its input is unknown"


Replacement = ir.Value | Sequence[ir.Value | None] | Skip | None
"""The result of a rule: a value for the only output of its node; a list with one for each output of the operator, None
for an output that nothing uses, which may be left out at the end; a Skip if the rule would apply but for a reason; None
if there is nothing to do. After a Skip or None, what the rule built is discarded. What a rule asks may raise
`NotApplicable`, which is the same as returning a Skip."""


class NodeRewrite(Pass):
    """A pass that rewrites nodes one by one, wherever they are, until nothing matches any more.

    `replacement` is called for a node only if it is one of ``operators``, no function of the model defines that
    operator, and all that the class needs is known. It may absorb nodes of the same graph only, and only of
    ``absorbs``. The decorator `rewrite` makes such a pass of a function; a pass with options is a class.

    Attributes:
        operators: the (domain, operator) pairs of the nodes that `replacement` is given.
        absorbs: the operators of other nodes that a replacement may cover; None means ``operators``.
        since_opset: the first opset of the standard operators that the replacement can be written in.
        needs_shape: the inputs whose static shape must be known, if they are given; or `EVERY_INPUT`.
        needs_dtype: the inputs whose dtype must be known, if they are given; or `EVERY_INPUT`.
        tensors_only: leave nodes alone that take or give sequences, optionals or sparse tensors.
        allows_references: also nodes in functions with attributes that the caller supplies.
        inferred_for: if the model has one of these operators, types and shapes are inferred before the first match.
        repeats: whether to infer and to match again until nothing does: ONNX does not infer some operators, so that
            each round makes more shapes known.
    """

    declares: ClassVar[bool] = False
    operators: ClassVar[frozenset[tuple[str, str]]]
    absorbs: ClassVar[frozenset[tuple[str, str]] | None] = None
    since_opset: ClassVar[int] = LOWEST
    needs_shape: ClassVar[Container[int]] = ()
    needs_dtype: ClassVar[Container[int]] = ()
    tensors_only: ClassVar[bool] = True
    allows_references: ClassVar[bool] = False
    inferred_for: ClassVar[frozenset[tuple[str, str]]] = frozenset()
    repeats: ClassVar[bool] = False

    @abstractmethod
    def replacement(self, node: ir.Node, edit: Edit) -> Replacement:
        """Match ``node``, and build its replacement with ``edit``; see `Replacement`.

        Values that are there already may be returned; those that ``edit`` makes take the names of the outputs.
        """

    def run(self, model: ir.Model, context: Context) -> Result:
        """Rewrite until nothing matches; the main graph first, then each function."""
        result = Result(model)
        before = -1
        while before < len(result.rewrites) and (self.repeats or before < 0):
            before = len(result.rewrites)
            needed = self.inferred_for
            if needed and any((node.domain, node.op_type) in needed for node in nodes_of(model)):
                infer(model)
            result.skips.clear()
            for scope in map(name_nodes, scopes(model)):
                self._run_scope(scope, context, result)
        return result

    def propose(self, node: ir.Node, scope: Scope) -> Proposal | Skip | None:
        """Return the replacement of ``node``, outside of the graph: to be committed or discarded.

        Raises:
            PassError: the replacement absorbs an operator that the class does not declare.
            InputError: the rewrite fails on a node that is invalid.
        """
        if (node.domain, node.op_type) not in self.operators or not self._is_plain(node, scope):
            return None
        if self.tensors_only and not all(map(_may_be_tensor, (*node.inputs, *node.outputs))):
            return None
        edit = Edit(scope, node)
        proposal: Proposal | Skip | None = None
        try:
            self._check_needs(node, scope)
            proposal = self._proposal(node, edit)
        except NotApplicable as error:
            proposal = Skip(str(error), opset=error.since)
        except (ArithmeticError, LookupError, ValueError) as error:  # of numbers that no valid node has, or a defect
            if node.graph is scope.graph:
                check_nodes([node], scope, sized=True)
            proposal = Skip(f"the rewrite fails: {type(error).__name__}: {error}", is_defect=True)
        finally:
            if not isinstance(proposal, Proposal):
                detach_nodes(edit.nodes)
        return proposal

    def _proposal(self, node: ir.Node, edit: Edit) -> Proposal | Skip | None:
        replacement = self.replacement(node, edit)
        if replacement is None or isinstance(replacement, Skip):
            return replacement
        for other in (edit.root, *edit.absorbed):
            if other is node:
                continue
            self._check_is_declared(other)
            if not self._is_plain(other, edit.scope):
                return None
            if other.graph is not node.graph and node.graph is not None:
                return Skip(f"{other.name} is in an outer graph")
        outputs = self._checked_outputs([replacement] if isinstance(replacement, ir.Value) else replacement, edit)
        if isinstance(outputs, Skip):
            return outputs
        return Proposal(edit.scope, edit.root, outputs, edit.nodes, edit.constants, edit.absorbed)

    def _is_plain(self, node: ir.Node, scope: Scope) -> bool:
        return not is_redefined(node, scope) and (self.allows_references or not has_references(node))

    def _check_needs(self, node: ir.Node, scope: Scope) -> None:
        """Raise NotApplicable if the class needs what this node does not have."""
        if scope.opset() < self.since_opset:
            raise OpsetTooOld("the rewrite", self.since_opset, scope.opset())
        for index, value in enumerate(node.inputs):
            if value is not None and index in self.needs_shape and scope.static_shape(value) is None:
                raise NotApplicable(UNKNOWN_SHAPE)
            if value is not None and index in self.needs_dtype and scope.dtype(value) is None:
                raise NotApplicable(UNKNOWN_DTYPE)

    def _check_is_declared(self, node: ir.Node) -> None:
        declared = self.operators if self.absorbs is None else self.absorbs
        if (node.domain, node.op_type) not in declared:
            operator = f"{node.domain}.{node.op_type}" if node.domain else node.op_type
            raise PassError(
                f"it absorbs {node.name}, a node of {operator}, which it does not declare",
                where=f"pass {self.name}",
                hint="find nodes with edit.producer, and list their operators in `absorbs`",
            )

    def _checked_outputs(self, outputs: Sequence[ir.Value | None], edit: Edit) -> Sequence[ir.Value | None] | Skip:
        """Return a value for each output; a Skip if one is missing or hidden.

        Raises:
            OpsetTooOld: an operator is of a later opset.
        """
        node, scope = edit.root, edit.scope
        _check_operators(edit.nodes, outputs, scope.opset())
        outputs = [*outputs, *[None] * len(node.outputs)][: len(node.outputs)]
        computed = {*edit.constants, *(value for node in edit.nodes for value in node.outputs)}
        for old, new in zip(node.outputs, outputs, strict=True):
            if new is None and old.name and is_used(old):
                return Skip(f"the output {old.name} is used, and nothing replaces it")
            if new is not None and new not in computed and not can_stand_for(new, old, node.graph, scope):
                return Skip(_HIDDEN)
        taken = {value for node in edit.nodes for value in node.inputs} - computed - {None, *node.inputs}
        if not all(is_visible(value, node.graph, scope) for value in taken if value is not None):
            return Skip(_HIDDEN)
        return outputs

    def _run_scope(self, scope: Scope, context: Context, result: Result) -> None:
        work = _Worklist(self.operators, scope.nodes())
        limit = 100 * len(work) + 100
        skips: dict[ir.Node, Skip] = {}
        while (node := work.take()) is not None:
            proposal = self.propose(node, scope)
            skips.pop(node, None)
            if proposal is None:
                continue
            if isinstance(proposal, Skip):
                skips[node] = replace(proposal, node=proposal.node or node.name or "")
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
            for neighbour in before:  # a value with one use left may match now
                work.add(use.node for value in neighbour.outputs if len(uses := value.uses()) == 1 for use in uses)
            work.add(after)
        result.skips.extend(skip for node, skip in skips.items() if node.graph is not None)


Rule = Callable[[ir.Node, Edit], Replacement]
Operator = str | tuple[str, str]


def rewrite(  # noqa: PLR0913
    *operators: Operator,
    exactness: Exactness = Exactness.BITWISE,
    absorbs: Iterable[Operator] | None = None,
    since_opset: int = LOWEST,
    needs_shape: Container[int] = (),
    needs_dtype: Container[int] = (),
    tensors_only: bool = True,
    allows_references: bool = False,
    inferred_for: Iterable[Operator] = (),
    repeats: bool = False,
) -> Callable[[Rule], NodeRewrite]:
    """Make a pass of a function, which is given a node and its `Edit`, and returns the replacement of the node.

    The name of the pass is that of the function in kebab case, and the first line of its docstring says what it does.

    Args:
        operators: the operators of the nodes; those of other domains than the standard's as ``com.microsoft.Gelu``, or
            as the pair of domain and operator. All others are attributes of `NodeRewrite`.
    """
    members = {
        "exactness": exactness,
        "operators": frozenset(map(_domain_and_type, operators)),
        "absorbs": None if absorbs is None else frozenset(map(_domain_and_type, absorbs)),
        "since_opset": since_opset,
        "needs_shape": needs_shape,
        "needs_dtype": needs_dtype,
        "tensors_only": tensors_only,
        "allows_references": allows_references,
        "inferred_for": frozenset(map(_domain_and_type, inferred_for)),
        "repeats": repeats,
    }

    def as_pass(function: Rule) -> NodeRewrite:
        own = {
            "name": function.__name__.replace("_", "-"),
            "replacement": staticmethod(function),
            "__doc__": function.__doc__,
            "__module__": function.__module__,
        }
        cls: type[NodeRewrite] = type(function.__name__, (NodeRewrite,), members | own)
        return cls()

    return as_pass


def _domain_and_type(operator: Operator) -> tuple[str, str]:
    if isinstance(operator, tuple):
        return operator
    domain, _, op_type = operator.rpartition(".")
    return domain, op_type


def _check_operators(nodes: Iterable[ir.Node], results: Sequence[ir.Value | None], opset: int) -> None:
    """Raise OpsetTooOld if nodes need a standard operator, perhaps of a dtype, that an opset does not have."""
    later = range(opset + 1, onnx.defs.onnx_opset_version() + 1)
    for node in nodes:
        if node.domain or not any(value.uses() or value in results for value in node.outputs):
            continue
        kind = node.op_type
        if not onnx.defs.has(kind, opset, ""):
            raise _unknown(kind, opset, (version for version in later if onnx.defs.has(kind, version, "")))
        for values, is_output in ((node.inputs, False), (node.outputs, True)):
            for index, value in enumerate(values):
                dtype = None if value is None or not isinstance(value.type, ir.TensorType) else value.dtype
                if dtype and not has_dtype(kind, opset, index, dtype.value, is_output=is_output):
                    known = (v for v in later if has_dtype(kind, v, index, dtype.value, is_output=is_output))
                    raise _unknown(f"{kind} of {dtype.name.lower()}", opset, known)


def _unknown(what: str, opset: int, known: Iterator[int]) -> NotApplicable:
    """Return the error of what a rewrite needs, and an opset does not have; those that have it are ``known``."""
    since = next(known, None)
    return (
        NotApplicable(f"no opset has {what}") if since is None else OpsetTooOld(f"the rewrite's {what}", since, opset)
    )


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
        """Return the next node that is still in a graph; None if there is none."""
        while self._queue:
            node = self._queue.popleft()
            self._queued.discard(node)
            if node.graph is not None:
                return node
        return None
