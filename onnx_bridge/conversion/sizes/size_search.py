"""Sizes with which the reference runs a model that it does not run with others: as few of them changed as possible.

    image: [batch, 3, height, width], whose 16 × 16 patches meet 197 positions    →  height = width = 224

One dimension is changed, otherwise all but the batch, otherwise all, to equal sizes. A size that inference finds the
only one to fit is tried first, then powers of four; what runs is made smaller as long as it runs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from passes.shapes.open_sizes import Impossible

_TRIED = (1, 4, 16, 64, 256, 1024, 4096)
_FITTING = tuple(2**power for power in range(13))
"""The sizes between which the only one that fits is searched for."""
Sizes = Mapping[str, int]


@dataclass(frozen=True)
class SizeSearch:
    """A search.

    Attributes:
        sizes: the sizes of the dimensions that may change, those that change first before the others.
        batch: the names of those that are batches.
        runs: whether the model runs with other sizes of some of them.
        conflict: what inference finds impossible with other sizes of some of them.
    """

    sizes: Sizes
    batch: set[str]
    runs: Callable[[Sizes], bool]
    conflict: Callable[[Sizes], Impossible | None]

    def result(self) -> dict[str, int] | None:
        """Return the sizes to change, with which the model runs; None if none is found."""
        for names in self._groups():
            fitting = self._fitting(names)
            for size in (*([fitting] if fitting else ()), *_TRIED):
                if any(self.sizes[name] != size for name in names) and self.runs(dict.fromkeys(names, size)):
                    return self._smallest(names, size)
        return None

    def _groups(self) -> Iterator[Sequence[str]]:
        names = [name for name in self.sizes if name not in self.batch]
        singles = [*names, *(name for name in self.sizes if name in self.batch)]
        yield from ([name] for name in singles)
        yield from (group for group in (names, singles) if len(group) > 1)

    def _fitting(self, names: Sequence[str]) -> int | None:
        """Return the smallest size for which the sizes that contradict each other are the same."""
        ends = [self._numbers(names, size) for size in _FITTING[-2:]]
        wanted = set.intersection(*ends)
        if len(wanted) != 1 or any(len(numbers) != 2 for numbers in ends):
            return None
        (number,) = wanted

        def is_smaller(size: int) -> bool:
            return bool(others := self._numbers(names, size) - wanted) and max(others) < number

        below = max(filter(is_smaller, _FITTING), default=0)
        if not below:
            return None
        above = 2 * below
        while above - below > 1:
            middle = (above + below) // 2
            below, above = (middle, above) if is_smaller(middle) else (below, middle)
        return above

    def _numbers(self, names: Sequence[str], size: int) -> set[int]:
        found = self.conflict(dict.fromkeys(names, size))
        return {number for number in found.sizes if isinstance(number, int)} if found is not None else set()

    def _smallest(self, names: Sequence[str], size: int) -> dict[str, int]:
        """Return the smallest change: fewer of the dimensions, and a smaller size than one that runs."""
        changed = dict.fromkeys(names, size)
        for name in names if len(names) > 1 else ():
            fewer = {other: size for other in changed if other != name}
            if fewer and self.runs(fewer):
                changed = fewer
        low = max(self.sizes[name] for name in changed)
        while size - low > 1:
            middle = (size + low) // 2
            low, size = (low, middle) if self.runs(dict.fromkeys(changed, middle)) else (middle, size)
        return dict.fromkeys(changed, size)
