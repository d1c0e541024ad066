"""Declarative patterns of several nodes, for passes that fuse them.

    x = Var("x")
    half = Number(0.5) | Var("half")
    pattern = Op("Mul", Op("Add", x, Number(name="bias")), half)

    found = match(pattern, node, scope)     # None, or found["x"], found["bias"], found.nodes

A pattern is matched against a node from its outputs to its inputs. Nodes are of the standard domain, in one graph, and
mean what the standard says (`passes.graphs.matching.is_plain`). Operands of commutative operators match in either
order. What has a name must be the same wherever the name occurs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import EllipsisType
from typing import Any

import onnx_ir as ir

from passes.graphs.matching import is_op, is_plain, scalar
from passes.graphs.scopes import Scope

_COMMUTATIVE = frozenset({"Add", "Mul", "Max", "Min", "And", "Or", "Xor", "Equal"})

Fact = Callable[[ir.Node, Scope], Any]
"""Something to be known of a node; None where it is not."""


class Pattern:
    """The base of patterns."""

    def __or__(self, other: Pattern) -> Either:
        """Either of two patterns; the first one that matches is taken."""
        return Either(self, other)


@dataclass(frozen=True)
class Var(Pattern):
    """Any value."""

    name: str


@dataclass(frozen=True)
class Number(Pattern):
    """A constant of one element, of any integer or float dtype, that does not extend the shape of the other operand.

    Attributes:
        value: the number; None for any.
        name: what to call it.
    """

    value: float | None = None
    name: str | None = None


class Either(Pattern):
    """One of several patterns, tried in their order."""

    def __init__(self, *alternatives: Pattern) -> None:
        self.alternatives = alternatives


class Op(Pattern):
    """The first output of a node.

    Args:
        operators: the name of the operator, or several names.
        operands: patterns of its inputs, exactly as many as there are; ``...`` at the end stands for all others.
        facts: what to find out about the node, by name.
    """

    def __init__(self, operators: str | tuple[str, ...], *operands: Pattern | EllipsisType, **facts: Fact) -> None:
        self.operators = (operators,) if isinstance(operators, str) else operators
        self.operands = tuple(each for each in operands if isinstance(each, Pattern))
        self.has_more = len(self.operands) < len(operands)
        self.facts = facts


@dataclass(frozen=True)
class Found:
    """What a pattern matched.

    Attributes:
        named: values, numbers and facts by name.
        nodes: the nodes, each before those that it takes inputs from.
    """

    named: Mapping[str, Any] = field(default_factory=dict)
    nodes: tuple[ir.Node, ...] = ()

    def __getitem__(self, name: str) -> Any:
        return self.named[name]

    def get(self, name: str) -> Any:
        """What has the name; None where it does not occur in the alternative that matched."""
        return self.named.get(name)

    def _with(self, name: str | None, thing: Any) -> Found | None:
        if name is None:
            return self
        if name in self.named:
            return self if self.named[name] == thing else None
        return Found({**self.named, name: thing}, self.nodes)


def match(pattern: Op | Either, node: ir.Node, scope: Scope) -> Found | None:
    """The first way in which a pattern matches the first output of a node; None if there is none."""
    return next(_match_value(pattern, node.outputs[0], node, scope, Found()), None)


def _match_value(
    pattern: Pattern, value: ir.Value | None, user: ir.Node, scope: Scope, found: Found
) -> Iterator[Found]:
    if value is None:
        return
    match pattern:
        case Either():
            for each in pattern.alternatives:
                yield from _match_value(each, value, user, scope, found)
        case Var():
            if (more := found._with(pattern.name, value)) is not None:
                yield more
        case Number():
            number = _number(value, user, scope)
            wanted = number is not None and pattern.value in (None, number)
            if wanted and (more := found._with(pattern.name, number)) is not None:
                yield more
        case Op():
            node = value.producer()
            if node is not None and node.graph is user.graph and value is node.outputs[0]:
                yield from _match_node(pattern, node, scope, found)


def _match_node(pattern: Op, node: ir.Node, scope: Scope, found: Found) -> Iterator[Found]:
    count = len(pattern.operands)
    if not is_op(node, *pattern.operators) or not is_plain(node, scope):
        return
    if len(node.inputs) < count or (len(node.inputs) > count and not pattern.has_more):
        return
    more: Found | None = Found(found.named, found.nodes if node in found.nodes else (*found.nodes, node))
    for name, fact in pattern.facts.items():
        known = fact(node, scope)
        more = more._with(name, known) if more is not None and known is not None else None
    if more is None:
        return
    orders = [node.inputs[:count]]
    if node.op_type in _COMMUTATIVE and count == 2:
        orders.append(orders[0][::-1])
    for inputs in orders:
        yield from _match_operands(pattern.operands, inputs, node, scope, more)


def _match_operands(
    patterns: tuple[Pattern, ...], inputs: Sequence[ir.Value | None], node: ir.Node, scope: Scope, found: Found
) -> Iterator[Found]:
    if not patterns:
        yield found
        return
    for more in _match_value(patterns[0], inputs[0], node, scope, found):
        yield from _match_operands(patterns[1:], inputs[1:], node, scope, more)


def _number(value: ir.Value, user: ir.Node, scope: Scope) -> float | None:
    numbers = (scalar(value, other, scope) for other in user.inputs if other is not None and other is not value)
    return next((number for number in numbers if number is not None), None)
