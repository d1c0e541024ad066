"""Searches by bisection: the first index, a minimal interval and a minimal subset for which a predicate holds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

T = TypeVar("T")

Fails = Callable[[int, int], bool | None]
_OVERLAP = 8
"""The largest distance between the items of a failure for the quick search."""
"""A predicate: True if the interval [start, stop) fails, False if it does not, None if that is unknown."""


def bisect_first(indices: range, holds: Callable[[int], bool]) -> int:
    """Return the first index for which a monotonic predicate holds; it is known to hold for the last one.

    If the predicate is not monotonic, the result is still an index for which it holds and before which it does not.
    """
    low, high = indices.start, indices.stop - 1
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if holds(middle) else (middle + 1, high)
    return low


def minimal_interval(size: int, fails: Fails) -> tuple[int, int]:
    """Return an interval that fails, and does not fail without its first or its last item.

    The stop is found first, by bisection over intervals that begin some items early: these shrink quickly, and
    still include failures that need several neighbouring items. If the start of that failure lies further away, the
    search is repeated over intervals that begin at 0. Then the start is found by doubling the length. A failure of one
    item takes ⌈log₂ size⌉ + 1 calls.

    Args:
        size: the number of items; all together are known to fail.

    Returns:
        The start and the stop of the interval.
    """
    for reach in (_OVERLAP, size):
        stop = _stop(size, fails, reach)
        longest = min(stop, reach)
        passing = 0
        while passing < longest:
            length = min(max(1, 2 * passing), longest)
            if fails(stop - length, stop):
                return _start(stop, range(passing + 1, length + 1), fails), stop
            passing = length
    return 0, size


def ddmin(items: Sequence[T], fails: Callable[[list[T]], bool]) -> list[T]:
    """Return a subset that fails, and does not fail without any one of its items (1-minimal).

    Contiguous runs are removed, then ever shorter ones, down to single items (Zeller and Hildebrandt 2002, "Simplifying
    and Isolating Failure-Inducing Input"). The property need not be monotonic.

    Args:
        items: all of them together are known to fail.
        fails: whether a subset, in order, fails.
    """
    kept = list(items)
    size = max(1, len(kept) // 2)
    while True:
        start, before = 0, len(kept)
        while start < len(kept):
            fewer = kept[:start] + kept[start + size :]
            if fewer and fails(fewer):
                kept = fewer
            else:
                start += size
        if size > 1:
            size = max(1, min(size // 2, len(kept) // 2))
        elif len(kept) == before:
            return kept


def minimal_subset(elements: Sequence[T], holds: Callable[[Sequence[T]], bool]) -> list[T]:
    """Return a subset with a monotonic property, and without it if any one element is removed.

    QuickXplain (Junker 2004): about k·log₂(n/k) + 2k tests for k of n elements, a fifth fewer than `ddmin`, which does
    not need a monotonic property. Earlier elements are preferred; the subset is in their order.

    Args:
        elements: all of them together have the property.
    """
    if holds([]):
        return []
    needed = _explain([], False, list(elements), holds)
    return [element for element in elements if element in needed]


def _explain(kept: list[T], grown: bool, elements: list[T], holds: Callable[[Sequence[T]], bool]) -> list[T]:
    """Return the elements that are needed beside ``kept``; ``grown`` says that ``kept`` has not been tested yet."""
    if grown and holds(kept):
        return []
    if len(elements) == 1:
        return elements
    middle = len(elements) // 2
    first, second = elements[:middle], elements[middle:]
    later = _explain(kept + first, True, second, holds)
    earlier = _explain(kept + later, bool(later), first, holds)
    return earlier + later


def _start(stop: int, lengths: range, fails: Fails) -> int:
    return stop - bisect_first(lengths, lambda length: bool(fails(stop - length, stop)))


def _stop(size: int, fails: Fails, overlap: int) -> int:
    low, high = 0, size
    while high - low > 1:
        middle = (low + high) // 2
        start = max(0, low - overlap)
        failed = fails(start, middle)
        if failed is None and start:
            failed = fails(0, middle)
        low, high = (low, middle) if failed else (middle, high)
    return high
