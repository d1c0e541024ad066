"""Unroll a Scan, whose number of turns is the size of what it scans.

    s, o = Scan(s0, x: [3, …]){ (s, x) → (f(s, x), g(s, x)) }
        →  x0, x1, x2 = Split(x);  s1 = f(s0, x0); s2 = f(s1, x1); s = f(s2, x2)
           o = Concat(g(s0, x0), g(s1, x1), g(s2, x2)), each with a new axis

Opset 8 has a batch in front: each of its elements is scanned by itself, possibly not to the end. What it would leave
undefined there is zero.

Skips: sizes that are not known, more nodes than ``max-nodes``, and scan outputs of no turns whose shape is unknown.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir

from passes.build.subgraph_copies import Body, empty_stack, stack, unsupported_reason
from passes.core.base import Skip
from passes.core.edit import Edit
from passes.core.graphs import Scope, ints
from passes.core.matching import is_plain
from passes.core.rewrite import Match, NodeContext, NodeRewrite


@dataclass(frozen=True)
class _Scan(Match):
    """A Scan, with attributes as they are since opset 9.

    Attributes:
        body: its subgraph, whose inputs are the states and an element of each scanned input.
        states: what the first turn takes.
        scanned: what is taken apart.
        turns: into how many parts.
        axes: along which axes, by scanned input; not negative.
        backward: whether from the end to the beginning, by scanned input.
        output_axes: the new axis of each scan output.
        output_backward: whether the last turn's element comes first, by scan output.
    """

    body: ir.Graph
    states: tuple[ir.Value, ...]
    scanned: tuple[ir.Value, ...]
    turns: int
    axes: tuple[int, ...]
    backward: tuple[bool, ...]
    output_axes: tuple[int, ...]
    output_backward: tuple[bool, ...]


@dataclass(frozen=True)
class UnrollScan(NodeRewrite[_Scan]):
    """Unroll a Scan.

    Attributes:
        max_nodes: how many nodes it may become.
    """

    name = "unroll-scan"
    operators = frozenset({("", "Scan")})
    tensors_only = False
    max_nodes: int = 4096

    def match(self, node: ir.Node, context: NodeContext) -> _Scan | Skip | None:
        """Read what is scanned, how, and how often."""
        scope = context.scope
        if not is_plain(node, scope) or "body" not in node.attributes:
            return None
        body = node.attributes["body"].as_graph()
        first = 1 if scope.opset() < 9 else 0
        inputs = [value for value in node.inputs[first:] if value is not None]
        count = node.attributes.get_int("num_scan_inputs", 0)
        states, scanned = inputs[: len(inputs) - count], inputs[len(inputs) - count :]
        problem = unsupported_reason(body, len(node.inputs) - first, len(node.outputs))
        if problem is not None or not scanned or len(inputs) != len(node.inputs) - first:
            return Skip(problem or "it is not valid: an input is left out, or nothing is scanned")
        shapes = [scope.shape(value) for value in scanned]
        if None in shapes:
            return Skip("the shape of what it scans is unknown")
        ranks = [len(shape) for shape in shapes if shape is not None]
        outputs = len(node.outputs) - len(states)
        axes = [1] * count if first else list(node.attributes.get_ints("scan_input_axes", [0] * count))
        axes = [axis + rank if axis < 0 else axis for axis, rank in zip(axes, ranks, strict=True)]
        sizes = {shape[axis] for shape, axis in zip(shapes, axes, strict=True) if shape is not None}
        turns = {size for size in sizes if isinstance(size, int)}
        if len(turns) != 1:
            return Skip("the size of what it scans is unknown: freeze its shape")
        directions = node.attributes.get_ints("directions" if first else "scan_input_directions", [0] * count)
        return _Scan(
            node,
            body,
            tuple(states),
            tuple(scanned),
            turns.pop(),
            tuple(axes),
            tuple(map(bool, directions)),
            tuple([0] * outputs if first else node.attributes.get_ints("scan_output_axes", [0] * outputs)),
            tuple(map(bool, [] if first else node.attributes.get_ints("scan_output_directions", [])))
            or (False,) * outputs,
        )

    def rewrite(self, match: _Scan, edit: Edit) -> Sequence[ir.Value | None] | Skip:
        """One copy of the body for each element."""
        body = Body(match.body, edit)
        if edit.scope.opset() < 9:
            return self._batch(match, body)
        parts = [_parts(value, axis, match.turns, body) for value, axis in zip(match.scanned, match.axes, strict=True)]
        made = self._turns(match, match.states, parts, body, "")
        if isinstance(made, Skip):
            return made
        states, elements = made
        outputs: list[ir.Value | None] = [*states]
        given = zip(elements, match.output_axes, match.output_backward, match.body.outputs[len(states) :], strict=True)
        for values, axis, backward, element in given:
            whole = (
                stack(body, values[::-1] if backward else values, axis) if values else empty_stack(body, element, axis)
            )
            if whole is None:
                return _no_turns(element)
            outputs.append(whole)
        return outputs

    def _batch(self, match: _Scan, body: Body) -> Sequence[ir.Value | None] | Skip:
        """The form of opset 8, batch by batch."""
        lengths = self._lengths(match, body.edit.scope)
        if isinstance(lengths, Skip):
            return lengths
        states: list[list[ir.Value]] = [[] for _ in match.states]
        scans: list[list[ir.Value]] = [[] for _ in match.output_axes]
        batches = [[_parts(value, 0, len(lengths), body) for value in each] for each in (match.states, match.scanned)]
        for batch, length in enumerate(lengths):
            first, whole = ([parts[batch] for parts in each] for each in batches)
            made = self._turns(
                match, first, [_parts(value, 0, match.turns, body)[:length] for value in whole], body, f"{batch}/"
            )
            if isinstance(made, Skip):
                return made
            for each, value in zip(states, made[0], strict=True):
                each.append(value)
            for each, values, element in zip(scans, made[1], match.body.outputs[len(states) :], strict=True):
                if length < match.turns:
                    shape = element.shape if not values else body.edit.scope.shape(values[0])
                    dtype = element.dtype
                    if shape is None or not shape.is_static() or dtype is None:
                        return _no_turns(element)
                    zero = body.constant(ir.Tensor(np.zeros(shape.numpy(), dtype.numpy()), dtype=dtype))
                    values = [*values, *[zero] * (match.turns - length)]
                each.append(stack(body, values))
        return [stack(body, values) for values in (*states, *scans)]

    def _lengths(self, match: _Scan, scope: Scope) -> list[int] | Skip:
        """How far each element of the batch is scanned."""
        size = next((shape[0] for value in match.scanned if (shape := scope.shape(value)) is not None), None)
        if not isinstance(size, int) or not size or not match.turns:
            return Skip("the size of its batch is unknown, or there is nothing to scan")
        given = match.node.inputs[0]
        if given is None:
            return [match.turns] * size
        lengths = ints(scope.constant(given))
        if lengths is None:
            return Skip("the lengths of its sequences are not constant: freeze them with --freeze NAME=VALUE")
        if any(match.backward) and min(lengths) < match.turns:
            return Skip("where it begins in a sequence that is shorter, scanned backward, is not defined")
        return lengths

    def _turns(
        self,
        match: _Scan,
        states: Sequence[ir.Value],
        parts: Sequence[Sequence[ir.Value]],
        body: Body,
        label: str,
    ) -> tuple[list[ir.Value], list[list[ir.Value]]] | Skip:
        """The last states, and the elements of each scan output."""
        carried = list(states)
        elements: list[list[ir.Value]] = [[] for _ in match.output_axes]
        ordered = [values[::-1] if back else values for values, back in zip(parts, match.backward, strict=True)]
        for turn, given in enumerate(zip(*ordered, strict=True)):
            if max(len(body.edit.nodes), turn) >= self.max_nodes:
                return Skip(f"it would become more than {self.max_nodes} nodes")
            results = body.copy([*carried, *given], f"{label}{turn}")
            carried = results[: len(carried)]
            for values, value in zip(elements, results[len(carried) :], strict=True):
                values.append(value)
        return carried, elements


def _parts(value: ir.Value, axis: int, count: int, body: Body) -> list[ir.Value]:
    """What a value consists of along an axis, without it."""
    edit, tensor = body.edit, body.known(value)
    if tensor is not None and tensor.nbytes <= 2**16:
        return [body.constant(ir.Tensor(each, dtype=tensor.dtype)) for each in np.moveaxis(tensor.numpy(), axis, 0)]
    axes = body.constant(np.array([axis]))
    if count <= 1:
        return [edit.op("Squeeze", [value, axes]) for _ in range(count)]
    sizes = body.constant(np.ones(count, np.int64))
    split = edit.node("Split", [value, sizes], {"axis": axis}, outputs=count)
    return [edit.op("Squeeze", [part, axes]) for part in split.outputs]


def _no_turns(element: ir.Value) -> Skip:
    return Skip(f"it makes no turn, and the shape of {element.name} is unknown")


RULES: tuple[NodeRewrite[Any], ...] = (UnrollScan(),)
