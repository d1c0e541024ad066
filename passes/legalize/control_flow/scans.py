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

import numpy as np
import onnx_ir as ir

from passes.builders.subgraph_copies import Body, empty_stack, require_copyable, stack
from passes.graphs.scopes import Scope
from passes.graphs.tensors import ints
from passes.rewriting.base import NotApplicable
from passes.rewriting.edit import Edit
from passes.rewriting.rewrite import NodeRewrite, Replacement


@dataclass(frozen=True)
class _Scan:
    """A Scan with attributes as in opset 9 and later.

    Attributes:
        body: the subgraph; its inputs are the states, then an element of each scanned input.
        axes: the scanned axis of each scanned input; non-negative.
        backward: whether each scanned input is scanned in reverse.
    """

    body: ir.Graph
    states: list[ir.Value]
    scanned: list[ir.Value]
    iterations: int
    axes: list[int]
    backward: list[bool]
    output_axes: list[int]
    output_backward: list[bool]

    @classmethod
    def of(cls, node: ir.Node, scope: Scope) -> _Scan:
        """Read a Scan."""
        is_old = scope.opset() < 9
        operands = node.inputs[1:] if is_old else node.inputs
        inputs = [value for value in operands if value is not None]
        count = node.attributes.get_int("num_scan_inputs", 0)
        if "body" not in node.attributes or not count or len(inputs) != len(operands):
            raise NotApplicable("the Scan is not valid: an input is omitted, or there is no body or scanned input")
        body = node.attributes["body"].as_graph()
        require_copyable(body, len(inputs), len(node.outputs))
        states, scanned = inputs[: len(inputs) - count], inputs[len(inputs) - count :]
        outputs = len(node.outputs) - len(states)
        if is_old:  # the first axis is that of the batch
            axes, output_axes, output_backward = [1] * count, [0] * outputs, [False] * outputs
            backward = node.attributes.get_ints("directions", [0] * count)
        else:
            axes = list(node.attributes.get_ints("scan_input_axes", [0] * count))
            backward = node.attributes.get_ints("scan_input_directions", [0] * count)
            output_axes = list(node.attributes.get_ints("scan_output_axes", [0] * outputs))
            output_backward = list(map(bool, node.attributes.get_ints("scan_output_directions", [0] * outputs)))
        sizes = set()
        for index, value in enumerate(scanned):
            shape = scope.shape(value)
            if shape is None:
                raise NotApplicable("the shape of a scanned input is unknown")
            axes[index] += len(shape) if axes[index] < 0 else 0
            sizes.add(shape[axes[index]])
        iterations = [size for size in sizes if isinstance(size, int)]
        if len(iterations) != 1:
            raise NotApplicable("the size of a scanned axis is unknown: freeze its shape")
        return cls(body, states, scanned, iterations[0], axes, list(map(bool, backward)), output_axes, output_backward)

    @property
    def elements(self) -> Sequence[ir.Value]:
        """The outputs of the body that scan outputs consist of."""
        return self.body.outputs[len(self.states) :]


@dataclass(frozen=True)
class UnrollScan(NodeRewrite):
    """Unroll a Scan.

    Attributes:
        max_nodes: the most nodes that may replace it.
    """

    name = "unroll-scan"
    operators = frozenset({("", "Scan")})
    tensors_only = False
    max_nodes: int = 4096

    def replacement(self, node: ir.Node, edit: Edit) -> Replacement:
        """Copy the body for each element."""
        scan = _Scan.of(node, edit.scope)
        body = Body(scan.body, edit)
        if edit.scope.opset() < 9:
            return self._batch(scan, _lengths(node, scan, edit.scope), body)
        parts = [
            _parts(value, axis, scan.iterations, body) for value, axis in zip(scan.scanned, scan.axes, strict=True)
        ]
        outputs, results = self._iterate(scan, scan.states, parts, body, "")
        columns = zip(results, scan.output_axes, scan.output_backward, scan.elements, strict=True)
        for values, axis, backward, element in columns:
            if values:
                outputs.append(stack(body, values[::-1] if backward else values, axis))
            else:
                outputs.append(empty_stack(body, element, axis))
        return outputs

    def _batch(self, scan: _Scan, lengths: Sequence[int], body: Body) -> list[ir.Value]:
        """Return the outputs of a Scan of opset 8, whose batch has sequences of these lengths."""
        states: list[list[ir.Value]] = [[] for _ in scan.states]
        scans: list[list[ir.Value]] = [[] for _ in scan.elements]
        initial, scanned = (
            [_parts(value, 0, len(lengths), body) for value in values] for values in (scan.states, scan.scanned)
        )
        for batch, length in enumerate(lengths):
            first = [values[batch] for values in initial]
            parts = [_parts(values[batch], 0, scan.iterations, body)[:length] for values in scanned]
            last, results = self._iterate(scan, first, parts, body, f"{batch}/")
            for column, value in zip(states, last, strict=True):
                column.append(value)
            for column, values, element in zip(scans, results, scan.elements, strict=True):
                column.append(stack(body, [*values, *_zeros(scan.iterations - length, values, element, body)]))
        return [stack(body, values) for values in (*states, *scans)]

    def _iterate(
        self, scan: _Scan, states: Sequence[ir.Value], parts: Sequence[Sequence[ir.Value]], body: Body, label: str
    ) -> tuple[list[ir.Value], list[list[ir.Value]]]:
        """Return the final states, and the elements of each scan output."""
        carried = list(states)
        elements: list[list[ir.Value]] = [[] for _ in scan.elements]
        ordered = [values[::-1] if back else values for values, back in zip(parts, scan.backward, strict=True)]
        for iteration, values in enumerate(zip(*ordered, strict=True)):
            if max(len(body.edit.nodes), iteration) >= self.max_nodes:
                raise NotApplicable(f"the replacement has more than {self.max_nodes} nodes")
            results = body.copy([*carried, *values], f"{label}{iteration}")
            carried = results[: len(carried)]
            for column, value in zip(elements, results[len(carried) :], strict=True):
                column.append(value)
        return carried, elements


unroll_scan = UnrollScan()


def _lengths(node: ir.Node, scan: _Scan, scope: Scope) -> list[int]:
    """Return the sequence length of each element of the batch of a Scan of opset 8."""
    shape = scope.shape(scan.scanned[0])
    size = shape[0] if shape is not None else None
    if not isinstance(size, int) or not size or not scan.iterations:
        raise NotApplicable("the size of the batch is unknown, or the inputs are empty")
    if node.inputs[0] is None:
        return [scan.iterations] * size
    lengths = ints(scope.constant(node.inputs[0]))
    if lengths is None:
        raise NotApplicable("the lengths of the sequences are not constant: freeze them with --freeze NAME=VALUE")
    if any(scan.backward) and min(lengths) < scan.iterations:
        raise NotApplicable("the start of a shorter sequence that is scanned backward is undefined")
    return lengths


def _zeros(count: int, values: Sequence[ir.Value], element: ir.Value, body: Body) -> list[ir.Value]:
    """Return ``count`` elements of a scan output beyond the length of a sequence, like those before, ``values``."""
    if not count:
        return []
    shape, dtype = body.edit.scope.shape(values[0]) if values else element.shape, element.dtype
    if shape is None or not shape.is_static() or dtype is None:
        raise NotApplicable(f"a sequence is shorter than others, and the shape of {element.name} is unknown")
    return [body.constant(ir.Tensor(np.zeros(shape.numpy(), dtype.numpy()), dtype=dtype))] * count


def _parts(value: ir.Value, axis: int, count: int, body: Body) -> list[ir.Value]:
    """Return the slices of a value along an axis, without that axis."""
    edit, tensor = body.edit, body.known(value)
    if tensor is not None and tensor.nbytes <= 2**16:
        return [body.constant(ir.Tensor(array, dtype=tensor.dtype)) for array in np.moveaxis(tensor.numpy(), axis, 0)]
    axes = body.constant(np.array([axis]))
    if count <= 1:
        return [edit.op("Squeeze", [value, axes]) for _ in range(count)]
    sizes = body.constant(np.ones(count, np.int64))
    split = edit.node("Split", [value, sizes], {"axis": axis}, outputs=count)
    return [edit.op("Squeeze", [part, axes]) for part in split.outputs]
