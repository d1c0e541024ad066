"""The ways of values into the bodies of Loop, Scan and SequenceMap, and from one iteration to the next."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import onnx_ir as ir

from passes.graphs.scopes import Scope

_TURN = 2
"""The inputs of a Loop's body before the carried ones: the number of the iteration, and the condition."""


@dataclass(frozen=True)
class Parameter:
    """An input of a body that a value is passed to.

    Attributes:
        source: what is passed in the first iteration; of a scanned value, the whole of it.
        removed: the axes of the source that the input does not have.
        result: what is passed in the next iteration, if the input is carried.
        final: the output of the node that is the last of these values, if the input is carried.
    """

    value: ir.Value
    source: ir.Value | None
    removed: tuple[int, ...] = ()
    result: ir.Value | None = None
    final: ir.Value | None = None


def body_of(node: ir.Node) -> ir.Graph | None:
    """Return the body of a Loop, Scan or SequenceMap; None for other nodes."""
    if node.domain != "" or node.op_type not in ("Loop", "Scan", "SequenceMap"):
        return None
    body = node.attributes.get("body")
    return None if body is None or body.is_ref() else body.as_graph()


def carried_outputs(node: ir.Node) -> tuple[ir.Value, ...]:
    """Return the outputs of a Loop or Scan that are the last of what it carries."""
    body = body_of(node)
    return () if body is None else tuple(node.outputs[: _carried_count(node, body)])


def parameters(scope: Scope) -> Iterator[Parameter]:
    """Yield the inputs of all bodies of a scope, those of outer bodies first."""
    for node in scope.nodes():
        body = body_of(node)
        if body is None:
            continue
        count = _carried_count(node, body)
        batched = node.op_type == "Scan" and scope.opset() < 9
        given = node.inputs[1 if batched else 0 :]
        if node.op_type == "Loop":
            pairs, results = list(zip(body.inputs[_TURN:], given[_TURN:], strict=False)), body.outputs[1:]
        else:
            pairs, results = list(zip(body.inputs, given, strict=False)), body.outputs
        for index, (value, source) in enumerate(pairs):
            lead = (0,) if batched else ()
            if index >= count:
                scanned = node.op_type == "Scan"
                yield Parameter(value, source, (*lead, _scanned_axis(node, index - count, batched)) if scanned else ())
            elif index < min(len(results), len(node.outputs)):
                yield Parameter(value, source, lead, results[index], node.outputs[index])


def _carried_count(node: ir.Node, body: ir.Graph) -> int:
    if node.op_type == "SequenceMap":
        return 0
    others = _TURN if node.op_type == "Loop" else node.attributes.get_int("num_scan_inputs", 0)
    return max(len(body.inputs) - others, 0)


def _scanned_axis(node: ir.Node, index: int, batched: bool) -> int:
    axes = node.attributes.get_ints("scan_input_axes", [])
    return 1 if batched else axes[index] if index < len(axes) else 0
