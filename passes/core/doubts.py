"""Doubts: failures that depend on the state of the machine, and therefore prove nothing about a model.

A process that did not answer, for lack of time or memory, because it was killed or could not be started, may answer
the next time. What such a failure makes of a model in hand (a node that is not compared, a constant that is not folded)
holds for this once. Whoever keeps a result, in memory or on disk, asks whether there were doubts while it was made.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, ClassVar, ParamSpec, TypeVar

_P = ParamSpec("_P")
_T = TypeVar("_T")


class Doubts:
    """True once there are doubts since it was made, in any thread of this process."""

    _count: ClassVar[int] = 0

    def __init__(self) -> None:
        self._before = Doubts._count

    def __bool__(self) -> bool:
        return Doubts._count != self._before

    @classmethod
    def add(cls) -> None:
        """Note a failure that depends on the state of the machine; errors of such failures do so themselves."""
        Doubts._count += 1


class _InDoubt(Exception):
    """Carries a result past the memory of `functools.lru_cache`, which keeps no exceptions."""


def cached(most: int | None = None) -> Callable[[Callable[_P, _T]], Callable[_P, _T]]:
    """Keep results of a function as `functools.lru_cache`, ``most`` at a time, except those that are in doubt."""

    def decorate(function: Callable[_P, _T]) -> Callable[_P, _T]:
        @functools.lru_cache(most)
        def certain(*args: Any, **keywords: Any) -> _T:
            doubts, result = Doubts(), function(*args, **keywords)
            if doubts:
                raise _InDoubt(result)
            return result

        @functools.wraps(function)
        def kept(*args: _P.args, **keywords: _P.kwargs) -> _T:
            try:
                return certain(*args, **keywords)  # type: ignore[arg-type]
            except _InDoubt as doubt:
                result: _T = doubt.args[0]
                return result

        return kept

    return decorate
