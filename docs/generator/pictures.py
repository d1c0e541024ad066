"""The pictures of the documentation, drawn from results: the way of a model, and the figures of the suite conformance.

``python -m docs.generator.pictures`` writes them into ``docs/assets``, as ``make docs`` does.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from html import escape
from pathlib import Path
from typing import Any

from docs.generator.coverage import DATA

ASSETS = Path(__file__).resolve().parents[1] / "assets"
_STYLE = """<style>
text { font: 14px system-ui, sans-serif; fill: #1b1f24; } .sub { font-size: 12px; fill: #5b6470; }
.strong { font-weight: 650; } .box { fill: #f6f7f9; stroke: #5b6470; } .arrow { stroke: #5b6470; fill: none; }
.wholly { fill: #176f35; } .frozen { fill: #57a773; } .host { fill: #0b5cad; } .stock { fill: #8a929d; }
.rest { fill: #d8dce2; }
@media (prefers-color-scheme: dark) {
  text { fill: #e4e8ee; } .sub { fill: #98a2b0; } .box { fill: #1c2128; stroke: #98a2b0; } .arrow { stroke: #98a2b0; }
  .wholly { fill: #57c97c; } .frozen { fill: #2f7d4b; } .host { fill: #7ab7ff; } .rest { fill: #343b45; }
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


def way() -> str:
    """Return the way of a model: through the passes to MIGraphX and the host, and to the proof."""
    boxes = (
        (10, 70, "model", "ONNX, PyTorch"),
        (190, 70, "passes", "cleaned, legalized"),
        (390, 20, "MIGraphX", "most nodes"),
        (390, 120, "ONNX Runtime", "what is left"),
        (590, 70, "bundle", ".mxr, ONNX, manifest"),
        (790, 70, "proof", "equal to the original"),
    )
    arrows = (
        "M160 100H190",
        "M340 95L390 55",
        "M340 105L390 145",
        "M540 50L590 95",
        "M540 150L590 105",
        "M740 100H790",
    )

    def parts() -> Iterator[str]:
        for x, y, name, about in boxes:
            yield f'<rect x="{x}" y="{y}" width="150" height="60" rx="8" class="box"/>'
            yield _text(x + 75, y + 26, name, "strong", "middle")
            yield _text(x + 75, y + 46, about, "sub", "middle")
        yield from (f'<path d="{arrow}" class="arrow"/>' for arrow in arrows)
        yield _text(265, 152, "each node tried on MIGraphX", "sub", "middle")

    return _svg(950, 190, "The way of a model: passes, MIGraphX and host, bundle, proof", parts())


def conformance(data: dict[str, Any]) -> str:
    """Return the standard's tests that are right: by stock MIGraphX, and here."""
    tests, outcomes = data["tests"], data["outcomes"]
    here = [(kind, 620 * outcomes.get(kind, 0) / tests) for kind in _KINDS]
    right = sum(outcomes.get(kind, 0) for kind in _KINDS)
    rows: list[tuple[str, int, Bar]] = [
        ("MIGraphX alone", data["stock"], [("stock", 620 * data["stock"] / tests)]),
        ("ONNX Bridge", right, here),
    ]

    def parts() -> Iterator[str]:
        yield _text(0, 16, f"Of the {tests:,} backend tests of the ONNX standard are right", "strong")
        for number, (name, count, bar) in enumerate(rows):
            y = 36 + 40 * number
            yield _text(0, y + 18, name)
            yield from _bar(130, y, 26, [*bar, ("rest", 620 - sum(width for _, width in bar))])
            yield _text(760, y + 18, f"{count:,}", "strong")
        for number, (kind, name) in enumerate(_KINDS.items()):
            x = (130, 310, 560)[number]
            yield f'<rect x="{x}" y="124" width="12" height="12" class="{kind}"/>'
            yield _text(x + 18, 135, f"{outcomes.get(kind, 0):,} {name}", "sub")

    return _svg(
        820, 144, "Tests of the ONNX standard that are right, with MIGraphX alone and with ONNX Bridge", parts()
    )


def operators(data: dict[str, Any]) -> str:
    """Return a bar for each operator: the shares of its tests that are right, and a line at what stock gets right."""
    known, columns = sorted(data["operators"].items()), 3
    length = -(-len(known) // columns)

    def parts() -> Iterator[str]:
        for number, (name, counts) in enumerate(known):
            x, y = 350 * (number // length), 16 * (number % length)
            yield _text(x + 210, y + 12, name, "sub", "end")
            bar = [(kind, 120 * counts.get(kind, 0) / counts["tests"]) for kind in _KINDS]
            yield from _bar(x + 218, y + 3, 11, [*bar, ("rest", 120 - sum(width for _, width in bar))])
            stock = x + 218 + 120 * counts["stock"] / counts["tests"]
            yield f'<path d="M{stock:.1f} {y + 1}v15" class="arrow" stroke-width="2"/>'

    return _svg(1050, 16 * length + 4, "Tests of each operator that are right; the line is MIGraphX alone", parts())


def pictures() -> dict[str, str]:
    """Return the pictures by name."""
    data = json.loads(DATA.read_text())
    return {"way.svg": way(), "conformance.svg": conformance(data), "operators.svg": operators(data)}


def write() -> None:
    """Write the pictures that have changed."""
    for name, picture in pictures().items():
        path = ASSETS / name
        if not path.exists() or path.read_text(encoding="utf-8") != picture:
            path.write_text(picture, encoding="utf-8")


if __name__ == "__main__":
    write()
