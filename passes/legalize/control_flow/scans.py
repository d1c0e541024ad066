"""Unroll Scan: its number of iterations is the size of the scanned axis.

    s, o = Scan(s0, x: [3, …]){ (s, x) → (f(s, x), g(s, x)) }
        →  x0, x1, x2 = Split(x);  s1 = f(s0, x0); s2 = f(s1, x1); s = f(s2, x2)
           o = Concat(g(s0, x0), g(s1, x1), g(s2, x2)), each with a new axis

In opset 8 there is a leading batch axis. Each batch element is scanned separately up to its sequence length; scan
outputs beyond that length, which are undefined, are zero.

Skips: unknown sizes; more than ``max-nodes`` nodes; scan outputs of unknown shape without iterations.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir

from passes.builders.subgraph_copies import Body, empty_stack, stack, unsupported_reason
from passes.graphs.scopes import Scope
from passes.graphs.tensors import ints
from passes.rewriting.base import Skip
from passes.rewriting.edit import Edit
from passes.rewriting.rewrite import Match, NodeContext, NodeRewrite


@dataclass(frozen=True)
class _Scan(Match):
    """A Scan with attributes as in opset 9 and later.

    Attributes:
        body: its subgraph; inputs: states, then an element of each scanned input.
        states: the initial states.
        scanned: the scanned inputs.
        iterations: the number of iterations.
        axes: the scanned axis of each scanned input; non-negative.
        backward: whether each scanned input is scanned in reverse.
        output_axes: the new axis of each scan output.
        output_backward: whether each scan output is reversed.
    """

    body: ir.Graph
    states: tuple[ir.Value, ...]
    scanned: tuple[ir.Value, ...]
    iterations: int
    axes: tuple[int, ...]
    backward: tuple[bool, ...]
    output_axes: tuple[int, ...]
    output_backward: tuple[bool, ...]


@dataclass(frozen=True)
class UnrollScan(NodeRewrite[_Scan]):
    """Unroll a Scan.

    Attributes:
        max_nodes: the most nodes that may replace it.
    """

    name = "unroll-scan"
    operators = frozenset({("", "Scan")})
    tensors_only = False
    max_nodes: int = 4096

    def match(self, node: ir.Node, context: NodeContext) -> _Scan | Skip | None:
        """Read the scanned inputs, their axes and directions, and the number of iterations."""
        scope = context.scope
        if "body" not in node.attributes:
            return None
        body = node.attributes["body"].as_graph()
        first = 1 if scope.opset() < 9 else 0
        inputs = [value for value in node.inputs[first:] if value is not None]
        count = node.attributes.get_int("num_scan_inputs", 0)
        states, scanned = inputs[: len(inputs) - count], inputs[len(inputs) - count :]
        problem = unsupported_reason(body, len(node.inputs) - first, len(node.outputs))
        if problem is not None or not scanned or len(inputs) != len(node.inputs) - first:
            return Skip(problem or "it is not valid: an input is omitted, or there is no scanned input")
        shapes = [scope.shape(value) for value in scanned]
        if None in shapes:
            return Skip("the shape of a scanned input is unknown")
        ranks = [len(shape) for shape in shapes if shape is not None]
        outputs = len(node.outputs) - len(states)
        axes = [1] * count if first else list(node.attributes.get_ints("scan_input_axes", [0] * count))
        axes = [axis + rank if axis < 0 else axis for axis, rank in zip(axes, ranks, strict=True)]
        sizes = {shape[axis] for shape, axis in zip(shapes, axes, strict=True) if shape is not None}
        iterations = {size for size in sizes if isinstance(size, int)}
        if len(iterations) != 1:
            return Skip("the size of a scanned axis is unknown: freeze its shape")
        directions = node.attributes.get_ints("directions" if first else "scan_input_directions", [0] * count)
        return _Scan(
            node,
            body,
            tuple(states),
            tuple(scanned),
            iterations.pop(),
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
        parts = [
            _parts(value, axis, match.iterations, body) for value, axis in zip(match.scanned, match.axes, strict=True)
        ]
        made = self._iterate(match, match.states, parts, body, "")
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
                return _no_iterations(element)
            outputs.append(whole)
        return outputs

    def _batch(self, match: _Scan, body: Body) -> Sequence[ir.Value | None] | Skip:
        """The replacement of a Scan of opset 8."""
        lengths = self._lengths(match, body.edit.scope)
        if isinstance(lengths, Skip):
            return lengths
        states: list[list[ir.Value]] = [[] for _ in match.states]
        scans: list[list[ir.Value]] = [[] for _ in match.output_axes]
        batches = [[_parts(value, 0, len(lengths), body) for value in each] for each in (match.states, match.scanned)]
        for batch, length in enumerate(lengths):
            first, whole = ([parts[batch] for parts in each] for each in batches)
            made = self._iterate(
                match, first, [_parts(value, 0, match.iterations, body)[:length] for value in whole], body, f"{batch}/"
            )
            if isinstance(made, Skip):
                return made
            for each, value in zip(states, made[0], strict=True):
                each.append(value)
            for each, values, element in zip(scans, made[1], match.body.outputs[len(states) :], strict=True):
                if length < match.iterations:
                    shape = element.shape if not values else body.edit.scope.shape(values[0])
                    dtype = element.dtype
                    if shape is None or not shape.is_static() or dtype is None:
                        return _no_iterations(element)
                    zero = body.constant(ir.Tensor(np.zeros(shape.numpy(), dtype.numpy()), dtype=dtype))
                    values = [*values, *[zero] * (match.iterations - length)]
                each.append(stack(body, values))
        return [stack(body, values) for values in (*states, *scans)]

    def _lengths(self, match: _Scan, scope: Scope) -> list[int] | Skip:
        """The sequence length of each batch element."""
        size = next((shape[0] for value in match.scanned if (shape := scope.shape(value)) is not None), None)
        if not isinstance(size, int) or not size or not match.iterations:
            return Skip("the size of its batch is unknown, or its inputs are empty")
        given = match.node.inputs[0]
        if given is None:
            return [match.iterations] * size
        lengths = ints(scope.constant(given))
        if lengths is None:
            return Skip("the lengths of its sequences are not constant: freeze them with --freeze NAME=VALUE")
        if any(match.backward) and min(lengths) < match.iterations:
            return Skip("the start of a shorter sequence that is scanned backward is undefined")
        return lengths

    def _iterate(
        self,
        match: _Scan,
        states: Sequence[ir.Value],
        parts: Sequence[Sequence[ir.Value]],
        body: Body,
        label: str,
    ) -> tuple[list[ir.Value], list[list[ir.Value]]] | Skip:
        """The final states, and the elements of each scan output."""
        carried = list(states)
        elements: list[list[ir.Value]] = [[] for _ in match.output_axes]
        ordered = [values[::-1] if back else values for values, back in zip(parts, match.backward, strict=True)]
        for iteration, given in enumerate(zip(*ordered, strict=True)):
            if max(len(body.edit.nodes), iteration) >= self.max_nodes:
                return Skip(f"its replacement has more than {self.max_nodes} nodes")
            results = body.copy([*carried, *given], f"{label}{iteration}")
            carried = results[: len(carried)]
            for values, value in zip(elements, results[len(carried) :], strict=True):
                values.append(value)
        return carried, elements


def _parts(value: ir.Value, axis: int, count: int, body: Body) -> list[ir.Value]:
    """The slices of a value along an axis, without that axis."""
    edit, tensor = body.edit, body.known(value)
    if tensor is not None and tensor.nbytes <= 2**16:
        return [body.constant(ir.Tensor(each, dtype=tensor.dtype)) for each in np.moveaxis(tensor.numpy(), axis, 0)]
    axes = body.constant(np.array([axis]))
    if count <= 1:
        return [edit.op("Squeeze", [value, axes]) for _ in range(count)]
    sizes = body.constant(np.ones(count, np.int64))
    split = edit.node("Split", [value, sizes], {"axis": axis}, outputs=count)
    return [edit.op("Squeeze", [part, axes]) for part in split.outputs]


def _no_iterations(element: ir.Value) -> Skip:
    return Skip(f"it has no iterations, and the shape of {element.name} is unknown")


RULES: tuple[NodeRewrite[Any], ...] = (UnrollScan(),)
