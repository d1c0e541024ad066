"""Unroll loops with a known number of iterations, and mask loops of which only an upper bound is known.

    y, s = Loop(3, true, x){ (i, c, v) → (c, f(v, i), g(v)) }
        →  v1 = f(x, 0); v2 = f(v1, 1); y = f(v2, 2); s = Concat(g(x), g(v1), g(v2)), each with a new first axis

    y = Loop(3, c, x){ (i, c, v) → (h(v), f(v)) }          where h(v) is known only at run time
        →  v1 = Where(c, f(x), x);  c1 = c ∧ h(x);  v2 = Where(c1, f(v1), v1);  …

The number of iterations is known if the trip count and the condition are constant, or if constants make the condition
false in some iteration. Values that depend only on the iteration number are evaluated while unrolling. A masked loop
must not have scan outputs or loop-carried values of varying shape, because their shapes would be unknown.

Skips: trip counts and conditions that are not constant (unroll-loop); more than ``max-nodes`` nodes; more than
``max-turns`` iterations, and bodies that are unsafe to execute speculatively (mask-loop); scan outputs of unknown shape
without iterations.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from passes.builders.subgraph_copies import (
    Body,
    empty_stack,
    require_copyable,
    require_fitting,
    select,
    speculation_hazard,
    stack,
    to_scalar,
)
from passes.graphs.matching import is_op
from passes.graphs.scopes import Scope
from passes.graphs.traversal import is_used, with_nested
from passes.rewriting.base import NotApplicable, Skip
from passes.rewriting.edit import Edit
from passes.rewriting.rewrite import NodeRewrite, Replacement


@dataclass(frozen=True)
class _Loop:
    """A Loop.

    Attributes:
        body: the subgraph; its inputs are the iteration number, the condition, and the loop-carried values.
        limit: the trip count; None if only the condition ends the loop.
        begins: whether there is a first iteration; None if that is known only at run time.
    """

    body: ir.Graph
    initial: list[ir.Value]
    limit: int | None
    begins: bool | None

    @classmethod
    def of(cls, node: ir.Node, scope: Scope) -> _Loop:
        """Read a Loop."""
        initial = [value for value in node.inputs[2:] if value is not None]
        if "body" not in node.attributes or len(initial) != len(node.inputs) - 2:
            raise NotApplicable("the Loop is not valid: it has no body, or a loop-carried value has no initial value")
        body = node.attributes["body"].as_graph()
        require_copyable(body, 2 + len(initial), 1 + len(node.outputs))
        count, condition = (scope.constant(value) for value in node.inputs[:2])
        if node.inputs[0] is not None and (count is None or count.size != 1):
            raise NotApplicable("the trip count is not constant: freeze it with --freeze NAME=VALUE")
        limit = max(int(count.numpy().item()), 0) if count is not None else None
        begins = True if node.inputs[1] is None else None
        if condition is not None and condition.size == 1:
            begins = bool(condition.numpy().item())
        return cls(body, initial, limit, begins)

    def arguments(self, body: Body, iteration: int, carried: Sequence[ir.Value]) -> list[ir.Value]:
        """Return the inputs of an iteration. Its number and condition have the declared rank, which may be 1."""
        number, condition = (
            np.full([1] if value.shape is not None and len(value.shape) == 1 else [], content)
            for value, content in zip(self.body.inputs, (np.int64(iteration), np.True_), strict=False)
        )
        return [body.constant(number), body.constant(condition), *carried]


def _is_counted(graph: ir.Graph) -> bool:
    """Return whether the body passes the condition through, so that only the trip count ends the loop."""
    value: ir.Value | None = graph.outputs[0]
    while value is not None and (node := value.producer()) is not None and is_op(node, "Identity"):
        value = node.inputs[0]
    return value is graph.inputs[1]


@dataclass(frozen=True)
class UnrollLoop(NodeRewrite):
    """Unroll a Loop whose number of iterations is known.

    Attributes:
        max_nodes: the most nodes that may replace it.
    """

    name = "unroll-loop"
    operators = frozenset({("", "Loop")})
    tensors_only = False
    max_nodes: int = 4096

    def replacement(self, node: ir.Node, edit: Edit) -> Replacement:
        """Copy the body for each iteration."""
        loop = _Loop.of(node, edit.scope)
        if loop.begins is None and loop.limit != 0:
            return Skip("whether there is a first iteration is known only at run time: the condition is not constant")
        body, counted = Body(loop.body, edit), _is_counted(loop.body)
        if loop.begins and loop.limit is None and counted:
            return Skip("the loop does not terminate")
        carried = loop.initial
        scanned: list[list[ir.Value]] = [[] for _ in node.outputs[len(carried) :]]
        iteration = 0
        while loop.begins and iteration != loop.limit:
            expected = len(edit.nodes) * (loop.limit or 1) if iteration == 1 and counted else len(edit.nodes)
            if max(expected, iteration) >= self.max_nodes:
                return Skip(f"the replacement has more than {self.max_nodes} nodes")
            condition, *results = body.copy(loop.arguments(body, iteration, carried), str(iteration))
            carried, new = results[: len(carried)], results[len(carried) :]
            for values, value in zip(scanned, new, strict=True):
                values.append(value)
            iteration += 1
            continues = body.known(condition)
            if continues is None and iteration != loop.limit:
                return Skip("when the loop ends is known only at run time: the condition is not constant")
            if continues is not None and not continues.numpy().item():
                break
        outputs: list[ir.Value | None] = [*carried]
        elements = loop.body.outputs[1 + len(carried) :]
        for old, values, element in zip(node.outputs[len(carried) :], scanned, elements, strict=True):
            if not is_used(old):
                outputs.append(None)
            else:
                outputs.append(stack(body, values) if values else empty_stack(body, element))
        return outputs


unroll_loop = UnrollLoop()


@dataclass(frozen=True)
class MaskLoop(NodeRewrite):
    """Unroll a Loop to its maximum number of iterations, and keep the carried values once the condition is false.

    Attributes:
        max_turns: the most iterations that it may have.
        max_nodes: the most nodes that may replace it.
    """

    name = "mask-loop"
    since_opset = 9  # Where
    operators = frozenset({("", "Loop")})
    tensors_only = False
    max_turns: int = 32
    max_nodes: int = 4096

    def replacement(self, node: ir.Node, edit: Edit) -> Replacement:
        """Copy the body for each iteration that there may be, and select the values after each."""
        loop = _Loop.of(node, edit.scope)
        if loop.limit is None or loop.limit > self.max_turns:
            return Skip(f"the loop may have more than {self.max_turns} iterations")
        carried = loop.initial
        if any(map(is_used, node.outputs[len(carried) :])):
            return Skip("the length of the scan outputs is known only at run time")
        hazard = speculation_hazard(loop.body, edit.scope)
        if hazard is not None:
            return Skip(f"the body cannot be executed speculatively: {hazard}")
        body = Body(loop.body, edit)
        active = to_scalar(edit.input(node, 1), edit) if loop.begins is None else None
        for iteration in range(loop.limit if loop.begins is not False else 0):
            if len(edit.nodes) >= self.max_nodes:
                return Skip(f"the replacement has more than {self.max_nodes} nodes")
            condition, *results = body.copy(loop.arguments(body, iteration, carried), str(iteration))
            chosen = []
            for old, new in zip(carried, results, strict=False):
                problem = shape_mismatch(old, new, edit.scope)
                if problem is not None:
                    return Skip(f"a loop-carried value changes: {problem}")
                chosen.append(new if active is None or new is old else select(active, new, old, edit))
            carried = chosen
            continues = body.known(condition)
            if continues is not None and not continues.numpy().item():
                break
            if continues is None:
                flat = to_scalar(condition, edit)
                active = flat if active is None else edit.op("And", [active, flat])
        require_fitting(with_nested(edit.nodes), edit.scope)
        return carried


mask_loop = MaskLoop()


def shape_mismatch(one: ir.Value, other: ir.Value, scope: Scope) -> str | None:
    """Return why Where cannot select between two values of one shape and dtype; None if it can."""
    for value in (one, other):
        if scope.static_shape(value) is None:
            return f"the shape of {value.name} is unknown"
    shapes = scope.shape(one), scope.shape(other)
    if shapes[0] != shapes[1] or scope.dtype(one) != scope.dtype(other):
        return f"{scope.dtype(one)}{shapes[0]} and {scope.dtype(other)}{shapes[1]}"
    return None
