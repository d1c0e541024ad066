"""A node with what is known of it, and how its operands shrink."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import onnx_ir as ir

from passes.graphs.tensors import ints
from passes.probing.shrinking.sizes import Expression, Key, Rule

Dims = tuple[int, ...]


@dataclass(frozen=True)
class Operands:
    """A node with what is known of it.

    Attributes:
        shapes: the shapes of its inputs; None for omitted and unknown ones.
        results: the shapes of its outputs.
        constants: the tensors of constant inputs, by index.
        kinds: whether sizes of different kinds are kept apart.
    """

    node: ir.Node
    shapes: Sequence[Dims | None]
    results: Sequence[Dims | None]
    constants: Mapping[int, ir.TensorProtocol]
    kinds: bool

    def key(self, size: int, kind: str = "") -> Key:
        return (kind if self.kinds else "", size)

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


@dataclass
class Shrinking:
    """The smaller operands of a node.

    Attributes:
        axes: the size of each axis of an input, by index.
        rules: what each axis of an input must have in common with the real one, by index and axis.
        results: the size of each axis of an output, by index, for operators that ONNX does not define.
        elements: what the elements of an integer input become.
        attributes: what the elements of an attribute become.
        limits: for an input of indices, the sizes of the axes that its elements, or those of its last axis, select
            from.
    """

    axes: dict[int, list[Expression | None]] = field(default_factory=dict)
    rules: dict[tuple[int, int], Rule] = field(default_factory=dict)
    results: dict[int, list[Expression]] = field(default_factory=dict)
    elements: dict[int, list[Expression]] = field(default_factory=dict)
    attributes: dict[str, list[Expression]] = field(default_factory=dict)
    limits: dict[int, list[Expression]] = field(default_factory=dict)

    def rename(self, operands: Operands, index: int, attribute: str, numbers: list[Expression]) -> None:
        """Set what the numbers of an attribute, or of an input in later opsets, become."""
        if len(operands.shapes) > 1:
            self.elements[index] = numbers
        else:
            self.attributes[attribute] = numbers
