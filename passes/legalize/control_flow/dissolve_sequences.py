"""Dissolve sequences and optionals whose elements are known values: what remains are tensors.

    SequenceAt(SequenceInsert(SequenceConstruct(a, b), c), -1)          →  c
    ConcatFromSequence(SplitToSequence(x))                              →  Split(x), Concat
    Loop(3, true, s){ … SequenceInsert(s, v) … }                        →  three turns, whose values are the elements
    OptionalGetElement(Optional(a)), OptionalHasElement(Optional(a))    →  a, true

The nodes are followed in their order, with what each sequence holds: values that are there. So operators that make
sequences leave nothing behind, and those that read them become operators of tensors. A Loop, Scan or SequenceMap with
sequences is unrolled for that. What is decided on the way (how long a sequence is, whether an optional is empty) is
folded, and an If that it decides is inlined, until nothing changes.

Skips: sequences that come from a caller or out of control flow that cannot be unrolled, positions that are not
constant where the elements differ in shape, and what leaves the model: this is made by one SequenceConstruct.
"""

from __future__ import annotations

import functools
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx_ir as ir

from passes.build.subgraph_copies import Body, scalar, unsupported_reason
from passes.cleanup.fold_constants import FoldConstants
from passes.cleanup.inline_constant_if import InlineConstantIf
from passes.core import graphs
from passes.core.base import Context, Pass, Result, Rewrite, Skip
from passes.core.edit import Edit, Proposal
from passes.core.graphs import Scope, ints
from passes.core.matching import is_plain
from passes.core.rewrite import NodeContext, NodeRewrite
from passes.core.visibility import can_stand_for
from passes.legalize.control_flow.loops import UnrollLoop
from passes.legalize.control_flow.scans import UnrollScan

_OPERATORS = frozenset(
    {
        "ConcatFromSequence",
        "Optional",
        "OptionalGetElement",
        "OptionalHasElement",
        "SequenceAt",
        "SequenceConstruct",
        "SequenceEmpty",
        "SequenceErase",
        "SequenceInsert",
        "SequenceLength",
        "SequenceMap",
        "SplitToSequence",
    }
)
"""Where none of these is, there is nothing to do."""
_ROUNDS = 8
"""How often constants are folded and branches inlined because of what was dissolved."""


@dataclass(frozen=True)
class DissolveSequences(Pass):
    """Dissolve sequences and optionals whose elements are known values.

    Attributes:
        max_nodes: how many nodes a Loop or Scan with sequences may become.
    """

    name = "dissolve-sequences"
    max_nodes: int = 4096

    def run(self, model: ir.Model, context: Context) -> Result:
        """Dissolve in the main graph with its subgraphs; in functions types are not known."""
        result = Result(model)
        scope = Scope(model, model.graph)
        if not any(_is_about_sequences(node) for node in scope.nodes()):
            return result
        graphs.name_nodes(scope)
        for _ in range(_ROUNDS):
            walk = _Walk(self, Scope(model, model.graph), context, result)
            walk.visit(model.graph)
            if not walk.changed or not any(_is_about_sequences(node) for node in scope.nodes()):
                break
            for step in (FoldConstants(), InlineConstantIf()):
                result.rewrites += step.run(model, context).rewrites
        walk.clear(model.graph)
        result.skips += walk.skips.values()
        return result


@dataclass(frozen=True)
class _Optional:
    """What an optional holds.

    Attributes:
        value: a tensor or a sequence; None if it is empty.
    """

    value: ir.Value | None


_Elements = tuple[ir.Value, ...]


@dataclass
class _Walk:
    """One walk through all nodes.

    Attributes:
        sequences: the elements of sequences.
        optionals: what optionals hold.
        changed: whether anything was rewritten.
        skips: why nodes are left.
    """

    owner: DissolveSequences
    scope: Scope
    context: Context
    result: Result
    sequences: dict[ir.Value, _Elements] = field(default_factory=dict)
    optionals: dict[ir.Value, _Optional] = field(default_factory=dict)
    changed: bool = False
    skips: dict[ir.Node, Skip] = field(default_factory=dict)

    def visit(self, graph: ir.Graph) -> None:
        """Follow the nodes of a graph, and those that come in their place."""
        pending = deque(graph)
        while pending:
            node = pending.popleft()
            if not is_plain(node, self.scope) or node.domain != "":
                continue
            found = self._dissolve(node)
            if isinstance(found, Skip):
                self.skips[node] = Skip(found.reason, node.name or "")
            elif found is not None:
                if not self.context.budget.take():
                    found.discard()
                    return
                self.result.rewrites.append(found.commit(self.owner.name))
                self.changed = True
                pending.extendleft(reversed(found.nodes))
                continue
            for inner in graphs.subgraphs(node):
                self.visit(inner)

    def clear(self, graph: ir.Graph) -> None:
        """Remove what makes sequences that nobody reads; what is read still is made of its elements at once."""
        for node in reversed(list(graph)):
            for inner in graphs.subgraphs(node):
                self.clear(inner)
            if not node.outputs or not all(
                value in self.sequences or value in self.optionals for value in node.outputs
            ):
                continue
            if not any(value.uses() or value.is_graph_output() for value in node.outputs):
                if self.context.budget.take():
                    graphs.remove(graph, [node])
                    self.result.rewrites.append(Rewrite((node.name or "",), note="nobody reads its sequence"))
            elif node.op_type in ("SequenceErase", "SequenceInsert"):
                proposal = self._propose(node, functools.partial(self._rebuild, node))
                if isinstance(proposal, Proposal) and self.context.budget.take():
                    self.result.rewrites.append(proposal.commit(self.owner.name))

    # one node

    def _dissolve(self, node: ir.Node) -> Proposal | Skip | None:
        """Note what a node makes, or propose what shall stand in its place."""
        match node.op_type:
            case "SequenceEmpty":
                self.sequences[node.outputs[0]] = ()
            case "SequenceConstruct":
                self.sequences[node.outputs[0]] = tuple(value for value in node.inputs if value is not None)
            case "Identity" if node.inputs and node.inputs[0] is not None:
                self._alias(node.outputs[0], node.inputs[0])
            case "Optional":
                self.optionals[node.outputs[0]] = _Optional(node.inputs[0] if node.inputs else None)
            case "OptionalHasElement" | "OptionalGetElement":
                return self._optional(node)
            case "SequenceInsert" | "SequenceErase":
                return self._edit_sequence(node)
            case "SplitToSequence":
                return self._propose(node, lambda edit: _split(node, edit))
            case "SequenceAt" | "SequenceLength" | "ConcatFromSequence" if node.inputs[0] in self.sequences:
                elements = self.sequences[node.inputs[0]]
                read: Mapping[str, Callable[[ir.Node, _Elements, Edit], Any]] = {
                    "SequenceAt": _at,
                    "SequenceLength": _length,
                    "ConcatFromSequence": _concat,
                }
                return self._propose(node, lambda edit: read[node.op_type](node, elements, edit))
            case "SequenceMap" if node.inputs[0] in self.sequences:
                return self._propose(node, lambda edit: self._map(node, edit))
            case "Loop":
                return self._unroll(node, UnrollLoop(max_nodes=self.owner.max_nodes))
            case "Scan":
                return self._unroll(node, UnrollScan(max_nodes=self.owner.max_nodes))
        return None

    def _propose(self, node: ir.Node, make: Callable[[Edit], Sequence[ir.Value | None] | Skip]) -> Proposal | Skip:
        """What ``make`` makes in the place of a node, unless a name would mean another value there."""
        edit = Edit(self.scope, node)
        outputs = make(edit)
        if not isinstance(outputs, Skip):
            made = {*edit.constants, *(value for each in edit.nodes for value in each.outputs)}
            for old, new in zip(node.outputs, outputs, strict=True):
                if new is not None and new not in made and not can_stand_for(new, old, node.graph, self.scope):
                    outputs = Skip("a subgraph calls another value by the same name: unshadow-names comes first")
                    break
        if isinstance(outputs, Skip):
            Proposal(self.scope, node, (), edit.nodes).discard()
            return outputs
        return Proposal(self.scope, node, outputs, edit.nodes, edit.constants)

    def _alias(self, new: ir.Value, old: ir.Value) -> None:
        if old in self.sequences:
            self.sequences[new] = self.sequences[old]
        if old in self.optionals:
            self.optionals[new] = self.optionals[old]

    def _optional(self, node: ir.Node) -> Proposal | Skip | None:
        value = node.inputs[0] if node.inputs else None
        held = self._held(value)
        if held is None:
            return None
        if node.op_type == "OptionalHasElement":
            return self._propose(node, lambda edit: [edit.constant(np.array(held.value is not None))])
        if held.value is None:
            return Skip("it reads an optional that is empty")
        return self._propose(node, lambda edit: [held.value])

    def _held(self, value: ir.Value | None) -> _Optional | None:
        """What an optional holds; where it may be a tensor or a sequence, that itself."""
        if value is None:
            return _Optional(None)
        if value in self.optionals:
            return self.optionals[value]
        if value in self.sequences or isinstance(value.type, (ir.TensorType, ir.SequenceType)):
            return _Optional(value)
        return None

    def _edit_sequence(self, node: ir.Node) -> Skip | None:
        """Follow SequenceInsert and SequenceErase."""
        elements = self.sequences.get(node.inputs[0])  # type: ignore[arg-type]
        if elements is None:
            return None
        inserts = node.op_type == "SequenceInsert"
        place = node.inputs[2 if inserts else 1] if len(node.inputs) > (2 if inserts else 1) else None
        position = len(elements) if inserts else len(elements) - 1
        if place is not None:
            known = ints(self.scope.constant(place))
            if known is None or len(known) != 1:
                return Skip("its position is not constant")
            position = known[0] + len(elements) if known[0] < 0 else known[0]
        if not 0 <= position < len(elements) + inserts:
            return Skip(f"its position is outside of a sequence of {len(elements)}")
        new = (node.inputs[1],) if inserts and node.inputs[1] is not None else ()
        self.sequences[node.outputs[0]] = (*elements[:position], *new, *elements[position + (not inserts) :])
        return None

    def _map(self, node: ir.Node, edit: Edit) -> Sequence[ir.Value | None] | Skip:
        """SequenceMap: a copy of its body for each element of the first sequence."""
        graph = node.attributes["body"].as_graph()
        problem = unsupported_reason(graph, len(node.inputs), len(node.outputs))
        if problem is not None:
            return Skip(problem)
        given: list[_Elements | ir.Value] = []
        for value in node.inputs:
            if value is None or (isinstance(value.type, ir.SequenceType) and value not in self.sequences):
                return Skip("it maps a sequence whose elements are not known")
            given.append(self.sequences.get(value, value))
        count = len(given[0])  # type: ignore[arg-type]
        if any(isinstance(each, tuple) and len(each) < count for each in given):
            return Skip("the sequences that it maps have different lengths")
        body = Body(graph, edit)
        made = [
            body.copy([each[turn] if isinstance(each, tuple) else each for each in given], str(turn))
            for turn in range(count)
        ]
        outputs: list[ir.Value | None] = []
        for index, value in enumerate(graph.outputs):
            outputs.append(_sequence([each[index] for each in made], value.dtype, edit))
        return outputs

    def _rebuild(self, node: ir.Node, edit: Edit) -> Sequence[ir.Value | None] | Skip:
        kind = node.outputs[0].type
        return [_sequence(self.sequences[node.outputs[0]], kind.dtype if kind is not None else None, edit)]

    def _unroll(self, node: ir.Node, rule: NodeRewrite[Any]) -> Proposal | Skip | None:
        """Unroll a node that has to do with sequences, all of which are known."""
        values = [*node.inputs, *graphs.captures(node)]
        unknown = [
            value
            for value in values
            if value is not None
            and isinstance(value.type, (ir.SequenceType, ir.OptionalType))
            and value not in self.sequences
            and value not in self.optionals
        ]
        if unknown or not any(_is_about_sequences(each) for each in graphs.with_nested([node]) if each is not node):
            return None
        return rule.propose(node, NodeContext.within(self.scope, self.context))


def _is_about_sequences(node: ir.Node) -> bool:
    return node.op_type in _OPERATORS and node.domain == ""


def _at(node: ir.Node, elements: _Elements, edit: Edit) -> Sequence[ir.Value | None] | Skip:
    place = node.inputs[1]
    assert place is not None
    known = ints(edit.scope.constant(place))
    if known is not None and len(known) == 1:
        if not -len(elements) <= known[0] < len(elements):
            return Skip(f"its position is outside of a sequence of {len(elements)}")
        return [elements[known[0]]]
    shapes = [edit.scope.shape(value) for value in elements]
    shape = shapes[0] if shapes else None
    if shape is None or not shape.is_static() or any(each != shape for each in shapes):
        return Skip("its position is not constant, and the elements differ in shape, or it is unknown")
    index = scalar(place, edit)
    if index is None:
        return Skip("the shape of its position is unknown")
    return [edit.op("Gather", [_stack(elements, 0, edit), index], {"axis": 0})]


def _length(node: ir.Node, elements: _Elements, edit: Edit) -> Sequence[ir.Value | None]:
    return [edit.constant(np.array(len(elements), np.int64))]


def _concat(node: ir.Node, elements: _Elements, edit: Edit) -> Sequence[ir.Value | None] | Skip:
    if not elements:
        return Skip("it joins a sequence that is empty")
    axis = node.attributes.get_int("axis", 0)
    if node.attributes.get_int("new_axis", 0):
        return [_stack(elements, axis, edit)]
    return [edit.op("Concat", elements, {"axis": axis})]


def _split(node: ir.Node, edit: Edit) -> Sequence[ir.Value | None] | Skip:
    """SplitToSequence: Split, and a sequence of the parts."""
    value = node.inputs[0]
    assert value is not None
    shape, axis = edit.scope.shape(value), node.attributes.get_int("axis", 0)
    size = shape[axis] if shape is not None else None
    if not isinstance(size, int):
        return Skip("the size of what it splits is unknown: freeze its shape")
    given = node.inputs[1] if len(node.inputs) > 1 else None
    sizes, squeeze = [1] * size, given is None and not node.attributes.get_int("keepdims", 1)
    if given is not None:
        tensor = edit.scope.constant(given)
        if tensor is None:
            return Skip("the sizes of its parts are not constant: freeze them with --freeze NAME=VALUE")
        sizes = [int(each) for each in tensor.numpy().ravel()]
        if not tensor.shape.numpy():
            whole, rest = divmod(size, sizes[0])
            sizes = [sizes[0]] * whole + [rest] * (rest > 0)
    parts: list[ir.Value] = [value]
    if len(sizes) != 1:
        split = edit.constant(np.array(sizes, np.int64))
        parts = list(edit.node("Split", [value, split], {"axis": axis}, outputs=len(sizes)).outputs) if sizes else []
    if squeeze:
        axes = edit.constant(np.array([axis]))
        parts = [edit.op("Squeeze", [part, axes]) for part in parts]
    return [_sequence(parts, edit.scope.dtype(value), edit)]


def _stack(elements: Iterable[ir.Value], axis: int, edit: Edit) -> ir.Value:
    axes = edit.constant(np.array([axis]))
    parts = [edit.op("Unsqueeze", [value, axes]) for value in elements]
    return parts[0] if len(parts) == 1 else edit.op("Concat", parts, {"axis": axis})


def _sequence(elements: Sequence[ir.Value], dtype: ir.DataType | None, edit: Edit) -> ir.Value:
    """A sequence of values that are there."""
    if elements:
        return edit.op("SequenceConstruct", elements)
    return edit.op("SequenceEmpty", [], {"dtype": (dtype or ir.DataType.FLOAT).value})
