"""Replace an If whose condition is constant by the branch that it takes.

    y = If(true){ then: a = Relu(x); y = Neg(a)   else: … }  →  a = Relu(x); y = Neg(a)

The nodes and initializers of the branch move into the graph of the If. They are renamed only if their name is taken
there; the outputs get the names of those of the If. In a function, which has no initializers, these become Constant
nodes. A value that the branch returns twice gets an Identity.

Skips: a condition of more than one element, and branches that are not valid ONNX.
"""

from __future__ import annotations

from collections import ChainMap, Counter, deque
from collections.abc import Mapping
from dataclasses import dataclass, field

import onnx_ir as ir

from passes.graphs import lineage
from passes.graphs.replacement import inherit, remove_nodes, replace_value
from passes.graphs.scopes import Scope, name_nodes, scopes
from passes.graphs.traversal import is_used, subgraphs
from passes.rewriting.base import Context, Pass, Result, Rewrite, Skip


class InlineConstantIf(Pass):
    """Replace an If whose condition is constant by the branch that it takes."""

    name = "inline-constant-if"

    def run(self, model: ir.Model, context: Context) -> Result:
        """Inline in the main graph and in each function."""
        result = Result(model)
        for scope in map(name_nodes, scopes(model)):
            inlined = inline_constant_ifs(scope, context, self.name)
            result.rewrites += inlined.rewrites
            result.skips += inlined.skips
        return result


def inline_constant_ifs(scope: Scope, context: Context, maker: str) -> Result:
    """Inline within one scope of named nodes, from the outside in: branches that are never taken are not processed."""
    result = Result(scope.model)
    if any((node.domain, node.op_type) == ("", "If") for node in scope.nodes()):
        _Inliner(maker, scope, context, result).visit(scope.graph, ChainMap())
    return result


@dataclass
class _Taken:
    """The branch that is taken, and the values that it returns: its own, or those of outer graphs."""

    branch: ir.Graph
    outputs: list[ir.Value]


@dataclass
class _Inliner:
    """Inlines within one scope.

    Attributes:
        taken: the number of values by name: those of different subgraphs may have the same name.
        nodes: the number of nodes by name.
        stopped: the budget is used up.
    """

    maker: str
    scope: Scope
    context: Context
    result: Result
    taken: Counter[str] = field(init=False)
    nodes: Counter[str] = field(init=False)
    stopped: bool = False

    def __post_init__(self) -> None:
        assert self.scope.names is not None  # collected while every node is in its graph
        self.taken, self.nodes = Counter(), Counter()
        for graph in self.scope.graphs():
            self._count(graph, 1)

    def visit(self, graph: ir.Graph, outer: ChainMap[str, ir.Value]) -> None:
        """Inline what can be inlined in a graph and in the subgraphs of what remains.

        Args:
            graph: rewritten in place.
            outer: the visible values of outer graphs, by name.
        """
        visible = outer.new_child()
        for value in (*graph.inputs, *graph.initializers.values()):
            visible[value.name or ""] = value
        pending = deque(graph)
        while pending and not self.stopped:
            node = pending.popleft()
            taken = self._match(node, visible)
            if isinstance(taken, Skip):
                self.result.skips.append(taken)
            elif taken is not None:
                if not self.context.budget.take():
                    self.stopped = True
                    return
                pending.extendleft(reversed(self._inline(node, graph, taken)))
                continue
            for inner in subgraphs(node):
                self.visit(inner, visible)
            visible.update((value.name, value) for value in node.outputs if value.name)

    def _match(self, node: ir.Node, visible: Mapping[str, ir.Value]) -> _Taken | Skip | None:
        """Return the branch that an If takes, and what it returns."""
        if (node.domain, node.op_type) != ("", "If") or node.op_identifier() in self.scope.model.functions:
            return None
        tensor = self.scope.constant(node.inputs[0]) if node.inputs else None
        if tensor is None:
            return None
        name = node.name or ""
        if tensor.size != 1 or tensor.dtype != ir.DataType.BOOL:
            return Skip(f"its condition is not a single boolean, but {tensor.dtype} of {tensor.size} elements", name)
        chosen = "then_branch" if tensor.numpy().item() else "else_branch"
        branch = node.attributes[chosen].as_graph() if chosen in node.attributes else None
        if branch is None or branch.inputs or len(branch.outputs) != len(node.outputs):
            return Skip(f"its {chosen} is not valid: it needs no inputs, and as many outputs as the If", name)
        outputs: list[ir.Value] = []
        for old, value in zip(node.outputs, branch.outputs, strict=True):
            if value.producer() is None and not value.is_initializer():  # the name of a value of an outer graph
                if value.name not in visible:
                    return Skip(f"its {chosen} returns {value.name}, which nothing computes", name)
                value = visible[str(value.name)]
            second = value.producer() is None or value.graph is not branch or value in outputs
            if old.is_graph_output() and second and not self.scope.has_identity(value):
                return Skip(f"opset {self.scope.opset()} has no Identity for the output {old.name}", name)
            outputs.append(value)
        return _Taken(branch, outputs)

    def _inline(self, node: ir.Node, graph: ir.Graph, taken: _Taken) -> list[ir.Node]:
        """Move a branch into ``graph``, replacing its If; returns the moved nodes."""
        branch, outputs = taken.branch, taken.outputs
        for inner in subgraphs(node):
            if inner is not branch:
                self._forget(inner)
        moved, constants = list(branch), list(branch.initializers.values())
        branch.outputs.clear()
        branch.initializers.clear()
        branch.remove(moved)
        fresh = {value for moved_node in moved for value in moved_node.outputs}
        for moved_node in moved:
            self._rename_node(moved_node)
            for value in moved_node.outputs:
                self._rename(value)
        made = [constant for value in constants for constant in self._move_constant(value, graph, outputs)]
        graph.insert_before(node, [*made, *moved])
        for old, new in zip(node.outputs, outputs, strict=True):
            if not is_used(old):
                continue
            if new not in fresh and old.is_graph_output():
                identity = ir.Node("", "Identity", [new], name=self.scope.names.node(f"{node.name}/Identity"))
                self.nodes[identity.name or ""] += 1
                graph.insert_before(node, identity)
                made.append(identity)
                new = identity.outputs[0]
                fresh.add(new)
            if new in fresh:
                fresh.discard(new)
                self.taken[new.name or ""] -= 1
                new.name = old.name
                inherit(new, old)
            replace_value(old, new)
        remove_nodes(graph, [node])
        lineage.stamp(made, self.maker, [node])
        after = tuple(new_node.name or "" for new_node in (*moved, *made))
        self.result.rewrites.append(Rewrite((node.name or "",), after))
        return moved

    def _move_constant(self, value: ir.Value, graph: ir.Graph, outputs: list[ir.Value]) -> list[ir.Node]:
        """Move an initializer; in a function, it becomes a Constant node."""
        self._rename(value)
        if self.scope.function is None or graph is not self.scope.graph:
            graph.initializers.add(value)
            if self.scope.model.ir_version < 4 and graph is self.scope.graph:
                graph.inputs.append(value)
            return []
        assert value.const_value is not None
        made = ir.Value(name=value.name, type=value.type, shape=value.shape)
        value.replace_all_uses_with(made)
        outputs[:] = [made if output is value else output for output in outputs]
        attribute = ir.AttrTensor("value", value.const_value)
        name = self.scope.names.node(value.name or "Constant")
        self.nodes[name] += 1
        return [ir.Node("", "Constant", [], [attribute], outputs=[made], name=name)]

    def _rename(self, value: ir.Value) -> None:
        """Rename a moved value if another value has the same name."""
        name = value.name or ""
        if name and self.taken[name] > 1:
            self.taken[name] -= 1
            value.name = self.scope.names.value(name)
            self.taken[value.name] += 1

    def _rename_node(self, node: ir.Node) -> None:
        name = node.name or ""
        if self.nodes[name] > 1:
            lineage.stamp([node], self.maker, [node])
            self.nodes[name] -= 1
            node.name = self.scope.names.node(name)
            self.nodes[node.name] += 1

    def _forget(self, graph: ir.Graph) -> None:
        """Free the names of a branch that is removed."""
        self._count(graph, -1)
        for node in graph:
            for inner in subgraphs(node):
                self._forget(inner)

    def _count(self, graph: ir.Graph, by: int) -> None:
        values = {*graph.inputs, *graph.initializers.values()}
        for node in graph:
            self.nodes[node.name or ""] += by
            values.update(node.outputs)
        for value in values:
            self.taken[value.name or ""] += by
