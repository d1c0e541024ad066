"""Choices of a model: nodes that jump from one result to another where their inputs cross a border.

    TopK, ArgMax, ArgMin, Hardmax, NonMaxSuppression    the larger of two numbers
    Round, Floor, Ceil, casts to integers, quantizers   the step that a number is rounded to
    Greater, Less, Equal, …, NonZero, Sign, Mod         the side of another number

Two numbers that lie closer to each other than they can be computed tie: either choice is right, and everything behind
it differs. Such a difference proves nothing, so what is compared instead is the model *given the same choices*:

    x ─ A ─ TopK ─ B ─► y       choices of the other side put in:      x ─ A ─► scores, what TopK makes of them
                                                                 its choice ─ B ─► y

The other side is right if its choices are right for its own inputs, these agree with the reference's, and so do the
outputs. A fault behind a tie is found like any other: whatever follows a choice is compared given that choice.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
import onnx_ir as ir

from onnx_bridge.core.values import Array, Value
from onnx_bridge.reference.comparison.inside import COMPUTED, Values
from onnx_bridge.reference.comparison.tolerances import is_float
from passes.graphs.dependencies import fixed_values
from passes.operators import is_quantizer, operators
from passes.probing.partition import needed

_FEW = 1 / 8
"""The share of a quantizer's numbers that may be a step away: one that cuts off instead is so in half of them."""


@dataclass(frozen=True)
class Tie:
    """A choice that both sides make differently, each of them rightly.

    Attributes:
        node: its name.
        distance: how far apart the numbers are that it chooses between, or how far from the border; None if unknown.
        count: how many of its results differ.
    """

    node: str
    operator: str
    distance: float | None
    count: int

    @property
    def sentence(self) -> str:
        """The node, and the distance."""
        by = "" if self.distance is None else f" that differ by {self.distance:.2g}"
        if self.operator in operators("larger"):
            return f"{self.operator} {self.node} chooses between values{by or ' that tie'}"
        by = "" if self.distance is None else f" {self.distance:.2g} from"
        return f"{self.operator} {self.node} decides on values{by or ' next to'} its border"


def choices(model: ir.Model, available: Iterable[str]) -> list[ir.Node]:
    """Return the nodes of the main graph that choose, in order, whose operands and results are among ``available``."""
    graph, known = model.graph, set(available)
    inputs = {str(value.name) for value in graph.inputs}
    fixed, alive = fixed_values(graph), needed(graph)

    def is_known(value: ir.Value | None) -> bool:
        return value is None or value in fixed or value.is_initializer() or value.name in known or value.name in inputs

    return [
        node
        for node in graph
        if node in alive
        and chooses(node)
        and not fixed.issuperset(node.outputs)
        and all(map(is_known, node.inputs))
        and all(str(value.name) in known for value in node.outputs if value.name and _is_used(value))
    ]


def chooses(node: ir.Node) -> bool:
    """Return whether a node jumps where its inputs cross a border."""
    if is_quantizer(node):
        return node.op_type != "QLinearSoftmax"
    if node.domain not in ("", "ai.onnx"):
        return False
    if node.op_type == "Cast":
        to = ir.DataType(node.attributes.get_int("to", 0))
        return to.is_integer() or to == ir.DataType.BOOL
    return node.op_type in operators("larger", "steps", "sides")


@dataclass
class Examination:
    """The values of both sides at the choices of a model.

    Args:
        nodes: its choices.

    Attributes:
        results: the names of the results of choices.
        operands: the names of what choices are made from.
    """

    model: ir.Model
    nodes: Sequence[ir.Node]
    results: list[str] = field(init=False)
    operands: list[str] = field(init=False)

    def __post_init__(self) -> None:
        self.results = [str(value.name) for node in self.nodes for value in node.outputs if _fetched(value)]
        inputs = {str(value.name) for value in self.model.graph.inputs}
        fixed = fixed_values(self.model.graph)
        self.operands = [
            name
            for name in dict.fromkeys(
                str(value.name)
                for node in self.nodes
                for value in node.inputs
                if value is not None and not value.is_initializer() and value not in fixed
            )
            if name not in inputs
        ]

    @property
    def names(self) -> list[str]:
        """The values that the other side is asked for."""
        return list(dict.fromkeys((*self.operands, *self.results)))

    @property
    def computed(self) -> list[str]:
        return [name + COMPUTED for name in self.results]

    def wrong_choice(self, tested: Values, computed: Values) -> str | None:
        """Return the first choice that is not right for its own operands; None if all are.

        Args:
            tested: the other side's values.
            computed: what the reference computes from the other side's operands.
        """
        for node in self.nodes:
            for value in filter(_fetched, node.outputs):
                name = str(value.name)
                if not same_choice(node, tested[name], computed[name + COMPUTED]):
                    return f"{node.op_type} {node.name} is wrong for its own inputs"
        return None

    def ties(self, tested: Values, given: Values, inputs: Values) -> tuple[Tie, ...]:
        """Return the choices that the reference makes differently.

        Args:
            tested: the other side's values.
            given: the reference's values, given the other side's choices.
        """
        ties = []
        for node in self.nodes:
            names = [str(value.name) for value in node.outputs if _fetched(value)]
            count = max((_differing(tested[name], given[name + COMPUTED], node) for name in names), default=0)
            if count:
                ours = {**inputs, **given, **{name: tested[name] for name in names}}
                from_theirs = {**ours, **{name: tested[name] for name in self.operands if name in tested}}
                distances = [_distance(node, values) for values in (ours, from_theirs)]
                distance = max((known for known in distances if known is not None), default=None)
                ties.append(Tie(str(node.name), node.op_type, distance, count))
        return tuple(ties)


def _is_used(value: ir.Value) -> bool:
    return bool(value.uses()) or value.is_graph_output()


def _fetched(value: ir.Value) -> bool:
    return bool(value.name) and _is_used(value)


def rounds(operator: str) -> bool:
    """Return whether an operator rounds to steps."""
    return operator == "Round" or operator in operators("quantizes")


def same_choice(node: ir.Node, result: Value, right: Value) -> bool:
    """Return whether two results of a node that chooses are the same choice from the same operands.

    A quantizer divides, so that a number next to a border may be rounded to either side. A TopK that need not sort may
    give its results in any order.
    """
    if not isinstance(result, np.ndarray) or not isinstance(right, np.ndarray) or result.shape != right.shape:
        return False
    if node.op_type == "TopK" and not node.attributes.get_int("sorted", 1):
        axis = node.attributes.get_int("axis", -1)
        result, right = np.sort(result, axis), np.sort(right, axis)
    if np.array_equal(result, right, equal_nan=is_float(right.dtype)):
        return True
    if not rounds(node.op_type) or right.dtype.kind not in "iu":
        return False
    apart = np.abs(result.astype(np.int64) - right.astype(np.int64))
    return bool(apart.max() <= 1 and np.count_nonzero(apart) <= max(1, _FEW * apart.size))


def _differing(result: Value, right: Value, node: ir.Node) -> int:
    """Return how many results differ; of the values of a TopK, which are no choices themselves, none."""
    if not isinstance(result, np.ndarray) or not isinstance(right, np.ndarray) or result.shape != right.shape:
        return 1
    if is_float(right.dtype) and node.op_type in ("TopK", "Mod"):
        return 0
    return int(np.count_nonzero(result != right))


def _distance(node: ir.Node, values: Values) -> float | None:
    """Return how far apart the numbers of one side are that a node chooses between; None if that is not known."""
    operands = [_operand(value, values) for value in node.inputs]
    results = [values.get(str(value.name) + COMPUTED) for value in node.outputs]
    chosen = [values.get(str(value.name)) for value in node.outputs]
    try:
        with np.errstate(all="ignore"):
            return _measured(node, operands, chosen, results)
    except (TypeError, ValueError, IndexError):
        return None


def _operand(value: ir.Value | None, values: Values) -> Array | None:
    if value is None:
        return None
    if value.name in values:
        array = values[str(value.name)]
        return array if isinstance(array, np.ndarray) else None
    return None if value.const_value is None else np.asarray(value.const_value.numpy())


def _measured(
    node: ir.Node, operands: Sequence[Array | None], chosen: Sequence[Value], right: Sequence[Value]
) -> float | None:
    first = operands[0]
    if first is None:
        return None
    wide = np.asarray(first, np.float64)
    if node.op_type in ("TopK", "ArgMax", "ArgMin"):
        sorts = node.op_type == "TopK"
        axis = node.attributes.get_int("axis", -1 if sorts else 0)
        indices = [np.asarray(outputs[1 if sorts else 0]) for outputs in (chosen, right)]
        if not sorts and not node.attributes.get_int("keepdims", 1):
            indices = [np.expand_dims(outputs, axis) for outputs in indices]
        taken, wanted = (np.take_along_axis(wide, index, axis) for index in indices)
        return float(np.abs(taken - wanted).max())
    choice, other = np.asarray(chosen[0]), np.asarray(right[0])
    if choice.shape != other.shape:
        return None
    different = np.asarray(choice != other)
    if node.op_type in operators("sides") and len(operands) == 2 and operands[1] is not None:
        return float(np.abs(wide - np.asarray(operands[1], np.float64))[different].max())
    if node.op_type == "Round":
        return float(np.abs(np.abs(wide - np.floor(wide)) - 0.5)[different].max())
    if node.op_type in ("Floor", "Ceil", "Cast"):
        return float(np.abs(wide - np.round(wide))[different].max())
    if node.op_type == "QuantizeLinear" and operands[1] is not None and operands[1].size == 1:
        steps = wide / float(operands[1].reshape(()))
        return float((np.abs(np.abs(steps - np.floor(steps)) - 0.5) * float(operands[1].reshape(())))[different].max())
    return None
