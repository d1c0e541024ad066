"""Shrinking the operands of a node: by its family, by what its operands name, and else by the general default.

The general default: an axis is a size, and axes of the same size stay the same. Operands that are shapes, axes, counts
and the like keep their axes, and their elements unless a rule says otherwise. Integer arithmetic on such operands keeps
its constants, except those that are sizes of the probe.
"""

from __future__ import annotations

from passes.graphs.structural_inputs import OPERANDS
from passes.probing.shrinking.families import FAMILIES
from passes.probing.shrinking.operands import Operands, Shrinking
from passes.probing.shrinking.shapes import FEATURES, SHAPE_RULES
from passes.probing.shrinking.sizes import ALIKE, Expression, Rule, SizeMap
from passes.probing.shrinking.words import shrink_worded
from passes.shapes.axes import words


def shrink(operands: Operands, sizes: SizeMap) -> Shrinking:
    """Return how the operands of a node shrink; the sizes and their rules are added to ``sizes``."""
    shrinking = Shrinking()
    node = operands.node
    if node.domain == "ai.onnx.ml":
        FEATURES(operands, sizes, shrinking)
    families = words.of(node, FAMILIES)
    if families and not any(shrink_worded(axes, operands, sizes, shrinking) for axes in families):
        return keep(operands)
    rule = SHAPE_RULES.get(node.op_type)
    if rule is not None:
        rule(operands, sizes, shrinking)
    structural = OPERANDS.get(node.op_type, ()) if node.domain == "" else ()
    for index, shape in enumerate(operands.shapes):
        axes = shrinking.axes.setdefault(index, [None] * len(shape or ()))
        for axis, size in enumerate(shape or ()):
            if axes[axis] is None and index in structural:
                axes[axis] = Expression.number(size)
            elif axes[axis] is None:
                axes[axis] = sizes.require(operands.key(size), Rule())
                shrinking.rules.setdefault((index, axis), ALIKE)
    return shrinking


def shrink_arithmetic(operands: Operands) -> Shrinking:
    """Return how the operands of integer arithmetic on shapes shrink: their number stays."""
    shrinking = keep(operands)
    for index in operands.constants:
        numbers = operands.elements(index)
        if numbers is not None:
            shrinking.elements[index] = [
                Expression.product(("", abs(number)), factor=1 if number > 0 else -1) for number in numbers
            ]
    return shrinking


def keep(operands: Operands) -> Shrinking:
    """Return nothing shrinks."""
    shrinking = Shrinking()
    for index, shape in enumerate(operands.shapes):
        shrinking.axes[index] = [Expression.number(size) for size in shape or ()]
    return shrinking
