"""Shrinking by the axes of an operator, in words: letters become smaller, and what is computed from them follows."""

from __future__ import annotations

import math
from collections.abc import Mapping

from passes.probing.shrinking.families import KINDS, RULES
from passes.probing.shrinking.operands import Operands
from passes.probing.shrinking.sizes import Expression, Key, Rule
from passes.shapes.axes import words
from passes.shapes.axes.words import Axes, Numbers


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
