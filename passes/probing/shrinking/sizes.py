"""A strictly increasing map from the sizes of a probe to those of its witness.

Sizes are kept apart by kind: a convolution does not compare its channels with its width. Within a kind equal sizes stay
equal and the order of sizes stays, 0 and 1 stay, neighbours stay neighbours, and others at least two apart, so that
differences of sizes do not become 0 or 1. Each size keeps its remainders, and its minimum if it has one. The result
is the least of all such maps; so it maps no size to a larger one, and applied to its own results it changes nothing.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from fractions import Fraction

Key = tuple[str, int]
"""A kind of sizes, and the size."""


@dataclass(frozen=True)
class Rule:
    """The properties that a smaller size must have in common with the real one.

    Attributes:
        least: it is at least this, unless the real one is smaller.
        modulus: it has the same remainder by this.
    """

    least: int = 3
    modulus: int = 2

    def __or__(self, other: Rule) -> Rule:
        return Rule(max(self.least, other.least), math.lcm(self.modulus, other.modulus))

    def allows(self, small: int, real: int) -> bool:
        """Return whether a size may stand for the real one."""
        if not min(self.least, real) <= small <= real:
            return False
        return (small - real) % self.modulus == 0 and (small > 1) == (real > 1)


ALIKE = Rule(least=2, modulus=1)
"""Whatever is not 0 or 1."""


@dataclass(frozen=True)
class Expression:
    """A sum of products: a factor and sizes each. Factors may be fractions if the product is an integer."""

    terms: tuple[tuple[int | Fraction, tuple[Key, ...]], ...]

    @staticmethod
    def number(value: int) -> Expression:
        return Expression(((value, ()),))

    @staticmethod
    def product(*keys: Key, factor: int | Fraction = 1) -> Expression:
        return Expression(((factor, keys),))

    @staticmethod
    def sum(*keys: Key) -> Expression:
        return Expression(tuple((1, (key,)) for key in keys))

    @property
    def key(self) -> Key | None:
        """The size that it consists of; None if it is more than that."""
        return self.terms[0][1][0] if len(self.terms) == 1 and self.terms[0][0] == 1 == len(self.terms[0][1]) else None

    @property
    def real(self) -> int:
        """Its value for the sizes as they are."""
        return int(sum(factor * math.prod(size for _, size in keys) for factor, keys in self.terms))


@dataclass
class SizeMap:
    """The sizes of a probe, and what they become.

    Attributes:
        rules: for each size that may change.
        definitions: sizes that follow from others: what is made of two factors, or of parts.
    """

    rules: dict[Key, Rule] = field(default_factory=dict)
    definitions: dict[Key, Expression] = field(default_factory=dict)
    _solved: dict[Key, int] = field(default_factory=dict)

    def require(self, key: Key, rule: Rule) -> Expression:
        """Add a rule for a size; return the size."""
        known = self.rules.get(key)
        self.rules[key] = rule if known is None else known | rule
        return Expression.product(key)

    def define(self, key: Key, expression: Expression) -> None:
        """Let a size follow from others, unless it does already, or is one of them."""
        if key not in self.definitions and expression.key is None and not self._depends(expression, key):
            self.definitions[key] = expression

    def _depends(self, expression: Expression, key: Key) -> bool:
        for _, keys in expression.terms:
            for factor in keys:
                if factor == key or (factor in self.definitions and self._depends(self.definitions[factor], key)):
                    return True
        return False

    def solve(self, least: int = 0, power: int = 0) -> None:
        """Find the least sizes; to be called when all rules are known.

        Args:
            least: how many times larger the minima, and the distances of sizes, are than they need to be.
            power: the power of the least common multiple of all moduli by which all sizes keep their remainder.
        """
        self._solved = {}
        gap = 2 * (1 + least)
        modulus = math.lcm(*(rule.modulus for rule in self.rules.values())) ** power if power else 1
        before: dict[str, tuple[int, int]] = {}
        for kind, real in sorted(self.rules):
            if (kind, real) in self.definitions:
                continue
            small = real
            if real > 1:
                last, smaller = before.get(kind, (1, 1))
                rule = self.rules[kind, real]
                low = max(min(rule.least * (1 + least), real), smaller + min(gap if last > 1 else 1, real - last))
                small = low + (real - low) % math.lcm(rule.modulus, modulus)
                before[kind] = real, small
            self._solved[kind, real] = min(small, real)

    def __getitem__(self, key: Key) -> int:
        """Return what a size becomes; itself if it is not known."""
        definition = self.definitions.get(key)
        return self._solved.get(key, key[1]) if definition is None else self.evaluate(definition)

    def evaluate(self, expression: Expression) -> int:
        """Return what a sum of products becomes."""
        return int(sum(factor * math.prod(self[key] for key in keys) for factor, keys in expression.terms))
