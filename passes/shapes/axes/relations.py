"""Sizes that must be the same for a node to compute: of a product's operands, of weights, of parts to concatenate."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest

import onnx_ir as ir

from passes.graphs.scopes import Scope
from passes.graphs.tensors import ints
from passes.operators import WEIGHTS, operators
from passes.shapes.axes import words
from passes.shapes.axes.table import AXES
from passes.shapes.axes.words import Axes, Dim, Dims, Numbers


@dataclass(frozen=True)
class Relation:
    """At least two sizes that belong together; with ``broadcast`` any of them may be 1 instead."""

    sizes: Dims
    broadcast: bool = False

    @property
    def holds(self) -> bool:
        """Return whether the sizes that are numbers do not contradict each other."""
        return len({size for size in self.sizes if isinstance(size, int)} - ({1} if self.broadcast else set())) < 2


class Operands:
    """The shapes of a node's inputs, and its attributes."""

    def __init__(self, node: ir.Node, dims_of: Callable[[ir.Value], Dims | None], scope: Scope) -> None:
        self.node, self._scope = node, scope
        self.shapes: list[Dims] = [() if value is None else dims_of(value) or () for value in node.inputs]

    def dims(self, index: int) -> Dims:
        """Return the dimensions of an input; () if it is omitted or of unknown rank."""
        return self.shapes[index] if index < len(self.shapes) else ()

    def dim(self, index: int, axis: int) -> Dim:
        """Return a dimension; None if it is unknown."""
        dims = self.dims(index)
        return dims[axis] if -len(dims) <= axis < len(dims) else None

    def number(self, attribute: str, default: int) -> int:
        return self.node.attributes.get_int(attribute, default)

    def constant(self, index: int) -> list[int] | None:
        """Return the elements of a constant input; None if it is not constant or too long."""
        value = self.node.inputs[index] if index < len(self.node.inputs) else None
        return ints(self._scope.constant(value))


_Rule = Callable[[Operands], Iterator[Relation]]


def relations(operands: Operands) -> Iterator[Relation]:
    """Yield the relations between the sizes of a node's inputs."""
    node = operands.node
    if node.op_type in _RULES:
        yield from _RULES[node.op_type](operands)
    attributes = words.numbers_of(node)
    suitable = (axes for axes in words.of(node, AXES) if axes.suits(attributes, operands.shapes))
    for axes in itertools.islice(suitable, 1):
        yield from _worded(axes, attributes, operands.shapes)


def _worded(axes: Axes, attributes: Numbers, shapes: Sequence[Dims | None]) -> Iterator[Relation]:
    """Yield the relations between sizes that have the same word, or a word with a known value."""
    own = axes.numbers(attributes, shapes)
    numbers, letters = {**attributes, **own}, {name: size for name, size in own.items() if words.is_letter(name)}
    pairs = [(word, size) for word, size in words.located(axes.inputs, shapes).values() if word != "="]
    pairs += [(word, attributes[name]) for name, word in axes.attributes.items() if name in attributes]
    sizes: dict[str, list[Dim]] = {}
    for word, size in pairs:
        sizes.setdefault(word, []).append(size)
    known = [(word, size) for word, size in pairs if isinstance(size, int) and not (size == 1 and word.startswith("~"))]
    words.learn(known, letters, numbers)
    for word, same in sizes.items():
        value = words.value(word, letters, numbers)
        if value is not None or not words.is_letter(word):
            same.append(value)
        if len(same) > 1:
            yield Relation(tuple(same), broadcast=word.startswith("~"))


def _same(*sizes: Dim) -> Relation:
    return Relation(sizes)


def _broadcast(*shapes: Dims) -> Iterator[Relation]:
    for sizes in zip_longest(*(tuple(reversed(dims)) for dims in shapes), fillvalue=1):
        yield Relation(sizes, broadcast=True)


def _elementwise(node: Operands) -> Iterator[Relation]:
    yield from _broadcast(*(dims for dims in node.shapes if dims))


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


def _concat(node: Operands) -> Iterator[Relation]:
    shapes = [dims for dims in node.shapes if dims]
    if not shapes or len({len(dims) for dims in shapes}) > 1:
        return
    axis = node.number("axis", 0) % len(shapes[0])
    for index, sizes in enumerate(zip(*shapes, strict=True)):
        if index != axis and len(sizes) > 1:
            yield Relation(sizes)


def _layer_norm(node: Operands) -> Iterator[Relation]:
    for sizes in zip(reversed(node.dims(0)), reversed(node.dims(1)), strict=False):
        yield Relation(sizes, broadcast=True)


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
    """Yield an open size that follows from the product of all sizes, which stays; products that contradict."""
    dims, target = node.dims(0), node.constant(1)
    if not dims or not target or node.number("allowzero", 0):
        return
    if any(size == 0 and index >= len(dims) for index, size in enumerate(target)):
        return
    copied = [index for index, size in enumerate(target) if size == 0]
    left = [size for index, size in enumerate(dims) if index not in copied]
    fixed = [size for size in left if isinstance(size, int)]
    elements, rest = math.prod(size for size in target if size > 0), math.prod(fixed)
    if len(fixed) == len(left) and (-1 not in target or rest % elements):
        yield _same(rest, elements)
    elif len(fixed) == len(left) - 1 and -1 not in target and rest and elements % rest == 0:
        (size,) = (factor for factor in left if not isinstance(factor, int))
        yield _same(size, elements // rest)


def _einsum(node: Operands) -> Iterator[Relation]:
    terms = node.node.attributes.get_string("equation", "").partition("->")[0].replace(" ", "").split(",")
    sizes: dict[str, list[Dim]] = {}
    for term, dims in zip(terms, node.shapes, strict=False):
        if "." not in term and len(term) == len(dims):
            for letter, size in zip(term, dims, strict=True):
                sizes.setdefault(letter, []).append(size)
    yield from (Relation(tuple(group)) for group in sizes.values() if len(group) > 1)


_RULES: dict[str, _Rule] = {
    **dict.fromkeys(operators("broadcasts"), _elementwise),
    **dict.fromkeys(
        ("MatMul", "MatMulInteger", "MatMulIntegerToFloat", "DynamicQuantizeMatMul", "QLinearMatMul"), _matmul
    ),
    "MatMulNBits": _block_weights,
    **dict.fromkeys(("Gemm", "FusedGemm"), _gemm),
    "Concat": _concat,
    **dict.fromkeys(("LayerNormalization", "RMSNormalization", "SimplifiedLayerNormalization"), _layer_norm),
    "DequantizeLinear": _dequantize,
    "Split": _split,
    "Squeeze": _squeeze,
    "Reshape": _reshape,
    "Einsum": _einsum,
}
"""By the name of an operator, of ONNX's domain or com.microsoft; other operators have their axes in words."""
