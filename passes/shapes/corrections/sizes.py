"""Operators of whose results ONNX's inference finds other sizes than ONNX Runtime computes.

x: [1, 1, 10]   y = Resize(x, scales = [1, 1, .7])   →  ONNX says [1, 1, 6], and the product of float32 is 7
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from passes.graphs.limits import MAX_ELEMENTS
from passes.shapes.corrections.nodes import Dim, Node, dims, subgraphs
from passes.shapes.corrections.protocol import resizes


@resizes("Resize", "Upsample")
def _resized(node: Node, _index: int, inferred: list[Dim]) -> list[Dim]:
    """ONNX Runtime multiplies in float32, and ONNX in float64."""
    data, given = node.dims(0) or [], node.constant(1 if len(node.message.input) == 2 else 2)
    scales = node.attribute("scales").floats if given is None else given
    axes = node.attribute("axes").ints or range(len(inferred))
    right = list(inferred)
    for axis, scale in zip(axes, scales, strict=False):
        size = data[axis] if len(data) == len(inferred) and -len(data) <= axis < len(data) else None
        if isinstance(size, int) and isinstance(inferred[axis], int):
            product = np.float32(size) * np.float32(scale)
            right[axis] = int(product) if 0 <= product < MAX_ELEMENTS else right[axis]
    return right


@resizes("AveragePool", "LpPool", "MaxPool")
def _pooled(node: Node, _index: int, inferred: list[Dim]) -> list[Dim]:
    """No window begins in the padding at the end; if the padding follows from dilated windows, nothing is known."""
    data, count = node.dims(0), len(inferred) - 2
    kernel, strides, dilations = (
        list(node.attribute(name).ints) or [1] * count for name in ("kernel_shape", "strides", "dilations")
    )
    if _is_same(node):
        return inferred if dilations == [1] * count else _open_axes(inferred)
    pads = list(node.attribute("pads").ints) or [0] * 2 * count
    lengths = len(data or ()) - 2, len(kernel), len(strides), len(dilations), len(pads) // 2
    if node.attribute("ceil_mode").i != 1 or data is None or lengths != (count,) * 5 or min(strides, default=1) < 1:
        return inferred
    right = inferred[:2]
    for axis, (size, other) in enumerate(zip(data[2:], inferred[2:], strict=True)):
        if not isinstance(size, int):
            right.append(None if isinstance(other, int) else other)
            continue
        begin, step, length = pads[axis], strides[axis], dilations[axis] * (kernel[axis] - 1) + 1
        windows = -(-(size + begin + pads[axis + count] - length) // step) + 1
        right.append(windows - 1 if (windows - 1) * step >= size + begin else windows)
    return right


@resizes("ConvTranspose")
def _transposed(node: Node, _index: int, inferred: list[Dim]) -> list[Dim] | None:
    """If the padding is chosen for a size, ONNX adds the padding of the output to that size; it stops at a size that
    is less than that of the input."""
    if node.attribute("output_shape").ints and len(inferred) != len(node.dims(0) or ()):
        return None
    is_added = _is_same(node) and any(node.attribute("output_padding").ints)
    return _open_axes(inferred) if is_added else inferred


def _is_same(node: Node) -> bool:
    """Return whether the padding is chosen such that the sizes are those of the input, divided by the strides."""
    return node.attribute("auto_pad").s in (b"SAME_UPPER", b"SAME_LOWER")


def _open_axes(inferred: list[Dim]) -> list[Dim]:
    """Return the dimensions with only the batch and the channels known."""
    return [*inferred[:2], *[None] * len(inferred[2:])]


@resizes("Einsum")
def _summed(node: Node, _index: int, inferred: list[Dim]) -> list[Dim]:
    """ONNX Runtime lets a size of 1 stand for any other of the same letter, and ONNX takes the first."""
    equation = node.attribute("equation").s.decode(errors="replace").replace(" ", "")
    terms, arrow, result = equation.partition("->")
    sizes: dict[str, set[Dim]] = {}
    for index, term in enumerate(terms.split(",")):
        for letter, size in _lettered(term, node.dims(index) or []):
            sizes.setdefault(letter, set()).add(size)
    right = list(inferred)
    for letter, axis in _lettered(result, range(len(inferred))) if arrow else ():
        if 1 in sizes.get(letter, ()) and len(sizes[letter]) > 1:
            right[int(axis or 0)] = None
    return right


def _lettered(term: str, sizes: Sequence[Dim]) -> Iterator[tuple[str, Dim]]:
    """Yield the letters of a term of an Einsum, each with its size."""
    head, _, tail = term.partition("...")
    yield from zip(head, sizes, strict=False)
    yield from zip(reversed(tail), reversed(sizes), strict=False)


@resizes("Attention")
def _attended(node: Node, _index: int, inferred: list[Dim]) -> list[Dim]:
    """ONNX takes open sizes for 0."""
    for index, name in enumerate(node.message.input):
        given = node.dims(index)
        if name and (given is None or any(not isinstance(size, int) for size in given)):
            return [None if size == 0 else size for size in inferred]
    return inferred


@resizes("PRelu")
def _activated(node: Node, _index: int, inferred: list[Dim]) -> list[Dim]:
    """ONNX Runtime also repeats the data for a longer slope."""
    right = list(inferred)
    for axis, size in enumerate(reversed((node.dims(1) or [])[-len(inferred) :]), start=1):
        if right[-axis] == 1 and size != 1:
            right[-axis] = None
    return right


@resizes("If", last_opset=10)
def _chosen(node: Node, index: int, _inferred: list[Dim]) -> list[Dim] | None:
    """ONNX takes a shape, and sizes, that only one branch has; later opsets take what both have in common."""
    outputs = [graph.output[index].type for graph in subgraphs(node.message) if index < len(graph.output)]
    branches = [dims(kind) for kind in outputs]
    if len(branches) != 2 or branches[0] is None or branches[1] is None or len(branches[0]) != len(branches[1]):
        return None
    return [size if size == other else None for size, other in zip(*branches, strict=True)]
