"""Axes in words: what the axes of an operator's inputs are, as text.

N C         sizes, a letter each; a letter has the same size wherever it occurs
group*g     a product of numbers, attributes and sizes
d+e         a sum of products
.           an axis by the general default
=           an axis that stays
s...        all axes that the other words leave over, each a size of its own: s0, s1, …
N C | C     alternatives by rank
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

from passes.probing.shrinking.operands import Dims, Operands, Shrinking
from passes.probing.shrinking.sizes import Expression, Key, Rule, SizeMap


def _nothing(operands: Operands) -> dict[str, int]:
    return {}


def _no_rules(operands: Operands) -> dict[str, Rule]:
    return {}


@dataclass(frozen=True)
class Family:
    """Operators whose axes mean the same.

    Attributes:
        axes: the axes of each input, in words; a semicolon ends an input.
        results: the axes of each output, if neither ONNX nor ONNX Runtime infers them.
        rules: the rules of sizes, by letter, if the default does not do.
        kinds: the kinds of letters; equal sizes of different kinds may become different sizes.
        attributes: attributes that are sizes, in words.
        numbers: numbers that words use, beside the attributes.
        defaults: the defaults of attributes that words use.
    """

    axes: str
    results: str = ""
    rules: Callable[[Operands], Mapping[str, Rule]] = _no_rules
    kinds: Mapping[str, str] = field(default_factory=dict)
    attributes: Mapping[str, str] = field(default_factory=dict)
    numbers: Callable[[Operands], Mapping[str, int]] = _nothing
    defaults: Mapping[str, int] = field(default_factory=dict)

    def shrink(self, operands: Operands, sizes: SizeMap, shrinking: Shrinking) -> bool:
        """Add how operands shrink; False if a node does not have the axes of this family."""
        known = {**self.defaults, **operands.numbers(), **self.numbers(operands)}
        words = {
            place: ("=" if size == 1 else word, size)  # of the size 1 is also what is broadcast
            for place, (word, size) in _located(self.axes, operands.shapes).items()
        }
        letters = _letters(_located(self.axes, operands.shapes), known)
        if letters is None:
            return False
        keys = {letter: operands.key(size, self.kinds.get(_base(letter), "")) for letter, size in letters.items()}
        if any(word != "=" and _expression(word, keys, known).real != size for word, size in words.values()):
            return False
        rules = self.rules(operands)
        for letter, key in keys.items():
            sizes.require(key, rules.get(letter, Rule()))
        for (index, axis), (word, size) in words.items():
            axes = shrinking.axes.setdefault(index, [None] * operands.rank(index))
            expression = Expression.number(size) if word == "=" else _expression(word, keys, known)
            axes[axis] = expression
            if word in rules:
                shrinking.rules[index, axis] = rules[word]
            elif not operands.kinds:
                sizes.define(("", size), expression)
        for name, word in self.attributes.items():
            if name in operands.node.attributes:
                shrinking.attributes[name] = [_expression(word, keys, known)]
        for (index, _), (word, size) in _located(self.results, operands.results).items():
            result = Expression.number(size) if word == "=" else _expression(word, keys, known)
            shrinking.results.setdefault(index, []).append(result)
        return True


def _located(texts: str, shapes: Sequence[Dims | None]) -> dict[tuple[int, int], tuple[str, int]]:
    """Return the word and the size of each axis that has a word."""
    located = {}
    for index, (text, shape) in enumerate(zip(texts.split(";"), shapes, strict=False)):
        for axis, (word, size) in enumerate(zip(_words(text, len(shape)), shape, strict=True) if shape else ()):
            if word != ".":
                located[index, axis] = word, size
    return located


@lru_cache
def _words(text: str, rank: int) -> list[str]:
    alternatives = [part.split() for part in text.split("|")]
    for words in alternatives:
        for place, word in enumerate(words):
            if word.endswith("..."):
                count = rank - len(words) + 1
                letter = word.removesuffix("...")
                repeated = [letter if letter in (".", "=") else f"{letter}{index}" for index in range(count)]
                if count >= 0:
                    return words[:place] + repeated + words[place + 1 :]
        if len(words) == rank:
            return words
    return ["."] * rank


@lru_cache
def _parse(word: str) -> tuple[tuple[str, ...], ...]:
    return tuple(tuple(term.split("*")) for term in word.split("+"))


def _base(letter: str) -> str:
    return letter.rstrip("0123456789")


def _number(text: str, known: Mapping[str, int]) -> int | None:
    """Return a number, or the value of an attribute; None for the letter of a size."""
    if text.isdecimal():
        return int(text)
    return known.get(text, 0) if len(_base(text)) > 1 else None


def _letters(words: Mapping[tuple[int, int], tuple[str, int]], known: Mapping[str, int]) -> dict[str, int] | None:
    """Return the sizes that letters stand for; None if the words do not fit."""
    pending = [(word, size) for word, size in words.values() if word != "=" and size != 1]
    known_elsewhere = {word for word, _ in pending}
    letters = {word: 1 for word, size in words.values() if size == 1 and len(_base(word)) == 1 and word != "="}
    letters = {word: 1 for word in letters if word not in known_elsewhere}
    while pending:
        left = [(word, size) for word, size in pending if not _learn(word, size, letters, known)]
        if len(left) == len(pending):
            return None
        pending = left
    return letters


def _learn(word: str, size: int, letters: dict[str, int], known: Mapping[str, int]) -> bool:
    """Return whether all letters of a word have values, now that it is known to be of a size."""
    rest, factor, unknown = size, 0, ""
    for term in _parse(word):
        product, letter = 1, ""
        for text in term:
            value = _number(text, known)
            if value is None:
                value = letters.get(text)
            if value is not None:
                product *= value
            elif letter or unknown not in ("", text):
                return False
            else:
                letter = text
        if letter:
            unknown, factor = letter, factor + product
        else:
            rest -= product
    if unknown:
        if factor <= 0 or rest % factor or rest < 0:
            return False
        letters[unknown] = rest // factor
    return True


def _expression(word: str, keys: Mapping[str, Key], known: Mapping[str, int]) -> Expression:
    terms = []
    for term in _parse(word):
        values = [_number(text, known) for text in term]
        letters = tuple(keys[text] for text, value in zip(term, values, strict=True) if value is None)
        terms.append((math.prod(value for value in values if value is not None), letters))
    return Expression(tuple(terms))
