"""Sizes that must be the same for a node to compute: those of a product's operands, a concatenation's parts, weights.

A size is a number, the name of a dimension that the model leaves open, or None where inference does not find it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest

import onnx_ir as ir

from passes.graphs.scopes import Scope
from passes.operators import WEIGHTS, operators

Dim = int | str | None
Dims = tuple[Dim, ...]


@dataclass(frozen=True)
class Relation:
    """Sizes that belong together.

    Attributes:
        sizes: at least two.
        broadcast: whether any of them may be 1 instead.
    """

    sizes: Dims
    broadcast: bool = False

    @property
    def holds(self) -> bool:
        """Whether the sizes that are numbers do not contradict each other."""
        return len({size for size in self.sizes if isinstance(size, int)} - ({1} if self.broadcast else set())) < 2


class Operands:
    """The shapes of a node's inputs, and its attributes.

    Attributes:
    """

    def __init__(self, node: ir.Node, dims_of: Callable[[ir.Value], Dims | None], scope: Scope) -> None:
        self.node = node
        self._dims_of, self._scope = dims_of, scope

    def dims(self, index: int) -> Dims:
        """Return the dimensions of an input; () if it is omitted or of unknown rank."""
        value = self.node.inputs[index] if index < len(self.node.inputs) else None
        return () if value is None else self._dims_of(value) or ()

    def all(self) -> list[Dims]:
        return [self.dims(index) for index in range(len(self.node.inputs))]

    def dim(self, index: int, axis: int) -> Dim:
        """Return a dimension; None if it is unknown."""
        dims = self.dims(index)
        return dims[axis] if -len(dims) <= axis < len(dims) else None

    def number(self, attribute: str, default: int) -> int:
        return self.node.attributes.get_int(attribute, default)

    def constant(self, index: int) -> list[int] | None:
        """Return the elements of a constant input; None if it is not constant or too long."""
        value = self.node.inputs[index] if index < len(self.node.inputs) else None
        tensor = None if value is None else self._scope.constant(value)
        if tensor is None or tensor.size > 64:
            return None
        return [int(number) for number in tensor.numpy().reshape(-1)]


_Rule = Callable[[Operands], Iterator[Relation]]


def relations(operands: Operands) -> Iterator[Relation]:
    """Yield the relations between the sizes of a node's inputs."""
    rule = _RULES.get(operands.node.op_type)
    if rule is not None:
        yield from rule(operands)


def _same(*sizes: Dim) -> Relation:
    return Relation(sizes)


def _broadcast(*shapes: Dims) -> Iterator[Relation]:
    for sizes in zip_longest(*(tuple(reversed(dims)) for dims in shapes), fillvalue=1):
        yield Relation(sizes, broadcast=True)


def _elementwise(node: Operands) -> Iterator[Relation]:
    yield from _broadcast(*(dims for dims in node.all() if dims))


def _matmul(node: Operands) -> Iterator[Relation]:
    left, right = node.dims(0), node.dims(WEIGHTS.get(node.node.op_type, 1))
    if left and right:
        yield _same(left[-1], right[-2] if len(right) > 1 else right[0])
        yield from _broadcast(left[:-2], right[:-2])


def _gemm(node: Operands) -> Iterator[Relation]:
    inner = node.dim(0, 0 if node.number("transA", 0) else 1), node.dim(1, 1 if node.number("transB", 0) else 0)
    yield _same(*inner)


def _block_weights(node: Operands) -> Iterator[Relation]:
    yield _same(node.dim(0, -1), node.number("K", 0) or None)


def _convolution(node: Operands) -> Iterator[Relation]:
    channels = node.dim(WEIGHTS.get(node.node.op_type, 1), 1)
    if isinstance(channels, int):
        yield _same(node.dim(0, 1), channels * node.number("group", 1))


def _transposed(node: Operands) -> Iterator[Relation]:
    yield _same(node.dim(0, 1), node.dim(1, 0))


def _concat(node: Operands) -> Iterator[Relation]:
    shapes = [dims for dims in node.all() if dims]
    if not shapes or len({len(dims) for dims in shapes}) > 1:
        return
    axis = node.number("axis", 0) % len(shapes[0])
    for index, sizes in enumerate(zip(*shapes, strict=True)):
        if index != axis and len(sizes) > 1:
            yield Relation(sizes)


def _scaled(axis: int) -> _Rule:
    """Return the rule of a normalization, whose scale has the size of an axis."""

    def rule(node: Operands) -> Iterator[Relation]:
        yield _same(node.dim(0, axis), node.dim(1, -1))

    return rule


def _layer_norm(node: Operands) -> Iterator[Relation]:
    for sizes in zip(reversed(node.dims(0)), reversed(node.dims(1)), strict=False):
        yield Relation(sizes, broadcast=True)


def _recurrent(node: Operands) -> Iterator[Relation]:
    yield _same(node.dim(0, 2), node.dim(1, 2))
    batch = node.dim(0, 0 if node.number("layout", 0) else 1)
    first, second = (1, 0) if node.number("layout", 0) else (0, 1)
    for state in filter(node.dims, (5, 6)):
        yield _same(node.dim(state, first), node.dim(1, 0))
        yield _same(node.dim(state, second), batch)
        yield _same(node.dim(state, 2), node.dim(2, 2))


def _dynamic_quantize_lstm(node: Operands) -> Iterator[Relation]:
    yield _same(node.dim(0, 2), node.dim(1, 1))
    for state in filter(node.dims, (5, 6)):
        sizes = node.dim(1, 0), node.dim(0, 1), node.dim(2, 1)
        yield from (_same(node.dim(state, axis), size) for axis, size in enumerate(sizes))


def _dequantize(node: Operands) -> Iterator[Relation]:
    if len(node.dims(1)) == 1:
        yield _same(node.dim(0, node.number("axis", 1)), node.dim(1, 0))


def _split(node: Operands) -> Iterator[Relation]:
    sizes = list(node.node.attributes.get_ints("split", ())) or node.constant(1)
    if sizes:
        yield _same(node.dim(0, node.number("axis", 0)), sum(sizes))


def _squeeze(node: Operands) -> Iterator[Relation]:
    for axis in list(node.node.attributes.get_ints("axes", ())) or node.constant(1) or ():
        yield _same(node.dim(0, axis), 1)


def _reshape(node: Operands) -> Iterator[Relation]:
    """Yield an open size that follows from the product of all sizes, which stays."""
    dims, target = node.dims(0), node.constant(1)
    if not target or -1 in target or node.number("allowzero", 0):
        return
    if any(size == 0 and index >= len(dims) for index, size in enumerate(target)):
        return
    copied = [index for index, size in enumerate(target) if size == 0]
    left = [size for index, size in enumerate(dims) if index not in copied]
    fixed = [size for size in left if isinstance(size, int)]
    elements, rest = math.prod(size for size in target if size), math.prod(fixed)
    if len(fixed) == len(left) - 1 and rest and elements % rest == 0:
        (size,) = (factor for factor in left if not isinstance(factor, int))
        yield _same(size, elements // rest)


def _einsum(node: Operands) -> Iterator[Relation]:
    terms = node.node.attributes.get_string("equation", "").partition("->")[0].replace(" ", "").split(",")
    sizes: dict[str, list[Dim]] = {}
    for term, dims in zip(terms, node.all(), strict=False):
        if "." not in term and len(term) == len(dims):
            for letter, size in zip(term, dims, strict=True):
                sizes.setdefault(letter, []).append(size)
    yield from (Relation(tuple(group)) for group in sizes.values() if len(group) > 1)


def _heads(size: Dim, count: int) -> Dim:
    """Return the size of one of several heads."""
    return size // count if isinstance(size, int) and count else None


def _past(node: Operands, inputs: Sequence[int], batch: Dim, heads: Dim, size: Dim) -> Iterator[Relation]:
    """Yield the relations of cached keys and values: [batch, heads, length, head size]."""
    given = list(filter(node.dims, inputs))
    for index in given:
        yield _same(node.dim(index, 0), batch)
        yield _same(node.dim(index, 1), heads)
        yield _same(node.dim(index, 3), size)
    yield _same(*(node.dim(index, 2) for index in given))


def _grouped_query_attention(node: Operands) -> Iterator[Relation]:
    heads, pairs = node.number("num_heads", 0), node.number("kv_num_heads", 0)
    packed = not node.dims(1)
    size = _heads(node.dim(0, -1), heads + 2 * pairs if packed else heads)
    yield from _past(node, (3, 4), node.dim(0, 0), pairs or None, size)
    for index in filter(node.dims, (7, 8)):
        yield _same(node.dim(index, 1), _heads(size, 2))


def _multi_head_attention(node: Operands) -> Iterator[Relation]:
    heads = node.number("num_heads", 0)
    yield from _past(node, (6, 7), node.dim(0, 0), heads or None, _heads(node.dim(0, -1), heads))


def _attention(node: Operands) -> Iterator[Relation]:
    """Yield the relations of Attention: ONNX's, with an axis of heads or heads by attributes, or com.microsoft's."""
    if node.node.domain == "com.microsoft":
        heads, past = node.number("num_heads", 0), node.dims(4)
        yield _same(node.dim(0, -1), node.dim(1, 0))
        if len(past) == 5:
            size = _heads(_heads(node.dim(1, 1), 3), heads)
            pairs = ((past[0], 2), (past[1], node.dim(0, 0)), (past[2], heads or None), (past[4], size))
            yield from (_same(*pair) for pair in pairs)
        return
    count = node.number("kv_num_heads", 0)
    apart = len(node.dims(1)) == 4
    size = node.dim(1, 3) if apart else _heads(node.dim(1, -1), count)
    yield from _past(node, (4, 5), node.dim(0, 0), node.dim(1, 1) if apart else count or None, size)
    length, past_length = node.dim(1, -2), node.dim(4, 2) if node.dims(4) else 0
    total = length + past_length if isinstance(length, int) and isinstance(past_length, int) else None
    if node.dims(3):
        yield Relation((node.dim(3, -1), total), broadcast=True)


_RULES: dict[str, _Rule] = {
    **dict.fromkeys(operators("broadcasts"), _elementwise),
    **dict.fromkeys(
        ("MatMul", "MatMulInteger", "MatMulIntegerToFloat", "DynamicQuantizeMatMul", "QLinearMatMul"), _matmul
    ),
    "MatMulNBits": _block_weights,
    **dict.fromkeys(("Gemm", "FusedGemm"), _gemm),
    **dict.fromkeys(("Conv", "ConvInteger", "FusedConv", "QLinearConv"), _convolution),
    "ConvTranspose": _transposed,
    "Concat": _concat,
    **dict.fromkeys(("BatchNormalization", "InstanceNormalization"), _scaled(1)),
    **dict.fromkeys(("LayerNormalization", "RMSNormalization", "SimplifiedLayerNormalization"), _layer_norm),
    **dict.fromkeys(("LSTM", "GRU", "RNN"), _recurrent),
    "DynamicQuantizeLSTM": _dynamic_quantize_lstm,
    "DequantizeLinear": _dequantize,
    "Split": _split,
    "Squeeze": _squeeze,
    "Reshape": _reshape,
    "Einsum": _einsum,
    "GroupQueryAttention": _grouped_query_attention,
    "MultiHeadAttention": _multi_head_attention,
    "Attention": _attention,
}
"""By the name of an operator, of ONNX's domain or com.microsoft."""
