"""The pictures of the documentation: the mark, the way of a model, and what is drawn from results.

Results are the figures of the suite conformance, and those of `docs.generator.measure`.

``python -m docs.generator.pictures`` writes them into ``docs/assets``, as ``make docs`` does.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from html import escape
from pathlib import Path
from typing import Any

from docs.generator.coverage import DATA
from docs.generator.measure import EXAMPLE
from docs.generator.picture import picture

ASSETS = Path(__file__).resolve().parents[1] / "assets"
_STYLE = """<style>
text { font: 14px system-ui, sans-serif; fill: #1b1f24; } .sub { font-size: 12px; fill: #5b6470; }
.strong { font-weight: 650; } .box { fill: #f6f7f9; stroke: #5b6470; } .arrow { stroke: #5b6470; fill: none; }
.wholly { fill: #176f35; } .frozen { fill: #57a773; } .host { fill: #0b5cad; } .stock { fill: #8a929d; }
.rest { fill: #d8dce2; } .line { fill: none; stroke-width: 2; } .grid { stroke: #d8dce2; }
.a { fill: #0b5cad; stroke: #0b5cad; } .b { fill: #c2560c; stroke: #c2560c; } .c { fill: #6b3fa0; stroke: #6b3fa0; }
.d { fill: #1a7f72; stroke: #1a7f72; } .line { fill: none; }
@media (prefers-color-scheme: dark) {
  text { fill: #e4e8ee; } .sub { fill: #98a2b0; } .box { fill: #1c2128; stroke: #98a2b0; } .arrow { stroke: #98a2b0; }
  .wholly { fill: #57c97c; } .frozen { fill: #2f7d4b; } .host { fill: #7ab7ff; } .rest { fill: #343b45; }
  .grid { stroke: #343b45; } .a { fill: #7ab7ff; stroke: #7ab7ff; } .b { fill: #ff9d57; stroke: #ff9d57; }
  .c { fill: #c09cf5; stroke: #c09cf5; } .d { fill: #4fd1bf; stroke: #4fd1bf; } .line { fill: none; }
}
</style>"""
_KINDS = {
    "wholly": "wholly on MIGraphX",
    "frozen": "wholly, with inputs made constant",
    "host": "a part on ONNX Runtime",
}
Bar = Sequence[tuple[str, float]]
"""Widths with their colours, from left to right."""


def _svg(width: int, height: int, title: str, parts: Iterator[str]) -> str:
    opening = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img" aria-label="{title}">'
    return "\n".join([opening, f"<title>{title}</title>", _STYLE, *parts, "</svg>", ""])


def _text(x: float, y: float, text: str, kind: str = "", anchor: str = "start") -> str:
    return f'<text x="{x:g}" y="{y:g}" class="{kind}" text-anchor="{anchor}">{escape(text)}</text>'


def _bar(x: float, y: float, height: float, bar: Bar) -> Iterator[str]:
    for kind, width in bar:
        if width:
            yield f'<rect x="{x:.1f}" y="{y:g}" width="{width:.1f}" height="{height:g}" class="{kind}"/>'
        x += width


_BOXES = ("model", "ONNX, PyTorch"), ("passes", "cleaned, legalized"), ("MIGraphX", "most nodes")
_BOXES += ("ONNX Runtime", "what is left"), ("bundle", ".mxr, ONNX, manifest"), ("proof", "equal to the original")


def _way(size: tuple[int, int], places: Sequence[tuple[int, int]], arrows: str, more: str = "") -> str:
    """Return the way of a model: through the passes to MIGraphX and the host, and to the proof."""

    def parts() -> Iterator[str]:
        for (x, y), (name, about) in zip(places, _BOXES, strict=True):
            yield f'<rect x="{x}" y="{y}" width="150" height="60" rx="8" class="box"/>'
            yield _text(x + 75, y + 26, name, "strong", "middle")
            yield _text(x + 75, y + 46, about, "sub", "middle")
        yield f'<path d="{arrows}" class="arrow"/>{more}'

    return _svg(*size, "The way of a model: passes, MIGraphX and host, bundle, proof", parts())


def way() -> str:
    """Return the way of a model from left to right."""
    places = (10, 70), (190, 70), (390, 20), (390, 120), (590, 70), (790, 70)
    arrows = "M160 100H190M340 95L390 55M340 105L390 145M540 50L590 95M540 150L590 105M740 100H790"
    return _way((950, 190), places, arrows, _text(265, 152, "each node tried on MIGraphX", "sub", "middle"))


def way_down() -> str:
    """Return the way of a model from top to bottom, for narrow screens."""
    places = (85, 0), (85, 90), (0, 200), (170, 200), (85, 290), (85, 380)
    arrows = "M160 60V90M140 150L75 200M180 150L245 200M75 260L140 290M245 260L180 290M160 350V380"
    return _way((320, 440), places, arrows)


def mark() -> str:
    """Return the mark: two nodes of a graph, and a bridge between them."""
    parts = (
        '<rect width="64" height="64" rx="14" fill="#3f51b5"/>',
        '<path stroke="#fff" stroke-width="4" fill="none" d="M8 42H56M14 42A18 20 0 0 1 50 42M26 26V42M38 26V42"/>',
        '<circle cx="14" cy="42" r="6" fill="#fff"/><circle cx="50" cy="42" r="6" fill="#ffb74d"/>',
    )
    return "\n".join(
        ['<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 64 64" width="64" height="64">', *parts, "</svg>", ""]
    )


def depth(errors: dict[str, list[float]]) -> str:
    """Return the error of each node of a network, by its place in the graph, for each precision."""
    powers = [math.log10(error) for series in errors.values() for error in series]
    low, high = math.floor(min(powers)), math.ceil(max(powers))

    def parts() -> Iterator[str]:
        yield _text(0, 16, "Error by depth: a BERT on MIGraphX, against ONNX Runtime", "strong")
        for power in range(low, high + 1):
            y = 250 - 190 * (power - low) / (high - low)
            yield f'<path d="M60 {y:.1f}H470" class="grid"/>'
            yield _text(52, y + 4, f"1e{power}", "sub", "end")
        for kind, (precision, series) in zip("abc", errors.items(), strict=False):
            places = [
                (60 + 410 * index / max(1, len(series) - 1), 250 - 190 * (math.log10(error) - low) / (high - low))
                for index, error in enumerate(series)
            ]
            points = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
            yield f'<polyline points="{points}" class="{kind} line"/>'
            yield _text(480, places[-1][1] + 4, precision)
        yield _text(265, 276, "nodes, from inputs to output; largest absolute error", "sub", "middle")

    return _svg(520, 284, "The error of each node of a BERT in float32, float16 and bfloat16", parts())


def time(seconds: dict[str, dict[str, float]]) -> str:
    """Return the shares of the stages in the time of conversions."""
    stages = {"clean": "a", "compile": "b", "prove": "c", "the rest": "d"}

    def parts() -> Iterator[str]:
        yield _text(0, 16, "Where the time of convert goes", "strong")
        for number, (model, taken) in enumerate(seconds.items()):
            y, total = 36 + 36 * number, sum(taken.values())
            rest = sum(value for stage, value in taken.items() if stage not in stages)
            shares = {**{stage: taken.get(stage, 0.0) for stage in stages}, "the rest": rest}
            yield _text(0, y + 16, model)
            yield from _bar(90, y, 22, [(kind, 330 * shares[stage] / total) for stage, kind in stages.items()])
            yield _text(430, y + 16, f"{total:.1f} s", "strong")
        for number, (stage, kind) in enumerate(stages.items()):
            x, y = 90 + 100 * number, 46 + 36 * len(seconds)
            yield f'<rect x="{x}" y="{y}" width="12" height="12" class="{kind}"/>'
            yield _text(x + 18, y + 11, stage, "sub")

    return _svg(500, 64 + 36 * len(seconds), "The shares of cleaning, compiling and proving in a conversion", parts())


def conformance(data: dict[str, Any]) -> str:
    """Return the standard's tests that are right: by stock MIGraphX, and here."""
    tests, outcomes = data["tests"], data["outcomes"]
    here = [(kind, 360 * outcomes.get(kind, 0) / tests) for kind in _KINDS]
    right = sum(outcomes.get(kind, 0) for kind in _KINDS)
    rows: list[tuple[str, int, Bar]] = [
        ("MIGraphX alone", data["stock"], [("stock", 360 * data["stock"] / tests)]),
        ("ONNX Bridge", right, here),
    ]

    def parts() -> Iterator[str]:
        yield _text(0, 16, f"Of the {tests:,} backend tests of the ONNX standard are right", "strong")
        for number, (name, count, bar) in enumerate(rows):
            y = 36 + 40 * number
            yield _text(0, y + 18, name)
            yield from _bar(130, y, 26, [*bar, ("rest", 360 - sum(width for _, width in bar))])
            yield _text(500, y + 18, f"{count:,}", "strong")
        for number, (kind, name) in enumerate(_KINDS.items()):
            y = 124 + 22 * number
            yield f'<rect x="130" y="{y}" width="12" height="12" class="{kind}"/>'
            yield _text(148, y + 11, f"{outcomes.get(kind, 0):,} {name}", "sub")

    return _svg(
        550, 186, "Tests of the ONNX standard that are right, with MIGraphX alone and with ONNX Bridge", parts()
    )


def operators(data: dict[str, Any], columns: int = 3) -> str:
    """Return a bar for each operator: the shares of its tests that are right, and a line at what stock gets right."""
    known = sorted(data["operators"].items())
    length = -(-len(known) // columns)

    def parts() -> Iterator[str]:
        for number, (name, counts) in enumerate(known):
            x, y = 370 * (number // length), 16 * (number % length)
            yield _text(x + 228, y + 12, name, "sub", "end")
            bar = [(kind, 120 * counts.get(kind, 0) / counts["tests"]) for kind in _KINDS]
            yield from _bar(x + 234, y + 3, 11, [*bar, ("rest", 120 - sum(width for _, width in bar))])
            stock = x + 234 + 120 * counts["stock"] / counts["tests"]
            yield f'<path d="M{stock:.1f} {y + 1}v15" class="arrow" stroke-width="2"/>'

    return _svg(
        370 * columns, 16 * length + 4, "Tests of each operator that are right; the line is MIGraphX alone", parts()
    )


def pictures() -> dict[str, str]:
    """Return the pictures by name."""
    data, example = json.loads(DATA.read_text()), json.loads(EXAMPLE.read_text())
    return {
        "doctor.svg": picture(),
        "mark.svg": mark(),
        "way.svg": way(),
        "way-down.svg": way_down(),
        "conformance.svg": conformance(data),
        "operators.svg": operators(data),
        "operators-narrow.svg": operators(data, columns=1),
        "depth.svg": depth(example["errors"]),
        "time.svg": time(example["seconds"]),
    }


def write() -> None:
    """Write the pictures that have changed."""
    for name, drawing in pictures().items():
        path = ASSETS / name
        if not path.exists() or path.read_text(encoding="utf-8") != drawing:
            path.write_text(drawing, encoding="utf-8")


if __name__ == "__main__":
    write()
