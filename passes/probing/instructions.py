"""The number of instructions that MIGraphX makes of nodes, from which the time to compile them follows.

    Add(x, c)          →  3: add, the literal c, and a broadcast if it has another shape
    LSTM, 100 steps    →  2,600: recurrent operators are unrolled when they are compiled
    GridSample         →  nearest: three for each element, one for each point, and 50
    Loop, If           →  their bodies, once

Measured on MIGraphX 2.14 and 2.16: chains of operators, networks, and recurrent operators of 50, 100 and 200 steps.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import onnx_ir as ir

from passes.graphs.tensors import constant_of
from passes.graphs.traversal import with_nested
from passes.operators import operators

_A_STEP = {"LSTM": 26, "GRU": 32, "RNN": 10}
"""The instructions of one step of one direction."""


def instructions(nodes: Iterable[ir.Node]) -> int:
    """Return the instructions that nodes become, with their subgraphs, and the constants that they use."""
    inside = [node for node in with_nested(nodes) if node.op_type != "Constant"]
    operands = {value for node in inside for value in node.inputs if value is not None}
    literals = sum(value.const_value is not None or _is_constant(value.producer()) for value in operands)
    return literals + sum(map(of_node, inside))


def of_node(node: ir.Node) -> int:
    """Return the instructions of a node itself, without its operands and its subgraphs."""
    return 1 + _broadcasts(node) + steps(node) * _A_STEP.get(node.op_type, 0) + _sampled(node)


def steps(node: ir.Node) -> int:
    """Return the steps that a recurrent operator is unrolled to, in all directions; 0 for other operators."""
    operand = node.inputs[0] if node.op_type in _A_STEP and node.inputs else None
    if operand is None or operand.shape is None or operand.shape.rank() != 3:
        return 0
    length = operand.shape[node.attributes.get_int("layout", 0)]
    directions = 2 if node.attributes.get_string("direction", "forward") == "bidirectional" else 1
    return directions * length if isinstance(length, int) else 0


def _sampled(node: ir.Node) -> int:
    """Return the instructions of a GridSample that takes the nearest element; 0 for other nodes."""
    result = node.outputs[0].shape if node.op_type == "GridSample" else None
    if result is None or not result.is_static() or node.attributes.get_string("mode", "linear") != "nearest":
        return 0
    if result.rank() < 2:  # declared wrongly
        return 0
    batch, channels, *sizes = result.numpy()
    return batch * math.prod(sizes) * (3 * channels + 1) + 50


def _is_constant(producer: ir.Node | None) -> bool:
    return producer is not None and constant_of(producer) is not None


def _broadcasts(node: ir.Node) -> int:
    """Return the number of operands that MIGraphX broadcasts to the shape of the result."""
    if node.op_type not in operators("broadcasts"):
        return 0
    result = node.outputs[0].shape
    return sum(value.shape != result for value in node.inputs if value is not None and value.shape is not None)
