"""Sizes with which the reference runs a model that it does not run with others: as few of them changed as possible.

    image: [batch, 3, height, width], whose 16 × 16 patches meet 197 positions    →  height = width = 224

One dimension is changed, otherwise all but the batch, otherwise all, to equal sizes. A size that inference finds the
only one to fit is tried first, or one for each dimension, then powers of four; what runs is made smaller as long as it
runs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

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
            if fitting and self.runs(dict.fromkeys(names, fitting)):
                return self._smallest(names, fitting)
            if fitting and self.runs(apart := self._apart(names, fitting)):
                return apart
            for size in _TRIED:
                if any(self.sizes[name] != size for name in names) and self.runs(dict.fromkeys(names, size)):
                    return self._smallest(names, size)
        return None

    def _apart(self, names: Sequence[str], size: int) -> dict[str, int]:
        """Return the size of each dimension that is the only one to fit beside those of the others."""
        changed = dict.fromkeys(names, size)
        for name in names:
            changed[name] = self._fitting([name], changed) or changed[name]
        return changed

    def _groups(self) -> Iterator[Sequence[str]]:
        names = [name for name in self.sizes if name not in self.batch]
        singles = [*names, *(name for name in self.sizes if name in self.batch)]
        yield from ([name] for name in singles)
        yield from (group for group in (names, singles) if len(group) > 1)

    def _fitting(self, names: Sequence[str], beside: Sizes = MappingProxyType({})) -> int | None:
        """Return the smallest size, beside others, for which the sizes that contradict each other are the same."""

        def contradicting(size: int) -> list[int]:
            found = self.conflict({**beside, **dict.fromkeys(names, size)})
            return [*dict.fromkeys(number for number in found.sizes if isinstance(number, int))] if found else []

        ends = [contradicting(size) for size in _FITTING[-2:]]
        fixed = [index for index, (one, other) in enumerate(zip(*ends, strict=False)) if one == other]
        if len(fixed) != 1 or any(len(end) != 2 for end in ends):
            return None
        (index,), number = fixed, ends[0][fixed[0]]

        def is_smaller(size: int) -> bool:
            pair = contradicting(size)
            return len(pair) == 2 and pair[index] == number and pair[1 - index] < number

        below = max(filter(is_smaller, _FITTING), default=0)
        if not below:
            return None
        above = 2 * below
        while above - below > 1:
            middle = (above + below) // 2
            below, above = (middle, above) if is_smaller(middle) else (below, middle)
        return above

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
