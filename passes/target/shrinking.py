"""How the operands of a node may shrink: its axes as expressions of sizes, which may become smaller, and their rules.

By default each axis is a size of its own, and axes of the same size stay the same. What an operator needs beyond that
is written down in `FAMILIES` as the axes of its inputs, in the words of this table:

    N C         sizes, one letter each
    group*g     a product of attributes, numbers and sizes
    d+e         a sum of products
    .           whatever the general default says of it
    =           an axis that stays
    s...        all further axes, each with a size of its own: s0, s1, …
    ....        all further axes by the general default
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

import onnx_ir as ir

from passes.target.size_map import Expression, Key, Rule, SizeMap, real_value

Dims = tuple[int, ...]


@dataclass(frozen=True)
class Operands:
    """A node with what is known of it.

    Attributes:
        node: the node.
        shapes: of its inputs; None for omitted and unknown ones.
        results: of its outputs.
        constants: the tensors of constant inputs, by index.
        kinds: whether the sizes of different kinds are kept apart.
    """

    node: ir.Node
    shapes: Sequence[Dims | None]
    results: Sequence[Dims | None]
    constants: Mapping[int, ir.TensorProtocol]
    kinds: bool

    def key(self, kind: str, size: int) -> Key:
        """A size of a kind."""
        return (kind if self.kinds else "", size)

    def shape(self, index: int) -> Dims | None:
        """The shape of an input."""
        return self.shapes[index] if index < len(self.shapes) else None

    def integer(self, name: str, default: int = 0) -> int:
        """An attribute that is a number."""
        attribute = self.node.attributes.get(name)
        return default if attribute is None else int(attribute.value)

    def integers(self, name: str, default: Sequence[int]) -> list[int]:
        """An attribute that is a list of numbers."""
        attribute = self.node.attributes.get(name)
        return list(default if attribute is None else attribute.value)

    def text(self, name: str, default: str = "") -> str:
        """An attribute that is text."""
        attribute = self.node.attributes.get(name)
        return default if attribute is None else str(attribute.as_string())


@dataclass
class Shrinking:
    """How the operands of one node shrink.

    Attributes:
        axes: the size of each axis of an input, by index; None for an axis by the general default.
        elements: what the elements of an integer input become.
        attributes: what the elements of an attribute become.
    """

    axes: dict[int, list[Expression | None]] = field(default_factory=dict)
    elements: dict[int, list[Expression]] = field(default_factory=dict)
    attributes: dict[str, list[Expression]] = field(default_factory=dict)


@dataclass(frozen=True)
class Family:
    """Operators whose axes mean the same.

    Attributes:
        axes: those of each input, in the words of this module.
        rules: those of sizes, by letter, where the default does not do.
        kinds: of letters, where sizes of another letter or another kind may be the same.
        attributes: attributes that are sizes, with their expressions.
    """

    axes: tuple[str, ...]
    rules: Callable[[Operands], Mapping[str, Rule]] = lambda operands: {}
    kinds: Mapping[str, str] = field(default_factory=dict)
    attributes: Mapping[str, str] = field(default_factory=dict)


def shrink(operands: Operands, sizes: SizeMap) -> Shrinking:
    """How the operands of a node shrink; the sizes and their rules are added to ``sizes``."""
    found = Shrinking()
    family = FAMILIES.get(operands.node.op_type)
    if family is not None:
        _by_family(operands, family, sizes, found)
    for index, shape in enumerate(operands.shapes):
        axes = found.axes.setdefault(index, [None] * len(shape or ()))
        for axis, size in enumerate(shape or ()):
            if axes[axis] is None:
                key = operands.key("", size)
                sizes.require(key, Rule())
                axes[axis] = Expression.product(key)
    return found


@lru_cache
def _parse(text: str) -> tuple[tuple[str, ...], ...]:
    return tuple(tuple(term.split("*")) for term in text.split("+"))


def _by_family(operands: Operands, family: Family, sizes: SizeMap, found: Shrinking) -> bool:
    """Whether the operands of a node have the axes of its family."""
    words = {
        (index, axis): word
        for index, text in enumerate(family.axes)
        if (shape := operands.shape(index)) is not None
        for axis, word in enumerate(_words(text, len(shape)))
        if shape[axis] != 1 and word != "."
    }
    letters: dict[str, int] = {}
    known = {each.name: each.value for each in operands.node.attributes.values() if each.type == ir.AttributeType.INT}
    pending = dict(words)
    while pending:
        progress = False
        for place, word in list(pending.items()):
            size = operands.shapes[place[0]][place[1]]  # type: ignore[index]
            if word == "=" or _learn(word, size, letters, known):
                del pending[place]
                progress = True
        if not progress:
            return False
    rules = family.rules(operands)
    keys = {}
    for letter, size in letters.items():
        base = letter.rstrip("0123456789")
        keys[letter] = operands.key(family.kinds.get(base, base), size)
    for (index, axis), word in words.items():
        size = operands.shapes[index][axis]  # type: ignore[index]
        expression = Expression.number(size) if word == "=" else _expression(word, keys, known)
        if real_value(expression) != size:
            return False
    for letter, key in keys.items():
        sizes.require(key, rules.get(letter, Rule()))
    for (index, axis), word in words.items():
        shape = operands.shapes[index]
        assert shape is not None
        axes = found.axes.setdefault(index, [None] * len(shape))
        size = Expression.number(shape[axis]) if word == "=" else _expression(word, keys, known)
        axes[axis] = size
        if not operands.kinds and len(size.terms[0][1]) and len(_parse(word)) + len(_parse(word)[0]) > 2:
            sizes.define(operands.key("", shape[axis]), size)
    for name, word in family.attributes.items():
        if name in operands.node.attributes:
            found.attributes[name] = [_expression(word, keys, {})]
    return True


def _words(text: str, rank: int) -> list[str]:
    words = text.split()
    for place, word in enumerate(words):
        if word.endswith("..."):
            count = max(rank - len(words) + 1, 0)
            letter = word.removesuffix("...")
            repeated = [letter if letter in (".", "=") else f"{letter}{index}" for index in range(count)]
            words[place : place + 1] = repeated
            break
    return (words + ["."] * rank)[:rank]


def _factor(text: str, known: Mapping[str, int]) -> int | None:
    """A number or the value of an attribute; None for the letter of a size."""
    if text.isdecimal():
        return int(text)
    return known.get(text, 1) if len(text.rstrip("0123456789")) > 1 else None


def _learn(word: str, size: int, letters: dict[str, int], known: Mapping[str, int]) -> bool:
    """Whether all letters of a word have values, now that it is known to be of a size."""
    rest, factor, unknown = size, 0, ""
    for term in _parse(word):
        product, letter = 1, ""
        for text in term:
            value = _factor(text, known)
            if value is None and text not in letters:
                if letter or unknown not in ("", text):
                    return False
                letter = text
            else:
                product *= letters[text] if value is None else value
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
        factors = [_factor(text, known) for text in term]
        letters = tuple(keys[text] for text, value in zip(term, factors, strict=True) if value is None)
        terms.append((math.prod(value for value in factors if value is not None), letters))
    return Expression(tuple(terms))


def _grouped(operands: Operands) -> dict[str, Rule]:
    """At least two channels per group."""
    return {} if operands.integer("group", 1) == 1 else {"g": Rule(least=2), "m": Rule(least=2)}


def _window(operands: Operands, weight: int | None = None) -> dict[str, Rule]:
    """The same remainder by the stride, more than the window, and two positions of it or more."""
    shape = operands.shape(0) or ()
    rank = max(len(shape) - 2, 0)
    filters = operands.shape(weight) if weight is not None else None
    kernel = operands.integers("kernel_shape", (filters or (1,) * (rank + 2))[2:])
    strides, dilations = operands.integers("strides", [1] * rank), operands.integers("dilations", [1] * rank)
    rules = {}
    for axis, (size, stride, dilation) in enumerate(zip(kernel, strides, dilations, strict=False)):
        rules[f"s{axis}"] = Rule(least=max((size - 1) * dilation + 1 + stride, 3), modulus=math.lcm(stride, 2))
    return rules


def _transposed(operands: Operands) -> dict[str, Rule]:
    """Windows that overlap as they do in the real one."""
    rank = max(len(operands.shape(0) or ()) - 2, 0)
    kernel = operands.integers("kernel_shape", (operands.shape(1) or (1,) * (rank + 2))[2:])
    strides, dilations = operands.integers("strides", [1] * rank), operands.integers("dilations", [1] * rank)
    rules = {}
    for axis, (size, stride, dilation) in enumerate(zip(kernel, strides, dilations, strict=False)):
        rules[f"s{axis}"] = Rule(least=max(math.ceil(((size - 1) * dilation + 1) / stride) + 1, 3))
    return rules


_CHANNELS = {"N": "batch", "C": "channels", "g": "channels", "m": "channels", "s": "spatial"}


def _convolution(*axes: str, weight: int) -> Family:
    return Family(axes, lambda operands: _grouped(operands) | _window(operands, weight), _CHANNELS)


_DATA, _FILTERS = "N group*g s...", "group*m g =..."
FAMILIES: dict[str, Family] = {
    "Conv": _convolution(_DATA, _FILTERS, "group*m", weight=1),
    "FusedConv": _convolution(_DATA, _FILTERS, "group*m", weight=1),
    "ConvInteger": _convolution(_DATA, _FILTERS, "", "group*m", weight=1),
    "QLinearConv": _convolution(_DATA, "", "", _FILTERS, "group*m", "group*m", "", "", "group*m", weight=3),
    "ConvTranspose": Family(
        (_DATA, "group*g m =...", "group*m"), lambda operands: _grouped(operands) | _transposed(operands), _CHANNELS
    ),
    **{
        name: Family(("N C s...",), _window, _CHANNELS)
        for name in ("AveragePool", "MaxPool", "LpPool", "QLinearAveragePool")
    },
    **{name: Family(("N C s...",), kinds=_CHANNELS) for name in ("GlobalAveragePool", "GlobalMaxPool", "GlobalLpPool")},
}
"""By operator name, of any domain."""
