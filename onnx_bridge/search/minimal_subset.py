"""A smallest subset with a property, by bisection.

QuickXplain (Junker, 2004): for a monotonic property of sets it finds a subset that has the property, and from which no
element can be removed, with about k·log₂(n/k) + 2k tests for k of n elements. Earlier elements are preferred.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

T = TypeVar("T")


def minimal_subset(elements: Sequence[T], holds: Callable[[Sequence[T]], bool]) -> list[T]:
    """A minimal subset with the property, in the order of the elements.

    Args:
        elements: all of them have the property.
        holds: whether a subset has the property.
    """
    if holds([]):
        return []
    found = _explain([], False, list(elements), holds)
    return [each for each in elements if each in found]


def _explain(kept: list[T], grown: bool, elements: list[T], holds: Callable[[Sequence[T]], bool]) -> list[T]:
    """The elements that are needed beside ``kept``; ``grown`` says that ``kept`` has not been tested yet."""
    if grown and holds(kept):
        return []
    if len(elements) == 1:
        return elements
    middle = len(elements) // 2
    first, second = elements[:middle], elements[middle:]
    later = _explain(kept + first, True, second, holds)
    earlier = _explain(kept + later, bool(later), first, holds)
    return earlier + later
