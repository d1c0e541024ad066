"""Static plots: their geometry is computed here, and the page renders it as SVG.

Two kinds: *bands*, the distribution of some series beside each other along one logarithmic axis; and *lines*, one value
over another, both logarithmic. Logarithms because engines differ by factors: the same distance is the same factor.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

WIDTH = 1200
LEFT, RIGHT, TOP, BOTTOM = 12, 12, 10, 54
_BAND, _BAR = 58, 30
"""Heights of a band with its name, and of its tallest bar."""
_BINS = 60
_LINES = 240
COLOURS = ("first", "second", "third", "fourth", "fifth", "sixth")


@dataclass(frozen=True)
class Bar:
    """A box from its upper left corner."""

    x: float
    y: float
    width: float
    height: float
    hint: str


@dataclass(frozen=True)
class Mark:
    """A point of a line, or a sign in a band: ``kind`` is ``point``, ``ring`` or ``tick``."""

    x: float
    y: float
    kind: str
    hint: str


@dataclass(frozen=True)
class Trace:
    """One series: its name, colour and geometry; ``label`` is where the name stands, None if it is in the legend."""

    name: str
    colour: str
    bars: tuple[Bar, ...] = ()
    marks: tuple[Mark, ...] = ()
    label: tuple[float, float] | None = None
    dash: str = ""

    @property
    def line(self) -> str:
        """Its points, as an SVG polyline takes them."""
        return " ".join(f"{mark.x},{mark.y}" for mark in self.marks if mark.kind == "point")


@dataclass(frozen=True)
class Chart:
    """A plot.

    Attributes:
        id: its anchor.
        note: a sentence on how to read it.
        horizontal: what the axis below says.
        vertical: what the axis on the left says; empty if there is none.
        across: places and labels of the lines that rise from the axis below.
        up: places and labels of the lines from the axis on the left.
        height: pixels.
        left: the left edge of the plot, in pixels.
    """

    id: str
    title: str
    note: str
    horizontal: str
    vertical: str
    traces: tuple[Trace, ...]
    across: tuple[tuple[float, str], ...]
    up: tuple[tuple[float, str], ...]
    height: int
    left: int = LEFT
    width: int = WIDTH

    @property
    def floor(self) -> int:
        """The height of the axis below."""
        return self.height - BOTTOM

    @property
    def legend(self) -> list[Trace]:
        """The series whose names stand nowhere else."""
        return [trace for trace in self.traces if trace.label is None]


def bands(
    id_: str,
    title: str,
    note: str,
    horizontal: str,
    series: Sequence[tuple[str, str, Sequence[float], Mapping[str, float]]],
) -> Chart:
    """Return distributions, one below the other, of series: name, kind (with a colour), values (> 0), marked values."""
    axis = _Axis([number for _, _, values, _ in series for number in values], LEFT, WIDTH - RIGHT, at_least=1.5)
    edges = np.geomspace(axis.low, axis.high, _BINS + 1)
    places = [axis.place(edge) for edge in edges]
    traces = []
    kinds = list(dict.fromkeys(kind for _, kind, *_ in series))
    for number, (name, kind, values, marked) in enumerate(series):
        floor = TOP + (number + 1) * _BAND
        counts, _ = np.histogram(np.clip(values, axis.low, axis.high), edges)
        most = max(int(counts.max()), 1)
        bars = tuple(
            Bar(
                places[index],
                round(floor - _BAR * int(count) / most, 1),
                round(places[index + 1] - places[index], 1),
                round(_BAR * int(count) / most, 1),
                f"{int(count)} of {len(values)} from {edges[index]:.3g} to {edges[index + 1]:.3g}",
            )
            for index, count in enumerate(counts)
            if count
        )
        signs = tuple(
            Mark(axis.place(value), floor, "tick", f"{name}: {label} {value:.4g}") for label, value in marked.items()
        )
        label = (float(LEFT), float(floor - _BAR - 8))
        traces.append(Trace(name, COLOURS[kinds.index(kind) % len(COLOURS)], bars, signs, label))
    height = TOP + len(series) * _BAND + BOTTOM
    return Chart(id_, title, note, horizontal, "", tuple(traces), axis.ticks(), (), height)


def lines(
    id_: str,
    title: str,
    note: str,
    horizontal: str,
    vertical: str,
    series: Sequence[tuple[str, Mapping[int, float], Mapping[int, str]]],
) -> Chart:
    """Return values over whole numbers: a series has a name, values (> 0) by number, and remarks on ringed numbers."""
    left, height = 70, TOP + _LINES + BOTTOM
    numbers = sorted({number for _, points, _ in series for number in points})
    across = _Axis(numbers, left + 14, WIDTH - RIGHT - 14, at_least=1.0)
    up = _Axis([point for _, points, _ in series for point in points.values()], height - BOTTOM, TOP, at_least=2.0)
    traces = []
    for place, (name, points, said) in enumerate(series):
        marks = []
        for number, value in sorted(points.items()):
            x, y = across.place(number), up.place(value)
            why = f", {said[number]}" if number in said else ""
            marks += [Mark(x, y, "ring", name)] if why else []
            marks.append(Mark(x, y, "point", f"{name}: {value:.4g} at {number}{why}"))
        dash = "" if place < len(COLOURS) else "5 4"
        traces.append(Trace(name, COLOURS[place % len(COLOURS)], marks=tuple(marks), dash=dash))
    below = tuple((across.place(number), str(number)) for number in numbers)
    return Chart(id_, title, note, horizontal, vertical, tuple(traces), below, up.ticks(), height, left)


def scatter(
    id_: str,
    title: str,
    note: str,
    horizontal: str,
    vertical: str,
    points: Sequence[tuple[float, float, bool, str]],
    least: float,
) -> Chart:
    """Return points on linear axes: x, y, whether it is marked, and what it says; and a line at the ``least`` y."""
    left, height = 70, TOP + _LINES + BOTTOM
    across = _linear([x for x, *_ in points], left + 14, WIDTH - RIGHT - 14)
    up = _linear([least, *(y for _, y, *_ in points)], height - BOTTOM - 8, TOP + 8)
    groups = []
    for place, (name, wanted) in enumerate((("tried", False), ("chosen", True))):
        marks = tuple(Mark(across[0](x), up[0](y), "ring", said) for x, y, marked, said in points if marked == wanted)
        groups.append(Trace(name, COLOURS[place], marks=marks))
    ends = tuple(Mark(float(x), up[0](least), "point", f"asked: {least:g}") for x in (left, WIDTH - RIGHT))
    groups.append(Trace("asked", COLOURS[2], marks=ends, dash="5 4"))
    return Chart(id_, title, note, horizontal, vertical, tuple(groups), across[1], up[1], height, left)


def _linear(
    values: Sequence[float], start: float, end: float
) -> tuple[Callable[[float], float], tuple[tuple[float, str], ...]]:
    """Return what places a value on a linear axis, and the places of five values with their labels."""
    low, span = min(values), (max(values) - min(values)) or 1.0

    def place(value: float) -> float:
        return round(start + (value - low) / span * (end - start), 1)

    return place, tuple((place(value), f"{value:.4g}") for value in np.linspace(low, low + span, 5))


class _Axis:
    """A logarithmic axis between two places, a little longer than its values."""

    def __init__(self, values: Sequence[float], start: float, end: float, at_least: float) -> None:
        low, high = min(values), max(values)
        middle, factor = math.sqrt(low * high), max(math.sqrt(high / low) * 1.04, math.sqrt(at_least))
        self.low, self.high = middle / factor, middle * factor
        self._start, self._end = start, end

    def place(self, value: float) -> float:
        span = math.log(self.high / self.low)
        share = math.log(value / self.low) / span if span else 0.5
        return round(self._start + share * (self._end - self._start), 1)

    def ticks(self) -> tuple[tuple[float, str], ...]:
        """Return round values within it: 1, 2 and 5 of each power of ten, or powers alone if these are many."""
        powers = range(math.floor(math.log10(self.low)), math.ceil(math.log10(self.high)) + 1)
        steps = (1,) if len(powers) > 4 else (1, 2, 5)
        candidates = [step * 10.0**power for power in powers for step in steps]
        inside = [tick for tick in candidates if self.low <= tick <= self.high]
        if len(inside) < 2:
            ends = [float(f"{self.low * 1.02:.3g}"), float(f"{self.high / 1.02:.3g}")]
            inside = [end for end in ends if self.low <= end <= self.high]
        return tuple((self.place(tick), f"{tick:.6g}") for tick in inside)
