"""Axes in words: what the axes of an operator's inputs are, as text.

N C         sizes, a letter each; a letter has the same size wherever it occurs
group*g     a product of numbers, attributes and sizes
d+e         a sum of products
~d          this size, or 1
.           an axis of any size
=           an axis of any size, which a smaller node of the same behaviour keeps
s...        all axes that the other words leave over, each a size of its own: s0, s1, …
N C | C     alternatives by rank
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TypeVar

import onnx_ir as ir

Dim = int | str | None
"""A number, the name of a dimension that the model leaves open, or None if inference does not find it."""
Dims = tuple[Dim, ...]
_Size = TypeVar("_Size", bound=Dim)
Numbers = Mapping[str, int]
_DEFAULTS = {"bits": 4, "group": 1, "layout": 0}
"""The defaults of attributes that words use."""


@dataclass(frozen=True)
class Axes:
    """The axes of an operator, or of several whose axes mean the same.

    Attributes:
        inputs: the axes of each input, in words; a semicolon ends an input.
        results: the axes of each output, if neither ONNX nor ONNX Runtime infers them.
        attributes: attributes that are sizes, in words.
        numbers: numbers and sizes that words use, beside the attributes, of a node with some attributes and shapes.
        when: the values of attributes, None if omitted, without which a node of the operator has other axes.
    """

    inputs: str
    results: str = ""
    attributes: Mapping[str, str] = field(default_factory=dict)
    numbers: Callable[[Numbers, Sequence[Dims | None]], Numbers] = lambda attributes, shapes: {}
    when: Mapping[str, int | None] = field(default_factory=dict)

    def suits(self, attributes: Numbers, shapes: Sequence[Dims | None]) -> bool:
        """Return whether a node with some attributes, and shapes of inputs, may have these axes."""
        text = self.inputs.partition(";")[0]
        has_rank = not shapes or not shapes[0] or _words(text, len(shapes[0])) is not None
        return has_rank and all(attributes.get(name) == value for name, value in self.when.items())


def of(node: ir.Node, table: Mapping[str, tuple[Axes, ...]]) -> tuple[Axes, ...]:
    """Return the axes that a node may have, from a table by operator, whose name may be behind that of its domain."""
    return table.get(f"{node.domain}.{node.op_type}") or table.get(node.op_type, ())


def numbers_of(node: ir.Node) -> dict[str, int]:
    """Return the attributes of a node that are numbers; of lists of numbers, their lengths."""
    numbers = dict(_DEFAULTS)
    for attribute in node.attributes.values():
        if attribute.type == ir.AttributeType.INT and not attribute.is_ref():
            numbers[attribute.name] = attribute.as_int()
        elif attribute.type == ir.AttributeType.INTS and not attribute.is_ref():
            numbers[attribute.name] = len(attribute.as_ints())
    return numbers


def located(texts: str, shapes: Sequence[Sequence[_Size] | None]) -> dict[tuple[int, int], tuple[str, _Size]]:
    """Return the word and the size of each axis that has a word, by input and axis."""
    words: dict[tuple[int, int], tuple[str, _Size]] = {}
    for index, (text, shape) in enumerate(zip(texts.split(";"), shapes, strict=False)):
        pairs = zip(_words(text, len(shape)) or (), shape, strict=False) if shape else ()
        words |= {(index, axis): pair for axis, pair in enumerate(pairs) if pair[0] != "."}
    return words


@lru_cache
def _words(text: str, rank: int) -> list[str] | None:
    """Return the words of the alternative that has a rank."""
    for alternative in text.split("|"):
        words = alternative.split()
        for place, word in enumerate(words):
            if word.endswith("..."):
                count = rank - len(words) + 1
                letter = word.removesuffix("...")
                repeated = [letter if letter in (".", "=") else f"{letter}{index}" for index in range(count)]
                if count >= 0:
                    return words[:place] + repeated + words[place + 1 :]
        if len(words) == rank:
            return words
    return None


@lru_cache
def terms(word: str) -> tuple[tuple[str, ...], ...]:
    """Return the factors of the terms of a word."""
    return tuple(tuple(term.split("*")) for term in word.removeprefix("~").split("+"))


def letter_of(text: str) -> str:
    """Return the letter of a size, without the index of an axis."""
    return text.rstrip("0123456789")


def is_letter(text: str) -> bool:
    """Return whether a word or factor is the letter of a size, instead of a number or its name."""
    return len(letter_of(text)) == 1


def factor(text: str, letters: Numbers, numbers: Numbers) -> int | None:
    """Return the value of a factor; None if it is not known."""
    if text.isdecimal():
        return int(text)
    return letters.get(text) if is_letter(text) else numbers.get(text)


def value(word: str, letters: Numbers, numbers: Numbers) -> int | None:
    """Return the value of a word; None if a factor is not known."""
    total = 0
    for term in terms(word):
        factors = [number for text in term if (number := factor(text, letters, numbers)) is not None]
        if len(factors) < len(term):
            return None
        total += math.prod(factors)
    return total


def learn(words: Iterable[tuple[str, int]], letters: dict[str, int], numbers: Numbers) -> bool:
    """Add the sizes that letters stand for, as words with their sizes tell; return whether they tell all of them."""
    pending = list(words)
    while pending:
        left = [pair for pair in pending if not _learn(*pair, letters, numbers)]
        if len(left) == len(pending):
            return False
        pending = left
    return True


def _learn(word: str, size: int, letters: dict[str, int], numbers: Numbers) -> bool:
    """Return whether all letters of a word have values, now that it is known to be of a size."""
    unknown = {text for term in terms(word) for text in term if is_letter(text)} - letters.keys()
    base = value(word, {**letters, **dict.fromkeys(unknown, 0)}, numbers)
    step = value(word, {**letters, **dict.fromkeys(unknown, 1)}, numbers)
    if base is None or step is None or len(unknown) > 1:
        return False
    for letter in unknown:
        if step <= base or size < base or (size - base) % (step - base):
            return False
        letters[letter] = (size - base) // (step - base)
    return True
