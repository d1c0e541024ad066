"""Eliminate sequences and optionals whose elements are known values, so that only tensors remain.

    SequenceAt(SequenceInsert(SequenceConstruct(a, b), c), -1)          →  c
    ConcatFromSequence(SplitToSequence(x))                              →  Split(x), Concat
    Loop(3, true, s){ … SequenceInsert(s, v) … }                        →  three iterations, whose values are elements
    OptionalGetElement(Optional(a)), OptionalHasElement(Optional(a))    →  a, true

The pass visits nodes in order and records the elements of each sequence as existing values. Operators that produce
sequences then become unused, and those that read them become tensor operators. A Loop, Scan or SequenceMap with
sequences is unrolled. Constants that this reveals (the length of a sequence, whether an optional is empty) are folded,
and an If with a constant condition is inlined, until nothing changes.

Skips: sequences that are inputs or come out of control flow that cannot be unrolled; positions that are not constant if
the elements differ in shape. A sequence that is a model output is made by one SequenceConstruct.
"""

from __future__ import annotations

import functools
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np
import onnx_ir as ir

from passes.builders.subgraph_copies import Body, require_copyable
from passes.cleanup.fold_constants import FoldConstants
from passes.graphs.matching import is_plain
from passes.graphs.replacement import remove_nodes
from passes.graphs.scopes import Scope, name_nodes
from passes.graphs.tensors import ints
from passes.graphs.traversal import is_used, operands_of, subgraphs, with_nested
from passes.legalize.control_flow.known_sequences import (
    Elements,
    concat_from_sequence,
    construct_sequence,
    sequence_at,
    sequence_length,
    split_to_sequence,
)
from passes.legalize.control_flow.loops import UnrollLoop
from passes.legalize.control_flow.scans import UnrollScan
from passes.rewriting.base import Context, Pass, Result, Rewrite, Skip
from passes.rewriting.edit import Edit, Proposal
from passes.rewriting.rewrite import NodeRewrite, Replacement, rewrite

_OPERATORS = {
    "ConcatFromSequence", "Optional", "OptionalGetElement", "OptionalHasElement", "SequenceAt", "SequenceConstruct",
    "SequenceEmpty", "SequenceErase", "SequenceInsert", "SequenceLength", "SequenceMap", "SplitToSequence",
}  # fmt: skip
"""The operators on sequences and optionals."""


@dataclass(frozen=True)
class DissolveSequences(Pass):
    """Eliminate sequences and optionals whose elements are known values.

    Attributes:
        max_nodes: the most nodes that may replace a Loop or Scan with sequences.
    """

    name = "dissolve-sequences"
    max_nodes: int = 4096

    def run(self, model: ir.Model, context: Context) -> Result:
        """Eliminate sequences in the main graph and its subgraphs; types in functions are unknown."""
        result = Result(model)
        scope = Scope(model, model.graph)
        if not any(_is_sequence_operator(node) for node in scope.nodes()):
            return result
        name_nodes(scope)
        while True:  # each visit that changes anything leaves fewer readers of sequences
            walk = _Walk(self, Scope(model, model.graph), context, result)
            walk.visit(model.graph)
            if not walk.changed or not any(_is_sequence_operator(node) for node in scope.nodes()):
                break
            result.rewrites += FoldConstants().run(model, context).rewrites
        walk.clear(model.graph)
        result.skips += [skip for node, skip in walk.skips.items() if node.graph is not None]
        return result


@dataclass(frozen=True)
class _Optional:
    """The content of an optional: a tensor or a sequence; None if it is empty."""

    value: ir.Value | None


@dataclass
class _Walk:
    """One visit of all nodes: whether anything was rewritten, and the reasons for which nodes were left."""

    owner: DissolveSequences
    scope: Scope
    context: Context
    result: Result
    sequences: dict[ir.Value, Elements] = field(default_factory=dict)
    optionals: dict[ir.Value, _Optional] = field(default_factory=dict)
    changed: bool = False
    skips: dict[ir.Node, Skip] = field(default_factory=dict)

    def visit(self, graph: ir.Graph) -> None:
        """Visit the nodes of a graph, and those that replace them."""
        pending = deque(graph)
        while pending:
            node = pending.popleft()
            if not is_plain(node, self.scope) or node.domain != "":
                continue
            proposal = self._dissolve(node)
            if isinstance(proposal, Skip):
                self.skips[node] = Skip(proposal.reason, node.name or "")
            elif proposal is not None:
                if not self.context.budget.take():
                    proposal.discard()
                    return
                self.result.rewrites.append(proposal.commit(self.owner.name))
                self.changed = True
                pending.extendleft(reversed(proposal.nodes))
                continue
            for inner in subgraphs(node):
                self.visit(inner)

    def clear(self, graph: ir.Graph) -> None:
        """Remove unused sequences; a sequence that is still used is constructed from its elements by one node."""
        for node in reversed(list(graph)):
            for inner in subgraphs(node):
                self.clear(inner)
            if not node.outputs or not all(
                value in self.sequences or value in self.optionals for value in node.outputs
            ):
                continue
            if not any(map(is_used, node.outputs)):
                if self.context.budget.take():
                    remove_nodes(graph, [node])
                    self.result.rewrites.append(Rewrite((node.name or "",), note="its sequence is unused"))
            elif node.op_type in ("SequenceErase", "SequenceInsert"):
                proposal = self._propose(node, functools.partial(self._rebuild, node))
                if isinstance(proposal, Proposal) and self.context.budget.take():
                    self.result.rewrites.append(proposal.commit(self.owner.name))

    # single nodes

    def _dissolve(self, node: ir.Node) -> Proposal | Skip | None:
        """Record the elements of a node's outputs, or propose a replacement of the node."""
        match node.op_type:
            case "SequenceEmpty":
                self.sequences[node.outputs[0]] = ()
            case "SequenceConstruct":
                self.sequences[node.outputs[0]] = tuple(value for value in node.inputs if value is not None)
            case "Identity" if node.inputs and node.inputs[0] in self.sequences:
                self.sequences[node.outputs[0]] = self.sequences[node.inputs[0]]
            case "Identity" if node.inputs and node.inputs[0] in self.optionals:
                self.optionals[node.outputs[0]] = self.optionals[node.inputs[0]]
            case "Optional":
                self.optionals[node.outputs[0]] = _Optional(node.inputs[0] if node.inputs else None)
            case "OptionalHasElement" | "OptionalGetElement":
                return self._optional(node)
            case "SequenceInsert" | "SequenceErase":
                return self._edit_sequence(node)
            case "SplitToSequence":
                return self._propose(node, lambda edit: split_to_sequence(node, edit))
            case "SequenceAt" | "SequenceLength" | "ConcatFromSequence" if node.inputs[0] in self.sequences:
                elements = self.sequences[node.inputs[0]]
                read: Mapping[str, Callable[[ir.Node, Elements, Edit], Replacement]] = {
                    "SequenceAt": sequence_at,
                    "SequenceLength": sequence_length,
                    "ConcatFromSequence": concat_from_sequence,
                }
                return self._propose(node, lambda edit: read[node.op_type](node, elements, edit))
            case "SequenceMap" if node.inputs[0] in self.sequences:
                return self._propose(node, lambda edit: self._map(node, edit))
            case "Loop":
                return self._unroll(node, UnrollLoop(max_nodes=self.owner.max_nodes))
            case "Scan":
                return self._unroll(node, UnrollScan(max_nodes=self.owner.max_nodes))
        return None

    def _propose(self, node: ir.Node, make: Callable[[Edit], Replacement]) -> Proposal | Skip | None:
        """Return the replacement that ``make`` builds."""
        rule = rewrite(node.op_type, tensors_only=False)(lambda _node, edit: make(edit))
        return rule.propose(node, self.scope)

    def _optional(self, node: ir.Node) -> Proposal | Skip | None:
        value = node.inputs[0] if node.inputs else None
        held = self._held(value)
        if held is None:
            return None
        if node.op_type == "OptionalHasElement":
            return self._propose(node, lambda edit: edit.constant(np.array(held.value is not None)))
        if held.value is None:
            return Skip("the optional is empty")
        return self._propose(node, lambda edit: held.value)

    def _held(self, value: ir.Value | None) -> _Optional | None:
        """Return the content of an optional; a tensor or a sequence, which may be declared optional, is its own."""
        if value is None:
            return _Optional(None)
        if value in self.optionals:
            return self.optionals[value]
        if value in self.sequences or isinstance(value.type, (ir.TensorType, ir.SequenceType)):
            return _Optional(value)
        return None

    def _edit_sequence(self, node: ir.Node) -> Skip | None:
        """Record the elements of SequenceInsert or SequenceErase."""
        elements = self.sequences.get(node.inputs[0])  # type: ignore[arg-type]
        if elements is None:
            return None
        inserts = node.op_type == "SequenceInsert"
        place = node.inputs[2 if inserts else 1] if len(node.inputs) > (2 if inserts else 1) else None
        position = len(elements) if inserts else len(elements) - 1
        if place is not None:
            known = ints(self.scope.constant(place))
            if known is None or len(known) != 1:
                return Skip("the position is not constant")
            position = known[0] + len(elements) if known[0] < 0 else known[0]
        if not 0 <= position < len(elements) + inserts:
            return Skip(f"the position is out of range for a sequence of {len(elements)}")
        new = (node.inputs[1],) if inserts and node.inputs[1] is not None else ()
        self.sequences[node.outputs[0]] = (*elements[:position], *new, *elements[position + (not inserts) :])
        return None

    def _map(self, node: ir.Node, edit: Edit) -> Replacement:
        """Replace SequenceMap by a copy of its body for each element of the first sequence."""
        graph = node.attributes["body"].as_graph()
        require_copyable(graph, len(node.inputs), len(node.outputs))
        operands: list[Elements | ir.Value] = []
        for value in node.inputs:
            if value is None or (isinstance(value.type, ir.SequenceType) and value not in self.sequences):
                return Skip("the elements of a sequence are unknown")
            operands.append(self.sequences.get(value, value))
        count = len(operands[0])  # type: ignore[arg-type]
        if any(isinstance(operand, tuple) and len(operand) < count for operand in operands):
            return Skip("the sequences have different lengths")
        body, results = Body(graph, edit), []
        for turn in range(count):
            arguments = [operand[turn] if isinstance(operand, tuple) else operand for operand in operands]
            results.append(body.copy(arguments, str(turn)))
        outputs = []
        for index, value in enumerate(graph.outputs):
            outputs.append(construct_sequence([result[index] for result in results], value.dtype, edit))
        return outputs

    def _rebuild(self, node: ir.Node, edit: Edit) -> Replacement:
        kind = node.outputs[0].type
        return construct_sequence(self.sequences[node.outputs[0]], kind.dtype if kind is not None else None, edit)

    def _unroll(self, node: ir.Node, rule: NodeRewrite) -> Proposal | Skip | None:
        """Unroll a node with sequences, all of which are known."""
        unknown = [
            value
            for value in operands_of(node)
            if isinstance(value.type, (ir.SequenceType, ir.OptionalType))
            and value not in self.sequences
            and value not in self.optionals
        ]
        if unknown or not any(_is_sequence_operator(inner) for inner in with_nested([node]) if inner is not node):
            return None
        return rule.propose(node, self.scope)


def _is_sequence_operator(node: ir.Node) -> bool:
    return node.op_type in _OPERATORS and node.domain == ""
