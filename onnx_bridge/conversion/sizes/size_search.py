"""Sizes with which the reference runs a model that it does not run with others: as few of them changed as possible.

    image: [batch, 3, height, width], whose 16 × 16 patches meet 197 positions    →  height = width = 224

A size that inference finds the only one to fit is tried first, for all dimensions but the batch, otherwise for one. Of
several, which one more frame or pixel beside a stride does not tell apart, it is the multiple of their number.
Otherwise they are typical sizes, or the least: powers of four are tried, for one dimension, for all but the batch, for
all; what runs is made smaller as long as it runs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from passes.shapes.open_sizes import Impossible

_TRIED = (1, 4, 16, 64, 256, 1024, 4096)
_FITTING = tuple(2**power for power in range(19))
"""The sizes between which the only one that fits is searched for."""
Sizes = Mapping[str, int]


@dataclass(frozen=True)
class SizeSearch:
    """A search.

    Attributes:
        sizes: the sizes of the dimensions that may change, those that change first before the others.
        batch: the names of those that are batches.
        typical: sizes that such dimensions usually have, the first ones before the others.
        least: whether the smallest sizes come before typical ones.
        runs: whether the model runs with other sizes of some of them.
        conflict: what inference finds impossible with other sizes of some of them.
    """

    sizes: Sizes
    batch: set[str]
    typical: Sequence[Sizes]
    least: bool
    runs: Callable[[Sizes], bool]
    conflict: Callable[[Sizes], Impossible | None]

    def result(self) -> dict[str, int] | None:
        """Return the sizes to change, with which the model runs; None if none is found."""
        ways = (self._fitted, self._least, self._usual) if self.least else (self._fitted, self._usual, self._least)
        return next(filter(None, (way() for way in ways)), None)

    def _fitted(self) -> dict[str, int] | None:
        several, singles, whole = self._groups()
        for names in (*several, *singles, *whole):
            fitting = self._fitting(names)
            if fitting and self.runs(same := dict.fromkeys(names, fitting)):
                return self._fewest(same)
            if fitting and (apart := self._apart(dict.fromkeys(names, fitting))):
                return apart
        return None

    def _least(self) -> dict[str, int] | None:
        several, singles, whole = self._groups()
        for names in (*singles, *several, *whole):
            for size in _TRIED:
                same = dict.fromkeys(names, size)
                if any(self.sizes[name] != size for name in names) and self.runs(same):
                    return self._smallest(self._fewest(same))
        return None

    def _usual(self) -> dict[str, int] | None:
        usual = next(filter(self.runs, self.typical), None)
        return {**usual} if usual else next(filter(None, map(self._apart, self.typical[:1])), None)

    def _groups(self) -> tuple[list[list[str]], list[list[str]], list[list[str]]]:
        """Return several dimensions without the batch, single ones, and all: those of which others do not consist."""
        names = [name for name in self.sizes if name not in self.batch]
        everything = [*names, *(name for name in self.sizes if name in self.batch)]
        several, whole = [names] if len(names) > 1 else [], [everything] if len(everything) > max(len(names), 1) else []
        return several, [[name] for name in everything], whole

    def _apart(self, sizes: Sizes) -> dict[str, int] | None:
        """Return sizes of which as few as needed are replaced by the only ones that fit beside the others."""
        changed = {**sizes}
        for name in sizes:
            changed[name] = self._fitting([name], changed) or changed[name]
            if self.runs(changed):
                return changed
        return None

    def _fitting(self, names: Sequence[str], beside: Sizes = MappingProxyType({})) -> int | None:
        """Return a size, beside others, for which sizes are the same that contradict each other for smaller ones."""

        def contradicting(size: int) -> list[int]:
            conflict = self.conflict({**beside, **dict.fromkeys(names, size)})
            return [*dict.fromkeys(number for number in conflict.sizes if isinstance(number, int))] if conflict else []

        ends = [contradicting(size) for size in _FITTING[-2:]]
        fixed = [index for index, (one, other) in enumerate(zip(*ends, strict=False)) if one == other]
        if len(fixed) != 1 or any(len(end) != 2 for end in ends):
            return None
        (index,), number = fixed, ends[0][fixed[0]]

        def is_beside(size: int, sign: int) -> bool:
            pair = contradicting(size)
            return len(pair) == 2 and pair[index] == number and sign * (pair[1 - index] - number) > 0

        first = _first(lambda size: not is_beside(size, -1))
        end = _first(lambda size: is_beside(size, 1))
        count = end - first if is_beside(end, 1) else 1
        return -(-first // count) * count if count > 0 else None

    def _fewest(self, changed: dict[str, int]) -> dict[str, int]:
        """Return the sizes of fewer dimensions if the model runs with them, too."""
        for name in changed if len(changed) > 1 else ():
            fewer = {other: size for other, size in changed.items() if other != name}
            if fewer and self.runs(fewer):
                changed = fewer
        return changed

    def _smallest(self, changed: dict[str, int]) -> dict[str, int]:
        """Return the smallest one size of some dimensions with which the model runs."""
        low, size = max(self.sizes[name] for name in changed), max(changed.values())
        while size - low > 1:
            middle = (size + low) // 2
            low, size = (low, middle) if self.runs(dict.fromkeys(changed, middle)) else (middle, size)
        return dict.fromkeys(changed, size)


def _first(holds: Callable[[int], bool]) -> int:
    """Return the smallest size of which something holds, if it holds of all that are larger."""
    below = max((size for size in _FITTING if not holds(size)), default=0)
    above = 2 * below or 1
    while above - below > 1:
        middle = (above + below) // 2
        below, above = (below, middle) if holds(middle) else (middle, above)
    return above
