"""The roles of inputs: what values make sense for one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from onnx_bridge.samples.dimensions import Dim

Bound = tuple[Dim, int]
"""A dimension, and an offset to add to it."""


@dataclass(frozen=True)
class Data:
    """Values without constraints."""


@dataclass(frozen=True)
class Columns(Data):
    """Values of which each column, along the last axis, is any of some numbers: those that decide something."""

    numbers: Mapping[int, tuple[float, ...]]


@dataclass(frozen=True)
class IntegerRange:
    """Integers from ``low`` to the smallest of ``highs``, exclusive; only ``low`` if that range is empty."""

    low: int
    highs: tuple[Bound, ...]

    def narrowed(self, other: IntegerRange) -> IntegerRange:
        """Return the intersection, or this range alone if the intersection is empty for known sizes."""
        low, highs = max(self.low, other.low), self.highs + other.highs
        known = [dim + more for dim, more in highs if isinstance(dim, int)]
        return IntegerRange(low, highs) if not known or min(known) > low else self


@dataclass(frozen=True)
class Positions:
    """0, 1, 2, … along the last axis, modulo the smallest of ``highs``."""

    highs: tuple[Bound, ...] = ()


@dataclass(frozen=True)
class Mask:
    """Ones, at least ``least``, then zeros along the last axis; their number is random for each entry of the first."""

    least: Dim = 1


@dataclass(frozen=True)
class Uniform:
    """Floats in [``low``, ``high``)."""

    low: float
    high: float


@dataclass(frozen=True)
class Constant:
    """One value, except that the first element may be a different one."""

    value: int
    first: int | None = None


@dataclass(frozen=True)
class Choice:
    """One of some numbers: that of the seed and the sample, in turn."""

    numbers: tuple[float, ...]


@dataclass(frozen=True)
class Sizes:
    """The given sizes, in order."""

    sizes: tuple[Dim, ...]


@dataclass(frozen=True)
class Parts:
    """Sizes of equal parts of ``whole``; the last one also has the rest."""

    whole: Dim


@dataclass(frozen=True)
class Lengths:
    """Integers from ``low`` to the sum of ``terms`` and ``offset``, inclusive; the first is the largest."""

    low: int
    terms: tuple[Dim, ...]
    offset: int = 0


Role = Data | IntegerRange | Positions | Mask | Uniform | Constant | Choice | Sizes | Parts | Lengths
