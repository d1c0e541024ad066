"""One page that holds everything: what is on it, and how it is written.

The page is a single file: styles, script and data are within, and its policy forbids it to fetch anything.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING, Any

from onnx_bridge.core.atomic_write import write_text
from onnx_bridge.parity.error_histogram import Sketch
from onnx_bridge.report import neighbourhood
from onnx_bridge.report.charts import Chart
from onnx_bridge.report.error_along_graph import Course
from onnx_bridge.report.neighbourhood import Drawing

if TYPE_CHECKING:
    from jinja2 import Environment


@dataclass(frozen=True)
class Column:
    """A column of a table.

    Attributes:
        label: its heading.
        kind: ``name`` (of nodes and tensors), ``text``, ``number``, or ``verdict``.
        hint: what its heading means.
    """

    label: str
    kind: str = "text"
    hint: str = ""


@dataclass(frozen=True)
class Cell:
    """A cell of a table.

    Attributes:
        text: what is read; empty where there is nothing.
        sort: the number it is sorted by; None for its text.
        tone: its colour.
        more: lines that unfold.
    """

    text: str
    sort: float | str | None = None
    tone: str = ""
    more: Sequence[str] = ()


@dataclass(frozen=True)
class Row:
    """A row of a table.

    Attributes:
        cells: one a column.
        choice: what the table's choice goes by.
        tensor: the key of the tensor that it is about, of those that can be plotted.
        tone: its colour.
    """

    cells: Sequence[Cell]
    choice: str = ""
    tensor: str = ""
    tone: str = ""


@dataclass(frozen=True)
class Table:
    """A table that can be sorted and filtered.

    Attributes:
        id: its anchor.
        title: its heading.
        columns: at least one.
        rows: in their natural order.
        note: a sentence on how to read it.
        place: ``first``, above the plots, or ``last``, below.
    """

    id: str
    title: str
    columns: Sequence[Column]
    rows: Sequence[Row]
    note: str = ""
    place: str = "first"

    def trimmed(self) -> Table:
        """The table without columns in which there is nothing."""
        kept = [index for index in range(len(self.columns)) if any(row.cells[index].text for row in self.rows)]
        rows = [replace(row, cells=[row.cells[index] for index in kept]) for row in self.rows]
        return replace(self, columns=[self.columns[index] for index in kept], rows=rows)

    @property
    def choices(self) -> list[str]:
        """What rows can be chosen by, where that tells some from others."""
        found = dict.fromkeys(row.choice for row in self.rows if row.choice)
        return list(found) if len(found) > 1 else []


@dataclass(frozen=True)
class Graphs:
    """The graph around a node, before and after cleaning, and what its colours mean."""

    title: str
    before: Drawing | None
    after: Drawing | None
    legend: Sequence[tuple[str, str]]


@dataclass(frozen=True)
class Share:
    """A part of a bar, or a stage."""

    name: str
    count: int
    tone: str


@dataclass
class Page:
    """What is on a page.

    Attributes:
        kind: what it reports on ("parity").
        model: for people.
        passed: whether the answer is yes.
        headline: the verdict, in a few words.
        sentences: the verdict, in full.
        facts: what took part, by name.
        notes: what people should know besides.
        tables: in order.
        course: the error along the graph.
        tensors: what can be plotted, by key: a title and a sketch.
        graphs: around the node to look at.
        shares: of all nodes.
        stages: of the bundle, in order.
        charts: plots that need no script, above the tables.
    """

    kind: str
    model: str
    passed: bool
    headline: str
    sentences: Sequence[str]
    facts: Sequence[tuple[str, str]] = ()
    notes: Sequence[str] = ()
    tables: Sequence[Table] = ()
    course: Course | None = None
    tensors: Mapping[str, tuple[str, Sketch]] = field(default_factory=dict)
    graphs: Graphs | None = None
    shares: Sequence[Share] = ()
    stages: Sequence[Share] = ()
    charts: Sequence[Chart] = ()

    @property
    def sections(self) -> list[tuple[str, str]]:
        """Anchor and title of each, in order."""
        found = [("shares", "Nodes at a glance")] if self.shares else []
        found += [(each.id, each.title) for each in self.charts]
        found += [(each.id, each.title) for each in self.tables if each.place == "first"]
        found += [("plots", "Plots")] if self.course or self.tensors else []
        found += [("graph", "Graph")] if self.graphs else []
        return found + [(each.id, each.title) for each in self.tables if each.place == "last"]

    @property
    def tensor_names(self) -> list[tuple[str, str]]:
        """Key and title of what can be plotted."""
        return [(key, title) for key, (title, _) in self.tensors.items()]

    @property
    def footer(self) -> str:
        """Who made it."""
        from onnx_bridge.core.version import VERSION

        return f"Made by ONNX Bridge {VERSION}. This file is complete in itself and fetches nothing."

    def data(self) -> str:
        """The sketches as JSON that may stand within HTML."""
        tensors = {key: {"title": title, **sketch.to_json()} for key, (title, sketch) in self.tensors.items()}
        text = json.dumps({"tensors": tensors}, allow_nan=False, separators=(",", ":"))
        return text.replace("<", "\\u003c").replace("&", "\\u0026")

    def html(self) -> str:
        """The whole page."""
        from markupsafe import Markup

        return (
            _environment()
            .get_template("page.html.j2")
            .render(
                page=replace(self, tables=[each.trimmed() for each in self.tables]),
                data=Markup(self.data()),
                style=Markup(_text("style.css")),
                script=Markup(_text("script.js")),
                box_width=neighbourhood.WIDTH,
                box_height=neighbourhood.HEIGHT,
            )
        )

    def write(self, path: str | os.PathLike[str]) -> None:
        """Write the page.

        Raises:
            InputError: the file cannot be written.
        """
        write_text(path, self.html())


def figure(number: float | str | None, tone: str = "") -> Cell:
    """A number as a cell; strings are those numbers that JSON lacks."""
    if number is None:
        return Cell("")
    value = float(number)
    return Cell(f"{value:.4g}", value, tone)


def text(value: object, tone: str = "") -> Cell:
    """Text as a cell."""
    return Cell(str(value), tone=tone)


def listed(lines: Iterable[str], title: str) -> Cell:
    """Lines that unfold under a title; an empty cell where there are none."""
    found = list(lines)
    return Cell(title, len(found), more=found) if found else Cell("")


@cache
def _environment() -> Environment:
    import jinja2

    return jinja2.Environment(
        loader=jinja2.FunctionLoader(_text), autoescape=True, trim_blocks=True, undefined=jinja2.StrictUndefined
    )


def _text(name: str) -> str:
    return (resources.files("onnx_bridge.report") / "page" / name).read_text(encoding="utf-8")


def shown(values: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Names and values as text."""
    return [(name, str(value)) for name, value in values.items()]
