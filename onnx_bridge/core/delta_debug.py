"""Search by halving, for what fails where all of it fails."""

from __future__ import annotations

from collections.abc import Callable

Fails = Callable[[int, int], bool | None]
"""Whether the part from one index up to another fails; None where that cannot be told."""


def first(counts: range, holds: Callable[[int], bool]) -> int:
    """The least of the counts for which it holds, if it holds for all above; for the last it is known to.

    Where it does not hold for all above, still one for which it holds and for whose predecessor it does not.
    """
    low, high = counts.start, counts.stop - 1
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if holds(middle) else (middle + 1, high)
    return low


def smallest(size: int, fails: Fails, *, reach: int = 8) -> tuple[int, int]:
    """A part of a row of things that fails, and fails no more without its first or its last.

    First the end of the part is sought, in parts that begin ``reach`` things before what is in question: so they soon
    get small, and what is wrong only together with its neighbours is found all the same. Where that does not lead to
    an end, since things far apart are wrong together, it is sought in parts that begin with the first thing. Then its
    start is sought, by doubling. For one thing this takes ⌈log₂ size⌉ + 1 questions.

    Args:
        size: how many things there are; all together are known to fail.
        fails: is asked about parts.
        reach: how far apart things may be for the quick search.

    Returns:
        Where the part begins and ends.
    """
    for overlap in (reach, size):
        stop = _stop(size, fails, overlap)
        longest = min(stop, overlap)
        tried = 0
        while tried < longest:
            length = min(max(1, 2 * tried), longest)
            if fails(stop - length, stop):
                return _start(stop, tried, length, fails), stop
            tried = length
    return 0, size


def _start(stop: int, passes: int, length: int, fails: Fails) -> int:
    """Where the part begins: it is longer than what passes, and no longer than what is known to fail."""
    return stop - first(range(passes + 1, length + 1), lambda count: bool(fails(stop - count, stop)))


def _stop(size: int, fails: Fails, overlap: int) -> int:
    """Where the part ends."""
    low, high = 0, size
    while high - low > 1:
        middle = (low + high) // 2
        start = max(0, low - overlap)
        failed = fails(start, middle)
        if failed is None and start:
            failed = fails(0, middle)
        low, high = (low, middle) if failed else (middle, high)
    return high
