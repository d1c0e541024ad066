"""The error profile: a point for each node, its height the error as a multiple of the tolerance.

Heights are logarithmic, so that errors of 10⁻³ and of 10⁶ times the tolerance are both visible. Zero is drawn on the
lowest line, and a difference that is no number (a NaN on one side) on the highest.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

LEFT, TOP, ROOM = 64, 14, 220
"""The place of the plot in its frame, and its height, in pixels."""
_LOWEST, _HIGHEST = -6, 8
"""The powers of ten between which errors are distinguished."""
_WIDEST, _NARROWEST = 2400, 1200


@dataclass(frozen=True)
class Point:
    """A node's error; ``tensor`` is the key of what can be plotted of it."""

    x: float
    y: float
    hint: str
    bad: bool
    tensor: str


@dataclass(frozen=True)
class Series:
    """One kind of error."""

    name: str
    colour: str
    points: tuple[Point, ...]
    lines: tuple[str, ...]
    """The points of nodes that follow each other, as an SVG polyline takes them."""


@dataclass(frozen=True)
class NodeError:
    """The error of one node as a multiple of the tolerance; None if unknown."""

    title: str
    error: float | None
    bad: bool
    tensor: str = ""


@dataclass(frozen=True)
class ErrorProfile:
    """The plot: its series, its frame, and its horizontal lines with their labels."""

    measure: str
    series: tuple[Series, ...]
    width: int
    height: int
    ticks: tuple[tuple[float, str], ...]
    left: int = LEFT

    @classmethod
    def of(cls, kinds: Sequence[tuple[str, str, Sequence[NodeError]]]) -> ErrorProfile | None:
        """Return the plot of several kinds of errors (name, colour, an error a node); None if no error is known."""
        known = [point.error for *_, errors in kinds for point in errors if point.error is not None]
        if not known:
            return None
        powers = [_power(error) for error in known]
        low, high = math.floor(min(*powers, -1)), math.ceil(max(*powers, 1))
        count = max(len(errors) for *_, errors in kinds)
        width = min(_WIDEST, max(_NARROWEST, 6 * count))

        def height(power: float) -> float:
            return round(TOP + ROOM * (high - power) / (high - low), 1)

        series = []
        for name, colour, errors in kinds:
            points, runs = [], [""]
            for index, point in enumerate(errors):
                if point.error is None:
                    runs.append("")
                    continue
                x = round(LEFT + 8 + (width - LEFT - 16) * index / max(1, count - 1), 1)
                hint = f"{point.title}\n{name}: {point.error:.3g} of the tolerance"
                points.append(Point(x, y := height(_power(point.error)), hint, point.bad, point.tensor))
                runs[-1] += f"{x},{y} "
            if points:
                series.append(Series(name, colour, tuple(points), tuple(filter(None, runs))))
        step = max(1, (high - low) // 7)
        marks = sorted({*range(low, high + 1, step), 0})
        ticks = tuple((height(power), "tolerance" if power == 0 else _label(power, low)) for power in marks)
        return cls("as a multiple of the tolerance", tuple(series), width, TOP + ROOM + 12, ticks)


def _power(error: float) -> float:
    if error == 0 or math.isnan(error) or math.isinf(error):
        return _LOWEST if error == 0 else _HIGHEST
    return min(_HIGHEST, max(_LOWEST, math.log10(error)))


def _label(power: int, low: int) -> str:
    return "0" if power == _LOWEST == low else f"10{str(power).translate(_SUPERSCRIPT)}"


_SUPERSCRIPT = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
