"""The estimated work of a node: multiply-adds, or elements; and both by kind, from which times can be predicted.

Products count their multiply-adds, operators that only move or describe data count 0, all others count the elements of
their largest operand or result. Unknown sizes count as 1, and the body of a loop counts once: `estimate` compares parts
of one model, and does not predict times.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import onnx_ir as ir

from passes.graphs.traversal import subgraphs, with_nested
from passes.operators import WEIGHTS, operators

Sizes = tuple[int, ...]


@dataclass(frozen=True)
class Work:
    """Work by kind.

    Attributes:
        convolved: multiply-adds of convolutions.
        multiplied: multiply-adds of other products.
        moved: elements read or written, for each window of a pooling again.
    """

    convolved: int = 0
    multiplied: int = 0
    moved: int = 0

    def __add__(self, other: Work) -> Work:
        return Work(self.convolved + other.convolved, self.multiplied + other.multiplied, self.moved + other.moved)

    def __mul__(self, times: int) -> Work:
        return Work(self.convolved * times, self.multiplied * times, self.moved * times)


def work(node: ir.Node) -> Work:
    """Return the work of one node by kind, with its subgraphs."""
    inner = sum((work(inside) for graph in subgraphs(node) for inside in graph), Work())
    if "Shape" in node.op_type or node.op_type in ("Constant", "Size"):
        return inner
    elements = sum(math.prod(_sizes(value)) for value in (*node.inputs, *node.outputs) if value is not None)
    moved = Work(moved=elements * _window(node)) + inner
    if node.op_type not in _PRODUCTS:
        return moved
    if "Conv" in node.op_type:
        return moved + Work(convolved=estimate(node) * (_TRANSPOSED if node.op_type == "ConvTranspose" else 1))
    return moved + Work(multiplied=estimate(node))


def _window(node: ir.Node) -> int:
    """Return the elements of the input under the window of a pooling operator; 1 for other operators."""
    kernel = node.attributes.get_ints("kernel_shape", ()) if node.op_type.endswith("Pool") else ()
    sizes = _sizes(node.inputs[0])[2:] if kernel else ()
    return max(math.prod(map(min, kernel, sizes)), 1)


_TRANSPOSED = 2
"""The number of multiply-adds of a convolution that take as long as one of a transposed convolution."""


def estimate(node: ir.Node) -> int:
    """Return the work of one node, with its subgraphs."""
    work: dict[ir.Node, int] = {}
    for current in reversed([*with_nested([node])]):
        inner = sum(work[part] for graph in subgraphs(current) for part in graph)
        work[current] = inner if inner or current.op_type in operators("free") else _own(current)
    return work[node]


def has_known_work(node: ir.Node) -> bool:
    """Return whether all sizes are known that `estimate` counts, those in subgraphs included."""
    for current in with_nested([node]):
        values = current.inputs if current.op_type in operators("by data") else (*current.inputs, *current.outputs)
        if current.op_type not in operators("free") and not all(
            _is_sized(value) for value in values if value is not None
        ):
            return False
    return True


def _is_sized(value: ir.Value) -> bool:
    if value.const_value is not None or not value.name:
        return True
    return value.shape is not None and value.shape.is_static()


def _own(node: ir.Node) -> int:
    count = _PRODUCTS.get(node.op_type)
    operands = [_sizes(value) for value in node.inputs]
    results = [_sizes(value) for value in node.outputs]
    if count is not None and len(operands) > 1 and results:
        try:
            return count(node, operands, results[0])
        except IndexError:  # an unknown or inconsistent rank
            pass
    return max((math.prod(sizes) for sizes in (*operands, *results)), default=0)


def _sizes(value: ir.Value | None) -> Sizes:
    """Return the sizes of a value, with 1 for unknown ones; none for an omitted input, or what is not a tensor."""
    if value is None:
        return ()
    if value.const_value is not None:
        return tuple(value.const_value.shape.numpy())
    return tuple(dim if isinstance(dim, int) else 1 for dim in value.shape or ())


def _einsum(node: ir.Node, operands: Sequence[Sizes], result: Sizes) -> int:
    terms = node.attributes.get_string("equation", "").partition("->")[0].replace(" ", "").split(",")
    sizes: dict[str, int] = {}
    for term, operand in zip(terms, operands, strict=False):
        sizes |= dict(zip(reversed(term), reversed(operand), strict=False))
    return math.prod(sizes.values())


def _convolution(node: ir.Node, operands: Sequence[Sizes], result: Sizes) -> int:
    return math.prod(result) * math.prod(operands[WEIGHTS.get(node.op_type, 1)][1:])


def _product(node: ir.Node, operands: Sequence[Sizes], result: Sizes) -> int:
    return math.prod(result) * operands[0][-1]


def _gemm(node: ir.Node, operands: Sequence[Sizes], result: Sizes) -> int:
    return math.prod(result) * operands[0][0 if node.attributes.get_int("transA", 0) else 1]


_PRODUCTS: Mapping[str, Callable[[ir.Node, Sequence[Sizes], Sizes], int]] = {
    **dict.fromkeys(("Conv", "ConvInteger", "FusedConv", "NhwcConv", "QLinearConv"), _convolution),
    "ConvTranspose": lambda node, operands, result: math.prod(operands[0]) * math.prod(operands[1][1:]),
    **dict.fromkeys(("MatMul", "MatMulInteger", "QLinearMatMul", "FusedMatMul", "MatMulNBits"), _product),
    **dict.fromkeys(("MatMulIntegerToFloat", "DynamicQuantizeMatMul"), _product),
    **dict.fromkeys(("Gemm", "QGemm", "FusedGemm"), _gemm),
    **dict.fromkeys(
        ("LSTM", "GRU", "RNN", "DynamicQuantizeLSTM"),
        lambda node, operands, result: math.prod(operands[0][:2]) * sum(map(math.prod, operands[1:3])),
    ),
    **dict.fromkeys(
        ("Attention", "MultiHeadAttention", "GroupQueryAttention"),
        lambda node, operands, result: 2 * math.prod(operands[0]) * operands[1][-2],
    ),
    "Einsum": _einsum,
}
"""The number of multiply-adds by operator name, of any domain, from the node and the sizes of operands and result."""
