"""Unroll loops whose number of turns is known, and mask those of which only the most turns are.

    y, s = Loop(3, true, x){ (i, c, v) → (c, f(v, i), g(v)) }
        →  v1 = f(x, 0); v2 = f(v1, 1); y = f(v2, 2); s = Concat(g(x), g(v1), g(v2)), each with a new first axis

    y = Loop(3, c, x){ (i, c, v) → (h(v), f(v)) }          where h(v) is known only when it runs
        →  v1 = Where(c, f(x), x);  c1 = c ∧ h(x);  v2 = Where(c1, f(v1), v1);  …

The number of turns is known where the trip count and the condition are constant, and where the condition becomes false
at a turn that constants decide. What a turn's number implies is computed on the way. The scan outputs of a masked loop
would have a length that is not known; so would what it carries, if its shape changed.

Skips: trip counts and conditions that are not constant (unroll-loop), more nodes than ``max-nodes``, more turns than
``max-turns`` and bodies that must not run in vain (mask-loop), and scan outputs of no turns whose shape is unknown.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir

from passes.build.subgraph_copies import (
    Body,
    empty_stack,
    scalar,
    select,
    speculation_hazard,
    stack,
    unsupported_reason,
)
from passes.core.base import Skip
from passes.core.edit import Edit
from passes.core.graphs import Scope
from passes.core.matching import is_plain
from passes.core.rewrite import Match, NodeContext, NodeRewrite


@dataclass(frozen=True)
class _Loop(Match):
    """A Loop.

    Attributes:
        body: its subgraph, whose inputs are the turn's number, the condition, and what is carried.
        limit: the most turns; None where only the condition ends it.
        begins: whether there is a first turn; None where that is known only when it runs.
    """

    body: ir.Graph
    limit: int | None
    begins: bool | None

    @property
    def initial(self) -> list[ir.Value]:
        """What the first turn takes."""
        values = [value for value in self.node.inputs[2:] if value is not None]
        return values

    def arguments(self, body: Body, turn: int, carried: Sequence[ir.Value]) -> list[ir.Value]:
        """The inputs of a turn. Its number and condition have the rank that the subgraph declares, which may be 1."""
        number, condition = (
            np.full([1] if value.shape is not None and len(value.shape) == 1 else [], content)
            for value, content in zip(self.body.inputs, (np.int64(turn), np.True_), strict=False)
        )
        return [body.constant(number), body.constant(condition), *carried]


def _read(node: ir.Node, scope: Scope) -> _Loop | Skip | None:
    if not is_plain(node, scope) or "body" not in node.attributes:
        return None
    graph = node.attributes["body"].as_graph()
    carried = len(node.inputs) - 2
    if carried < 0 or None in node.inputs[2:]:
        return Skip("it is not valid: what it carries needs a first value")
    problem = unsupported_reason(graph, 2 + carried, 1 + len(node.outputs))
    if problem is not None:
        return Skip(problem)
    count, condition = (scope.constant(value) for value in node.inputs[:2])
    if node.inputs[0] is not None and (count is None or count.size != 1):
        return Skip("its trip count is not constant: freeze it with --freeze NAME=VALUE")
    limit = max(int(count.numpy().item()), 0) if count is not None else None
    begins = True if node.inputs[1] is None else None
    if condition is not None and condition.size == 1:
        begins = bool(condition.numpy().item())
    return _Loop(node, graph, limit, begins)


def _is_steady(graph: ir.Graph) -> bool:
    """Whether the condition is handed on as it is, so that only the trip count ends the loop."""
    value: ir.Value | None = graph.outputs[0]
    while value is not None and (node := value.producer()) is not None and node.op_type == "Identity":
        value = node.inputs[0]
    return value is graph.inputs[1]


@dataclass(frozen=True)
class UnrollLoop(NodeRewrite[_Loop]):
    """Unroll a Loop whose number of turns is known.

    Attributes:
        max_nodes: how many nodes it may become.
    """

    name = "unroll-loop"
    operators = frozenset({("", "Loop")})
    tensors_only = False
    max_nodes: int = 4096

    def match(self, node: ir.Node, context: NodeContext) -> _Loop | Skip | None:
        """Read the trip count and whether it begins."""
        found = _read(node, context.scope)
        if isinstance(found, _Loop) and found.begins is None and found.limit != 0:
            return Skip("whether it makes a first turn is known only when it runs: its condition is not constant")
        return found

    def rewrite(self, match: _Loop, edit: Edit) -> Sequence[ir.Value | None] | Skip:
        """One copy of the body after the other, until it ends."""
        body, steady = Body(match.body, edit), _is_steady(match.body)
        if match.begins and match.limit is None and steady:
            return Skip("it never ends")
        carried = match.initial
        scanned: list[list[ir.Value]] = [[] for _ in range(len(match.node.outputs) - len(carried))]
        turn = 0
        while match.begins and turn != match.limit:
            expected = len(edit.nodes) * (match.limit or 1) if turn == 1 and steady else len(edit.nodes)
            if max(expected, turn) >= self.max_nodes:
                return Skip(f"it would become more than {self.max_nodes} nodes")
            condition, *results = body.copy(match.arguments(body, turn, carried), str(turn))
            carried, new = results[: len(carried)], results[len(carried) :]
            for values, value in zip(scanned, new, strict=True):
                values.append(value)
            turn += 1
            goes_on = body.known(condition)
            if goes_on is None and turn != match.limit:
                return Skip("whether it goes on is known only when it runs: its condition is not constant")
            if goes_on is not None and not goes_on.numpy().item():
                break
        outputs: list[ir.Value | None] = [*carried]
        elements = match.body.outputs[1 + len(carried) :]
        for old, values, element in zip(match.node.outputs[len(carried) :], scanned, elements, strict=True):
            if not (old.uses() or old.is_graph_output()):
                outputs.append(None)
                continue
            whole = stack(body, values) if values else empty_stack(body, element)
            if whole is None:
                return Skip(f"it makes no turn, and the shape of {element.name} is unknown")
            outputs.append(whole)
        return outputs


@dataclass(frozen=True)
class MaskLoop(NodeRewrite[_Loop]):
    """Make all turns that a Loop may make, and keep what it carries from the turn on where it would have ended.

    Attributes:
        max_turns: how many turns it may have.
        max_nodes: how many nodes it may become.
    """

    name = "mask-loop"
    operators = frozenset({("", "Loop")})
    tensors_only = False
    max_turns: int = 32
    max_nodes: int = 4096

    def match(self, node: ir.Node, context: NodeContext) -> _Loop | Skip | None:
        """Whether the most turns are known and few, and no harm is done by turns that nobody wants."""
        scope = context.scope
        found = _read(node, scope)
        if not isinstance(found, _Loop):
            return found
        if scope.opset() < 9:
            return Skip(f"opset {scope.opset()} has no Where")
        if found.limit is None or found.limit > self.max_turns:
            return Skip(f"it may make more than {self.max_turns} turns")
        if any(value.uses() or value.is_graph_output() for value in node.outputs[len(found.initial) :]):
            return Skip("how long its scan outputs are is known only when it runs")
        problem = speculation_hazard(found.body, scope)
        return Skip(f"turns that it would not make cannot be made: {problem}") if problem else found

    def rewrite(self, match: _Loop, edit: Edit) -> Sequence[ir.Value | None] | Skip:
        """As many copies of the body as there may be turns, each followed by a choice."""
        body = Body(match.body, edit)
        carried, active = match.initial, None
        assert match.limit is not None
        if match.begins is None:
            assert match.node.inputs[1] is not None
            active = scalar(match.node.inputs[1], edit)
            if active is None:
                return Skip("the shape of its condition is unknown")
        for turn in range(match.limit if match.begins is not False else 0):
            if len(edit.nodes) >= self.max_nodes:
                return Skip(f"it would become more than {self.max_nodes} nodes")
            condition, *results = body.copy(match.arguments(body, turn, carried), str(turn))
            chosen = []
            for old, new in zip(carried, results, strict=False):
                problem = difference(old, new, edit.scope)
                if problem is not None:
                    return Skip(f"what it carries changes: {problem}")
                chosen.append(new if active is None or new is old else select(active, new, old, edit))
            carried = chosen
            goes_on = body.known(condition)
            if goes_on is not None and not goes_on.numpy().item():
                break
            if goes_on is None:
                flat = scalar(condition, edit)
                if flat is None:
                    return Skip("the shape of its condition is unknown")
                active = flat if active is None else edit.op("And", [active, flat])
        return [*carried, *(None for _ in match.node.outputs[len(carried) :])]


def difference(one: ir.Value, other: ir.Value, scope: Scope) -> str | None:
    """Why Where cannot choose between two values without changing their shape; None where it can."""
    shapes = scope.shape(one), scope.shape(other)
    if any(shape is None or not shape.is_static() for shape in shapes):
        unknown = one if shapes[0] is None or not shapes[0].is_static() else other
        return f"the shape of {unknown.name} is unknown"
    if shapes[0] != shapes[1] or scope.dtype(one) != scope.dtype(other):
        return f"{scope.dtype(one)}{shapes[0]} and {scope.dtype(other)}{shapes[1]}"
    return None


RULES: tuple[NodeRewrite[Any], ...] = (UnrollLoop(), MaskLoop())
