"""Nodes that compute little, whatever the values: they may run in this process, without limits of time and memory.

A file of a few hundred bytes can ask for terabytes (Expand, Range, ConstantOfShape), or for ever (Loop). Bounded are
operators of ONNX's own domain that have no subgraphs and are not known to crash ONNX Runtime, whose work follows from
the sizes of their inputs; and those that make more of it, if the values that decide on that are known. Of an
integer division the divisor must be known: the processor stops the process for 0, and for the least number by −1.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import onnx_ir as ir

from passes.operators import operators

Tensors = Mapping[ir.Value, ir.TensorProtocol]

_MOST = 2**22
"""The most elements of a result, unless the given constants are larger."""
_MOST_TOGETHER = 2**26
"""Likewise of all results."""
_PRODUCTS_A_RESULT = 32
"""The number of multiply-adds that take as long as it takes to make an element of a result."""
_AXES = 64
"""More than any tensor has."""


def is_bounded_kind(node: ir.Node) -> bool:
    """Return whether the work of a node is bounded for some inputs."""
    return node.domain == "" and node.op_type in operators("bounded", "broadcasts") | _EXACT.keys() | {"Gather"}


def unbounded(nodes: Sequence[ir.Node], known: Tensors) -> list[ir.Value] | None:
    """Return the results of bounded nodes that must be known to tell whether the others are bounded.

    Args:
        nodes: in topological order.
        known: values from outside.

    Returns:
        None if the others are not; nothing if all are.
    """
    if not all(map(is_bounded_kind, nodes)):
        return None
    sizes: dict[ir.Value, int] = {}
    shapes: dict[ir.Value, Sequence[int]] = {}
    given = 0
    for value in {value for node in nodes for value in node.inputs if value is not None}:
        if (tensor := known.get(value)) is not None:
            if tensor.dtype == ir.DataType.STRING:
                return None
            sizes[value], shapes[value] = tensor.size, tensor.shape.numpy()
            given += tensor.size
    most, left = max(_MOST, given), max(_MOST_TOGETHER, 4 * given)
    needed: dict[ir.Value, None] = {}
    for node in nodes:
        inputs = [value for value in node.inputs if value is not None]
        if any(value not in sizes for value in inputs):  # of a node that waits for another
            continue
        size = _size(node, sizes, shapes, known)
        if size is None or size > most:
            unknown = [value for value in inputs if value not in known]
            if not unknown:
                return None
            makers = [value.producer() for value in unknown]
            needed |= {output: None for maker in makers if maker is not None for output in maker.outputs if output.name}
            continue
        left -= size
        sizes |= dict.fromkeys(node.outputs, size)
        if node.op_type in operators("broadcasts") and all(value in shapes for value in inputs):
            shapes[node.outputs[0]] = _broadcast([shapes[value] for value in inputs])
    return None if left < 0 else list(needed)


def _size(
    node: ir.Node, sizes: Mapping[ir.Value, int], shapes: Mapping[ir.Value, Sequence[int]], known: Tensors
) -> int | None:
    """Return the most elements of a result of a node; None if that is unknown, or more of its inputs must be known."""
    given = [None if value is None else known.get(value) for value in node.inputs]
    if node.op_type in _EXACT:
        if any(tensor is None for tensor, value in zip(given, node.inputs, strict=True) if value is not None):
            return None
        try:
            return _EXACT[node.op_type](node, [tensor for tensor in given if tensor is not None])
        except (IndexError, ValueError, OverflowError, TypeError, ZeroDivisionError):  # an invalid node
            return None
    counts = [sizes[value] for value in node.inputs if value is not None]
    if node.op_type in ("Div", "Mod") and not _is_safe_divisor(given[-1]):
        return None
    if node.op_type == "Cast" and node.attributes.get_int("to", 0) == ir.DataType.STRING:
        return None
    if node.op_type in operators("bounded"):
        return sum(counts) + _AXES
    operands = [shapes.get(value) for value in node.inputs if value is not None]
    known_shapes = [shape for shape in operands if shape is not None]
    if len(known_shapes) < len(given):
        return math.prod(counts)
    if node.op_type == "Gather":
        axis = node.attributes.get_int("axis", 0)
        return counts[1] * math.prod(
            size for at, size in enumerate(known_shapes[0]) if at != axis % len(known_shapes[0])
        )
    return math.prod(_broadcast(known_shapes))


def _is_safe_divisor(divisor: ir.TensorProtocol | None) -> bool:
    return divisor is not None and (
        divisor.dtype.is_floating_point() or not bool(np.isin(divisor.numpy(), (0, -1)).any())
    )


def _broadcast(shapes: Sequence[Sequence[int]]) -> list[int]:
    rank = max(map(len, shapes), default=0)
    padded = [[1] * (rank - len(shape)) + [int(size) for size in shape] for shape in shapes]
    return [0 if 0 in sizes else max(sizes) for sizes in zip(*padded, strict=True)]


def _ints(tensor: ir.TensorProtocol) -> list[int]:
    return [int(number) for number in tensor.numpy().reshape(-1)]


_Given = list[ir.TensorProtocol]


def _of_range(_node: ir.Node, given: _Given) -> int:
    start, limit, step = (float(tensor.numpy().reshape(())) for tensor in given)
    return max(0, math.ceil((limit - start) / step))


def _of_pad(node: ir.Node, given: _Given) -> int | None:
    if node.attributes.get_string("mode", "constant") != "constant":
        return None
    pads = _ints(given[1]) if len(given) > 1 else [int(pad) for pad in node.attributes["pads"].as_ints()]
    return given[0].size + math.prod(size + sum(map(abs, pads)) for size in given[0].shape.numpy())


def _of_product(_node: ir.Node, given: _Given) -> int:
    left, right = given[0].shape.numpy(), given[1].shape.numpy()
    rows, columns = (left[-2] if len(left) > 1 else 1), (right[-1] if len(right) > 1 else 1)
    results = math.prod(_broadcast([left[:-2], right[:-2]])) * rows * columns
    return results + results * left[-1] // _PRODUCTS_A_RESULT


_EXACT: dict[str, Callable[[ir.Node, _Given], int | None]] = {
    "ConstantOfShape": lambda _, given: math.prod(_ints(given[0])),
    "Expand": lambda _, given: math.prod(_broadcast([given[0].shape.numpy(), _ints(given[1])])),
    "MatMul": _of_product,
    "OneHot": lambda _, given: given[0].size * _ints(given[1])[0],
    "Pad": _of_pad,
    "Range": _of_range,
    "Tile": lambda _, given: given[0].size * math.prod(_ints(given[1])),
    # of no elements, there may be many sums
    **dict.fromkeys(operators("reduces"), lambda _, given: math.prod(max(size, 1) for size in given[0].shape.numpy())),
}
"""The results of these depend on values, or on sizes of 0; from these, the elements of a result."""
