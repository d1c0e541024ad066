"""The engine of passes that fold constants: it finds islands of nodes that depend on constants only, computes those of
their outputs that the rest of the graph uses, and replaces them by the results.

The pass decides for each node with constant inputs whether it may be folded.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

import onnx_ir as ir

from passes.evaluation.constant_session import EvaluationError
from passes.evaluation.evaluation import evaluate
from passes.graphs import lineage
from passes.graphs.replacement import remove_nodes, replace_value
from passes.graphs.scopes import Scope
from passes.graphs.tensors import constant_of
from passes.graphs.traversal import is_used, operands_of, subgraphs, with_nested
from passes.rewriting.base import Context, Result, Rewrite, Skip
from passes.shapes.shape_values import Elements, Known

Refusal = str
"""The reason why a node is not folded; empty if that needs no report."""

_BATCH = 4096
"""The most results of one session: the time to create it grows faster than their number."""
_MAX_FAILURES = 64
"""The number of nodes that ONNX Runtime cannot compute after which a scope is given up."""


@dataclass
class _Plan:
    """The values that can be computed at present.

    Attributes:
        constants: the values that are constant already, or known without computing.
        island: the nodes to run, in topological order.
        inside: these, the nodes in their subgraphs, and those whose outputs are known without computing.
        known: the outputs that are known without computing.
        order: the index of every node, except those within subgraphs of islands.
    """

    constants: dict[ir.Value, ir.TensorProtocol] = field(default_factory=dict)
    island: dict[ir.Node, None] = field(default_factory=dict)
    inside: set[ir.Node] = field(default_factory=set)
    known: dict[ir.Value, None] = field(default_factory=dict)
    order: dict[ir.Node, int] = field(default_factory=dict)

    def targets(self) -> list[ir.Value]:
        """Return the values that the rest of the graph uses."""
        computed = [*self.known, *(value for node in self.island for value in node.outputs)]
        return [
            value
            for value in computed
            if value.is_graph_output() or any(use.node not in self.inside for use in value.uses())
        ]

    def cone(self, targets: Iterable[ir.Value]) -> list[ir.Node]:
        """Return the nodes that targets need, in topological order."""
        needed: set[ir.Node] = set()
        pending = list(targets)
        while pending:
            value = pending.pop()
            node = value.producer()
            if value not in self.constants and node is not None and node not in needed:
                needed.add(node)
                pending.extend(operands_of(node))
        return [node for node in self.island if node in needed] if needed else []


@dataclass
class _Folded:
    """One value that was folded.

    Attributes:
        value: the value that was replaced.
        constant: its replacement.
        new_nodes: the new nodes, if an initializer alone is not enough.
    """

    value: ir.Value
    constant: ir.Value
    node: ir.Node
    new_nodes: list[ir.Node]
    removed: list[str] = field(default_factory=list)

    def rewrite(self) -> Rewrite:
        """Return the record; a node of several outputs is removed with the first of them."""
        before = self.removed or [self.node.name or ""]
        return Rewrite(
            tuple(before), tuple(node.name or "" for node in self.new_nodes), f"{self.value.name} is constant"
        )


class Folder:
    """Folds the constants of one scope, step by step.

    Args:
        scope: the main graph or a function.
        context: for the budget.
        result: where rewrites and skips are recorded.
        accept: why a node with constant operands must not be folded, None if it may; also called for the nodes of its
            subgraphs.
        max_bytes: the largest constant that may be made without freeing as many bytes.
        shapes: whether to fold what shapes imply.
    """

    def __init__(
        self,
        scope: Scope,
        context: Context,
        result: Result,
        *,
        name: str,
        accept: Callable[[ir.Node, Scope], Refusal | None],
        max_bytes: int,
        shapes: bool = False,
    ) -> None:
        self.scope, self.context, self.result = scope, context, result
        self.name, self.accept, self.max_bytes, self.shapes = name, accept, max_bytes, shapes
        self._refused: dict[ir.Node, Refusal] = {}
        self._too_large: set[ir.Node] = set()
        self._unsupported: dict[tuple[object, ...], Refusal] = {}
        self._failures = 0
        self._lists: dict[ir.Value, Known | None] = {}  # of constants

    def fold(self) -> list[ir.Value]:
        """Fold all that can be folded at present; return the new constants."""
        for node in self._too_large:  # sizes and other uses of the weights may have changed
            del self._refused[node]
        self._too_large.clear()
        while True:
            refused = len(self._refused)
            plan = self._plan()
            targets = plan.targets()
            if [value for value in targets if self._would_grow(value, _bytes(value, self.scope) or 0, plan)]:
                continue  # each of them is refused now
            folded = self._fold(plan, targets)
            if folded or len(self._refused) == refused:  # else the inputs of newly refused nodes may still be folded
                return folded

    def _fold(self, plan: _Plan, targets: Sequence[ir.Value]) -> list[ir.Value]:
        done: list[_Folded] = []
        for value, tensor in self._evaluate(plan, targets):
            node = value.producer()
            if node is not None and (problem := self.scope.constant_problem(tensor.dtype)):
                self._refused[node] = problem
            elif not self._would_grow(value, tensor.nbytes, plan):
                if not self.context.budget.take():
                    break
                done.append(self._commit(value, tensor))
        self._remove_unused(plan, done)
        self.result.rewrites += [folded.rewrite() for folded in done]
        return [folded.constant for folded in done]

    def report(self) -> None:
        """Record why nodes with constant inputs were not folded."""
        for node, reason in self._refused.items():
            if reason and node.graph is not None:
                self.result.skips.append(Skip(reason, node.name or ""))
        if self._failures >= _MAX_FAILURES:
            self.result.skips.append(
                Skip(f"ONNX Runtime could not compute {_MAX_FAILURES} nodes, so no more were tried")
            )

    # planning

    def _plan(self) -> _Plan:
        plan = _Plan()
        self._walk(self.scope.graph, plan, Elements(self.scope, self._lists))
        return plan

    def _walk(self, graph: ir.Graph, plan: _Plan, elements: Elements) -> None:
        for node in graph:
            plan.order[node] = len(plan.order)
            if not self._absorb(node, plan, elements):
                for subgraph in subgraphs(node):
                    self._walk(subgraph, plan, elements)

    def _absorb(self, node: ir.Node, plan: _Plan, elements: Elements) -> bool:
        """Add a node to the plan, if it is constant."""
        if node.op_type == "Constant" and node.domain == "":
            tensor = constant_of(node)
            if tensor is not None:
                plan.constants[node.outputs[0]] = tensor
            return True
        if node.op_type == "Identity" and node.domain == "":  # an alias, whose evaluation would copy a weight
            tensor = self._tensor(node.inputs[0], plan)
            if tensor is not None:
                plan.constants[node.outputs[0]] = tensor
                plan.inside.add(node)
            elements.follow(node)
            return True
        if self.shapes:
            known = elements.follow(node)
            tensor = known.tensor() if known is not None else None
            if tensor is not None and self.scope.constant_problem(tensor.dtype) is None:
                plan.constants[node.outputs[0]] = tensor
                plan.known[node.outputs[0]] = None
                plan.inside.add(node)
                return True
        if not self._is_foldable(node, plan):
            return False
        plan.island[node] = None
        plan.inside.add(node)
        for subgraph in subgraphs(node):
            plan.inside.update(subgraph.all_nodes())
        return True

    def _is_foldable(self, node: ir.Node, plan: _Plan) -> bool:
        operands = list(operands_of(node))
        if not all(value.producer() in plan.island or self._tensor(value, plan) is not None for value in operands):
            return False
        if node not in self._refused:
            refusal = self._refusal(node, operands, plan)
            if refusal is not None:
                self._refused[node] = refusal
        if node in self._refused:
            return False
        if any(_bytes(value, self.scope) is None for value in node.outputs):
            # its size is known once its operands are, or only by computing it
            return all(self._tensor(value, plan) is not None for value in operands)
        return True

    def _refusal(self, node: ir.Node, operands: Sequence[ir.Value], plan: _Plan) -> Refusal | None:
        for inner in with_nested([node]):
            if inner.op_identifier() in self.scope.model.functions or any(
                map(ir.Attr.is_ref, inner.attributes.values())
            ):
                return ""  # attributes that the caller supplies are not constant
            refusal = self.accept(inner, self.scope)
            if refusal is not None:
                return refusal
            if self._unsupported and self._signature(inner) in self._unsupported:
                return self._unsupported[self._signature(inner)]
        size = sum(_bytes(value, self.scope) or 0 for value in node.outputs)
        if size > self.max_bytes:
            tensors = [self._tensor(value, plan) for value in operands]
            given = sum(
                tensor.nbytes if tensor is not None else _bytes(value, self.scope) or 0
                for value, tensor in zip(operands, tensors, strict=True)
            )
            if size > given:
                self._too_large.add(node)
                return _too_large(size)
        return None

    def _tensor(self, value: ir.Value | None, plan: _Plan) -> ir.TensorProtocol | None:
        """Return the tensor of a value that is constant already, which is cached for the cones."""
        if value is None or value in plan.constants:
            return plan.constants.get(value) if value is not None else None
        tensor = self.scope.constant(value)
        if tensor is not None:
            plan.constants[value] = tensor
        return tensor

    def _would_grow(self, value: ir.Value, size: int, plan: _Plan) -> bool:
        """Refuse a result that is larger than allowed and than the weights that it frees."""
        node = value.producer()
        if size <= self.max_bytes or node is None:
            return False
        cone = set(plan.cone([value]))
        operands = {operand for inner in cone for operand in operands_of(inner)}
        freed = sum(
            tensor.nbytes
            for operand in operands
            if (tensor := self.scope.constant(operand)) is not None and all(use.node in cone for use in operand.uses())
        )
        if size <= freed:
            return False
        self._refused[node] = _too_large(size)
        self._too_large.add(node)
        return True

    # computing

    def _evaluate(self, plan: _Plan, targets: Sequence[ir.Value]) -> list[tuple[ir.Value, ir.TensorProtocol]]:
        evaluated = [(value, plan.constants[value]) for value in targets if value in plan.constants]
        rest = [value for value in targets if value not in plan.constants]
        pending = [rest[start : start + _BATCH] for start in range(0, len(rest), _BATCH)]
        while pending:
            batch = pending.pop()
            if not batch or self._failures >= _MAX_FAILURES:
                continue
            try:
                tensors = self._run(plan, plan.cone(batch), batch)
                evaluated.extend(zip(batch, tensors, strict=True))
            except EvaluationError as error:
                half = len(batch) // 2
                if half:
                    pending += [batch[half:], batch[:half]]
                else:
                    self._refuse_failing(plan, batch, error)
        return evaluated

    def _run(self, plan: _Plan, nodes: Sequence[ir.Node], targets: Sequence[ir.Value]) -> list[ir.TensorProtocol]:
        operands = {value: None for node in nodes for value in operands_of(node)}
        constants = {value: plan.constants[value] for value in operands if value in plan.constants}
        return evaluate(nodes, constants, targets, self.scope)

    def _refuse_failing(self, plan: _Plan, target: Sequence[ir.Value], error: EvaluationError) -> None:
        """Find the first node of a target's cone that cannot be computed, by bisection, and refuse it."""
        nodes = plan.cone(target)
        good, bad = 0, len(nodes)
        while bad - good > 1:
            middle = (good + bad) // 2
            try:
                self._run(plan, nodes[:middle], [value for value in nodes[middle - 1].outputs if value.name])
                good = middle
            except EvaluationError as earlier:
                bad, error = middle, earlier
        node = nodes[bad - 1]
        self._failures += 1
        self._refused[node] = f"ONNX Runtime could not compute it: {error}"
        if error.unsupported:
            self._unsupported[self._signature(node)] = self._refused[node]

    def _signature(self, node: ir.Node) -> tuple[object, ...]:
        return (node.domain, node.op_type, *(value.dtype if value is not None else None for value in node.inputs))

    # rewriting

    def _commit(self, value: ir.Value, tensor: ir.TensorProtocol) -> _Folded:
        node = value.producer()
        assert node is not None
        graph = node.graph
        assert graph is not None
        new_nodes: list[ir.Node] = []
        if self.scope.function is not None:
            attribute, name = ir.AttrTensor("value", tensor), self.scope.names.node(f"{node.name}/Constant")
            new_nodes.append(ir.Node("", "Constant", [], [attribute], name=name))
            new = new_nodes[0].outputs[0]
        elif value.is_graph_output():  # an initializer cannot be an output under its own name
            constant = self.scope.new_constant(graph, tensor, self.scope.names.value(f"{value.name}/value"))
            new_nodes.append(ir.Node("", "Identity", [constant], name=self.scope.names.node(f"{node.name}/Identity")))
            new = new_nodes[0].outputs[0]
        else:
            new = self.scope.new_constant(graph, tensor, str(value.name))
        graph.insert_before(node, new_nodes)
        if new_nodes:
            new.name, new.type = value.name, ir.TensorType(tensor.dtype)
            new.shape = ir.Shape(tensor.shape.numpy())
        replace_value(value, new)
        lineage.stamp(new_nodes, self.name, [node])
        return _Folded(value, new, node, new_nodes)

    def _remove_unused(self, plan: _Plan, done: Sequence[_Folded]) -> None:
        """Remove nodes that only folded values needed, in reverse topological order, so that each is visited once."""
        owners: dict[ir.Node, _Folded] = {}
        for folded in done:
            owners.setdefault(folded.node, folded)
        pending = [(-plan.order[node], node.name, node) for node in owners]
        heapq.heapify(pending)
        operands: dict[ir.Value, None] = {}
        while pending:
            *_, node = heapq.heappop(pending)
            graph = node.graph
            if graph is None or any(map(is_used, node.outputs)):
                continue
            used = operands_of(node)
            remove_nodes(graph, [node])
            owners[node].removed.append(node.name or "")
            operands.update(dict.fromkeys(used))
            for value in used:
                producer = value.producer()
                if producer in plan.order and producer not in owners:
                    owners[producer] = owners[node]
                    heapq.heappush(pending, (-plan.order[producer], producer.name, producer))
        for value in operands:
            self.scope.drop_constant(value)
        for folded in done:
            if folded.node.graph is not None:  # for another output that only nodes without effect use
                folded.value.name = self.scope.names.value(str(folded.value.name))


def _bytes(value: ir.Value, scope: Scope) -> int | None:
    """Return the size of a value in bytes; None if its shape or dtype is unknown."""
    if not value.name:
        return 0
    shape, dtype = scope.shape(value), scope.dtype(value)
    if shape is None or dtype is None or not shape.is_static() or dtype == ir.DataType.STRING:
        return None
    size = 1
    for dim in shape.numpy():
        size *= dim
    return (size * dtype.bitwidth + 7) // 8


def _too_large(size: int) -> Refusal:
    return f"the result would become a constant of {size / 2**20:.1f} MiB, larger than max-bytes and than what it frees"
