"""Shrinking the operands of a node: by its family, by what its operands name, and else by the general default.

The general default: an axis is a size, and axes of the same size stay the same. Operands that are shapes, axes, counts
and the like keep their axes, and their elements unless a rule says otherwise. Integer arithmetic on such operands keeps
its constants, except those that are sizes of the probe.
"""

from __future__ import annotations

from passes.graphs.structural_inputs import OPERANDS
from passes.probing.shrinking.families import FAMILIES
from passes.probing.shrinking.operands import Operands
from passes.probing.shrinking.shapes import FEATURES, SHAPE_RULES
from passes.probing.shrinking.sizes import ALIKE, Expression
from passes.probing.shrinking.words import shrink_worded
from passes.shapes.axes import words


def shrink(operands: Operands) -> None:
    """Find out how the operands of a node shrink."""
    node = operands.node
    if node.domain == "ai.onnx.ml":
        FEATURES(operands)
    families = words.of(node, FAMILIES)
    if families and not any(shrink_worded(axes, operands) for axes in families):
        keep(operands)
        return
    if node.op_type in SHAPE_RULES:
        SHAPE_RULES[node.op_type](operands)
    structural = OPERANDS.get(node.op_type, ()) if node.domain == "" else ()
    for index, shape in enumerate(operands.shapes):
        axes = operands.axes.setdefault(index, [None] * len(shape or ()))
        for axis, size in enumerate(shape or ()):
            if axes[axis] is None and index in structural:
                axes[axis] = Expression.number(size)
            elif axes[axis] is None:
                axes[axis] = operands.require(size)
                operands.rules.setdefault((index, axis), ALIKE)


def shrink_arithmetic(operands: Operands) -> None:
    """Let the operands of integer arithmetic on shapes shrink: their number stays."""
    keep(operands)
    for index in operands.constants:
        numbers = operands.elements(index)
        if numbers is not None:
            operands.small_elements[index] = [
                Expression.product(("", abs(number)), factor=1 if number > 0 else -1) for number in numbers
            ]


def keep(operands: Operands) -> None:
    """Let nothing shrink."""
    for index, shape in enumerate(operands.shapes):
        operands.axes[index] = [Expression.number(size) for size in shape or ()]
