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

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import onnx_ir as ir

from onnx_bridge.core.values import Array, Value
from onnx_bridge.reference.comparison.compare import Comparison
from onnx_bridge.reference.comparison.tolerances import is_float
from passes.graphs.dependencies import fixed_values
from passes.graphs.quantization import is_quantizer
from passes.graphs.replacement import remove_nodes
from passes.graphs.traversal import with_nested
from passes.probing.partition import needed

COMPUTED = "/computed"
"""The end of the name of what a node makes of its inputs, where something else takes its place."""

_LARGER = frozenset(("TopK", "ArgMax", "ArgMin", "Hardmax", "NonMaxSuppression"))
_STEPS = frozenset(("Round", "Floor", "Ceil"))
_SIDES = frozenset(("Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual", "NonZero", "Sign", "Mod", "Unique"))
_QUANTIZING = re.compile(r"\w*Quantize(Linear)?$|QLinear\w+|QGemm")
_FEW = 1 / 8
"""The share of a quantizer's numbers that may be a step away: one that cuts off instead is so in half of them."""

Values = Mapping[str, Value]


@dataclass(frozen=True)
class Tie:
    """A choice that both sides make differently, each of them rightly.

    Attributes:
        node: its name.
        operator: its operator.
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
        if self.operator in _LARGER:
            return f"{self.operator} {self.node} chooses between values{by or ' that tie'}"
        by = "" if self.distance is None else f" {self.distance:.2g} from"
        return f"{self.operator} {self.node} decides on values{by or ' next to'} its border"


@dataclass(frozen=True)
class GivenChoices:
    """The reference given the choices of the other side.

    Attributes:
        comparison: of the outputs.
        ties: the choices that differ, in the order of the nodes.
        problem: why the differences of outputs are not those of ties; None where they are.
    """

    comparison: Comparison | None = None
    ties: tuple[Tie, ...] = ()
    problem: str | None = None


def choices(model: ir.Model, available: Iterable[str]) -> list[ir.Node]:
    """The nodes of the main graph that choose, in order, whose operands and results are among ``available``."""
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
    """Whether an operator jumps where its inputs cross a border."""
    if is_quantizer(node) or _QUANTIZING.fullmatch(node.op_type):
        return node.op_type not in ("QLinearSoftmax",)
    if node.domain not in ("", "ai.onnx"):
        return False
    if node.op_type == "Cast":
        to = ir.DataType(node.attributes.get_int("to", 0))
        return to.is_integer() or to == ir.DataType.BOOL
    return node.op_type in _LARGER | _STEPS | _SIDES


def cut(model: ir.Model, given: Mapping[str, Value], outputs: Sequence[str]) -> ir.Model:
    """A model in which some values are inputs.

    Args:
        model: it is not changed; the other shares its tensors.
        given: values of the main graph, by name. What their nodes make of them is called ``NAME/computed``.
        outputs: names of values, `COMPUTED` included.
    """
    other = model.clone()
    graph = other.graph
    made = {str(value.name): value for node in graph for value in node.outputs if value.name}
    graph.outputs.clear()
    for name, each in given.items():
        old = made[name]
        old.name = name + COMPUTED
        new = ir.Value(name=name, type=old.type, shape=old.shape)
        if isinstance(each, np.ndarray) and each.dtype.kind not in "OUST":
            new.type, new.shape = ir.TensorType(ir.DataType.from_numpy(each.dtype)), ir.Shape(each.shape)
        old.replace_all_uses_with(new)
        graph.inputs.append(new)
        made[old.name], made[name] = old, new
    made |= {str(value.name): value for value in graph.inputs}
    graph.outputs.extend(made[name] for name in dict.fromkeys(outputs))
    alive = needed(graph)
    remove_nodes(graph, [node for node in reversed(graph) if node not in alive])
    used = {value for node in with_nested(graph) for value in node.inputs}
    for value in [each for each in graph.inputs if each not in used and not each.is_graph_output()]:
        graph.inputs.remove(value)
    return other


@dataclass
class Examination:
    """The values of both sides at the choices of a model.

    Args:
        model: of the reference.
        nodes: its choices.
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
        """What the other side is asked for."""
        return list(dict.fromkeys((*self.operands, *self.results)))

    @property
    def computed(self) -> list[str]:
        return [name + COMPUTED for name in self.results]

    def wrong_choice(self, found: Values, made: Values) -> str | None:
        """The first choice that is not right for its own operands; None if all are.

        Args:
            found: the other side's values.
            made: what the reference makes of the other side's operands.
        """
        for node in self.nodes:
            for value in filter(_fetched, node.outputs):
                name = str(value.name)
                if not same_choice(node, found[name], made[name + COMPUTED]):
                    return f"{node.op_type} {node.name} is wrong for its own inputs"
        return None

    def ties(self, found: Values, given: Values, inputs: Values) -> tuple[Tie, ...]:
        """The choices that the reference makes differently.

        Args:
            found: the other side's values.
            given: the reference's, given the other side's choices.
            inputs: of the model.
        """
        ties = []
        for node in self.nodes:
            names = [str(value.name) for value in node.outputs if _fetched(value)]
            pairs = [(found[name], given[name + COMPUTED]) for name in names]
            count = max((_differing(one, other, node) for one, other in pairs), default=0)
            if count:
                ours = {**inputs, **given, **{name: found[name] for name in names}}
                theirs = {**ours, **{name: found[name] for name in self.operands if name in found}}
                measured = [_distance(node, values) for values in (ours, theirs)]
                distance = max((each for each in measured if each is not None), default=None)
                ties.append(Tie(str(node.name), node.op_type, distance, count))
        return tuple(ties)


def _is_used(value: ir.Value) -> bool:
    return bool(value.uses()) or value.is_graph_output()


def _fetched(value: ir.Value) -> bool:
    return bool(value.name) and _is_used(value)


def rounds(operator: str) -> bool:
    """Whether an operator rounds to steps."""
    return operator == "Round" or _QUANTIZING.fullmatch(operator) is not None


def same_choice(node: ir.Node, found: Value, right: Value) -> bool:
    """Whether two results of a node that chooses are the same choice from the same operands.

    A quantizer divides, so that a number next to a border may be rounded to either side. A TopK that need not sort may
    give its results in any order.
    """
    if not isinstance(found, np.ndarray) or not isinstance(right, np.ndarray) or found.shape != right.shape:
        return False
    if node.op_type == "TopK" and not node.attributes.get_int("sorted", 1):
        axis = node.attributes.get_int("axis", -1)
        found, right = np.sort(found, axis), np.sort(right, axis)
    if np.array_equal(found, right, equal_nan=is_float(right.dtype)):
        return True
    if not rounds(node.op_type) or right.dtype.kind not in "iu":
        return False
    apart = np.abs(found.astype(np.int64) - right.astype(np.int64))
    return bool(apart.max() <= 1 and np.count_nonzero(apart) <= max(1, _FEW * apart.size))


def _differing(found: Value, right: Value, node: ir.Node) -> int:
    """How many results differ; of the values of a TopK, which are no choices themselves, none."""
    if not isinstance(found, np.ndarray) or not isinstance(right, np.ndarray) or found.shape != right.shape:
        return 1
    if is_float(right.dtype) and node.op_type in ("TopK", "Mod"):
        return 0
    return int(np.count_nonzero(found != right))


def _distance(node: ir.Node, values: Values) -> float | None:
    """How far apart the numbers of one side are that a node chooses between; None if that is not known."""
    operands = [_operand(value, values) for value in node.inputs]
    results = [values.get(str(value.name) + COMPUTED) for value in node.outputs]
    found = [values.get(str(value.name)) for value in node.outputs]
    try:
        with np.errstate(all="ignore"):
            return _measured(node, operands, found, results)
    except (TypeError, ValueError, IndexError):
        return None


def _operand(value: ir.Value | None, values: Values) -> Array | None:
    if value is None:
        return None
    if value.name in values:
        each = values[str(value.name)]
        return each if isinstance(each, np.ndarray) else None
    return None if value.const_value is None else np.asarray(value.const_value.numpy())


def _measured(
    node: ir.Node, operands: Sequence[Array | None], found: Sequence[Value], right: Sequence[Value]
) -> float | None:
    first = operands[0]
    if first is None:
        return None
    wide = np.asarray(first, np.float64)
    if node.op_type == "TopK":
        axis = node.attributes.get_int("axis", -1)
        mine, theirs = (np.take_along_axis(wide, np.asarray(each[1]), axis) for each in (found, right))
        return float(np.abs(mine - theirs).max())
    if node.op_type in ("ArgMax", "ArgMin"):
        axis = node.attributes.get_int("axis", 0)
        indices = [np.asarray(each[0]) for each in (found, right)]
        if not node.attributes.get_int("keepdims", 1):
            indices = [np.expand_dims(each, axis) for each in indices]
        mine, theirs = (np.take_along_axis(wide, each, axis) for each in indices)
        return float(np.abs(mine - theirs).max())
    one, other = np.asarray(found[0]), np.asarray(right[0])
    if one.shape != other.shape:
        return None
    different = np.asarray(one != other)
    if node.op_type in _SIDES and len(operands) == 2 and operands[1] is not None:
        return float(np.abs(wide - np.asarray(operands[1], np.float64))[different].max())
    if node.op_type == "Round":
        return float(np.abs(np.abs(wide - np.floor(wide)) - 0.5)[different].max())
    if node.op_type in ("Floor", "Ceil", "Cast"):
        return float(np.abs(wide - np.round(wide))[different].max())
    if node.op_type == "QuantizeLinear" and operands[1] is not None and operands[1].size == 1:
        steps = wide / float(operands[1].reshape(()))
        return float((np.abs(np.abs(steps - np.floor(steps)) - 0.5) * float(operands[1].reshape(())))[different].max())
    return None
