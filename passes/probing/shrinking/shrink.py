"""Shrinking the operands of a node: by its family, by what its operands name, and else by the general default.

The general default: an axis is a size, and axes of the same size stay the same. Operands that are shapes, axes, counts
and the like keep their axes, and their elements unless a rule says otherwise. Integer arithmetic on such operands keeps
its constants, except those that are sizes of the probe.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from passes.graphs.structural_inputs import OPERANDS
from passes.probing.shrinking.families import FAMILIES, KINDS, RULES
from passes.probing.shrinking.operands import Operands
from passes.probing.shrinking.shapes import FEATURES, SHAPE_RULES
from passes.probing.shrinking.sizes import ALIKE, Expression, Key, Rule
from passes.shapes.axes import words
from passes.shapes.axes.words import Axes, Numbers


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


def shrink_worded(axes: Axes, operands: Operands) -> bool:
    """Add how operands shrink; return False if a node does not have these axes."""
    attributes = words.numbers_of(operands.node)
    if not axes.suits(attributes, operands.shapes):
        return False
    own = axes.numbers(attributes, operands.shapes)
    numbers, letters = {**attributes, **own}, {name: size for name, size in own.items() if words.is_letter(name)}
    located = words.located(axes.inputs, operands.shapes)
    larger = [(word, size) for word, size in located.values() if word != "=" and size != 1]
    if not words.learn(larger, letters, numbers):
        return False
    letters = {word: 1 for word, _ in located.values() if word != "=" and words.is_letter(word)} | letters
    keys = {letter: operands.key(size, KINDS.get(words.letter_of(letter), "")) for letter, size in letters.items()}

    def expression(word: str, size: int) -> Expression:
        is_kept = word == "=" or size == 1  # of the size 1 is also what is broadcast
        return Expression.number(size) if is_kept else _expression(word, keys, numbers)

    expressions = {place: expression(word, size) for place, (word, size) in located.items()}
    results = words.located(axes.results, operands.results)
    has_results = all(word == "=" or words.value(word, letters, numbers) is not None for word, _ in results.values())
    if not has_results or any(expressions[place].real != size for place, (_, size) in located.items()):
        return False
    rules = RULES[operands.node.op_type](operands) if operands.node.op_type in RULES else {}
    for letter, key in keys.items():
        operands.sizes.require(key, rules.get(letter, Rule()))
    for (index, axis), (word, size) in located.items():
        operands.set_axis(index, axis, expressions[index, axis])
        if size != 1 and word in rules:
            operands.rules[index, axis] = rules[word]
        else:
            operands.define(size, expressions[index, axis])
    for name, word in axes.attributes.items():
        if name in operands.node.attributes:
            operands.attributes[name] = [_expression(word, keys, numbers)]
    for (index, _), (word, size) in results.items():
        result = Expression.number(size) if word == "=" else _expression(word, keys, numbers)
        operands.small_results.setdefault(index, []).append(result)
    return True


def _expression(word: str, keys: Mapping[str, Key], numbers: Numbers) -> Expression:
    terms = []
    for factors in words.terms(word):
        letters = tuple(keys[text] for text in factors if words.is_letter(text))
        known = [words.factor(text, {}, numbers) for text in factors]
        terms.append((math.prod(number for number in known if number is not None), letters))
    return Expression(tuple(terms))
