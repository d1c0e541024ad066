"""A smallest subset with a property, by bisection.

QuickXplain (Junker, 2004): where a property holds for a set and goes on to hold when elements are added, it finds a
subset for which it holds and of which no element can be left out, with about k·log₂(n/k) + 2k questions for k of n
elements. Of several such subsets it finds the one with the earlier elements.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

T = TypeVar("T")


def minimal(elements: Sequence[T], holds: Callable[[Sequence[T]], bool]) -> list[T]:
    """The subset, in the order of the elements.

    Args:
        elements: for all of which it holds.
        holds: whether it holds for a subset; for none it may.
    """
    if holds([]):
        return []
    found = _explain([], False, list(elements), holds)
    return [each for each in elements if each in found]


def _explain(kept: list[T], grown: bool, elements: list[T], holds: Callable[[Sequence[T]], bool]) -> list[T]:
    """What of ``elements`` is needed beside ``kept``; ``grown`` says that this has not been asked about yet."""
    if grown and holds(kept):
        return []
    if len(elements) == 1:
        return elements
    middle = len(elements) // 2
    first, second = elements[:middle], elements[middle:]
    later = _explain(kept + first, True, second, holds)
    earlier = _explain(kept + later, bool(later), first, holds)
    return earlier + later
