"""A node with what is known of it, and how its operands shrink."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import onnx_ir as ir

from passes.graphs.tensors import ints
from passes.probing.shrinking.sizes import Expression, Key, Rule, SizeMap

Dims = tuple[int, ...]


@dataclass
class Operands:
    """A node with what is known of it, and its smaller operands.

    Attributes:
        shapes: the shapes of its inputs; None for omitted and unknown ones.
        results: the shapes of its outputs.
        kinds: whether sizes of different kinds are kept apart.
        sizes: the sizes of its probe, to which its own and their rules are added.
        axes: the size of each axis of an input, by index.
        rules: what each axis of an input must have in common with the real one, by index and axis.
        small_results: the size of each axis of an output, by index, for operators that ONNX does not define.
        small_elements: what the elements of an integer input become.
        attributes: what the elements of an attribute become.
        limits: for an input of indices, the sizes of the axes that its elements, or those of its last axis, select
            from.
    """

    node: ir.Node
    shapes: Sequence[Dims | None]
    results: Sequence[Dims | None]
    constants: Mapping[int, ir.TensorProtocol]
    kinds: bool
    sizes: SizeMap
    axes: dict[int, list[Expression | None]] = field(default_factory=dict)
    rules: dict[tuple[int, int], Rule] = field(default_factory=dict)
    small_results: dict[int, list[Expression]] = field(default_factory=dict)
    small_elements: dict[int, list[Expression]] = field(default_factory=dict)
    attributes: dict[str, list[Expression]] = field(default_factory=dict)
    limits: dict[int, list[Expression]] = field(default_factory=dict)

    def shape(self, index: int) -> Dims | None:
        return self.shapes[index] if index < len(self.shapes) else None

    def rank(self, index: int) -> int:
        """Return the rank of an input; 0 if it is unknown."""
        return len(self.shape(index) or ())

    def integer(self, name: str, default: int = 0) -> int:
        """Return an attribute that is a number."""
        return self.node.attributes.get_int(name, default)

    def integers(self, name: str, default: Sequence[int] = ()) -> list[int]:
        """Return an attribute that is a list of numbers."""
        return list(self.node.attributes.get_ints(name, default))

    def elements(self, index: int) -> list[int] | None:
        """Return the elements of a constant input of integers; None if it is not one."""
        return ints(self.constants.get(index))

    def named(self, index: int, attribute: str) -> list[int] | None:
        """Return numbers that are an attribute, or the elements of an input in later opsets; None if not constant."""
        return self.elements(index) if len(self.shapes) > 1 else self.integers(attribute)

    def rename(self, index: int, attribute: str, numbers: list[Expression]) -> None:
        """Set what such numbers become."""
        if len(self.shapes) > 1:
            self.small_elements[index] = numbers
        else:
            self.attributes[attribute] = numbers

    def key(self, size: int, kind: str = "") -> Key:
        return (kind if self.kinds else "", size)

    def require(self, size: int, rule: Rule | None = None, kind: str = "") -> Expression:
        """Add a rule for a size; return the size."""
        return self.sizes.require(self.key(size, kind), rule or Rule())

    def size(self, size: int, kind: str = "") -> Expression:
        """Return a size that may shrink; 0, 1 and negative numbers stay."""
        return Expression.number(size) if size < 2 else self.require(size, kind=kind)

    def define(self, size: int, expression: Expression) -> None:
        """In a probe of several nodes, let all axes of a size follow."""
        if not self.kinds:
            self.sizes.define(("", size), expression)

    def set_axis(self, index: int, axis: int, expression: Expression) -> None:
        """Set the size of an axis of an input."""
        self.axes.setdefault(index, [None] * self.rank(index))[axis] = expression
