"""The HTML page of a report: its content as dataclasses, and how it is rendered.

The page is one self-contained file: styles, script and data are inlined, and its content security policy forbids it
to load anything.
"""

from __future__ import annotations

import itertools
import json
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING, Any

from onnx_bridge.core.files.atomic_write import write_text
from onnx_bridge.core.version import VERSION
from onnx_bridge.parity.checking.error_histogram import Sketch
from onnx_bridge.views.html import neighbourhood
from onnx_bridge.views.html.charts import Chart
from onnx_bridge.views.html.error_profile import ErrorProfile
from onnx_bridge.views.html.neighbourhood import Drawing

if TYPE_CHECKING:
    from jinja2 import Environment
    from markupsafe import Markup

_MOST_ROWS = 1000
"""The rows of a table that are shown before the reader asks for more: laying out tens of thousands takes long."""

_FEW = 4
"""From so many rows on, a column that is alike in all of them is said once."""
_SEPARATORS = re.compile(r"[/._:,;=]+(?=[^\W\d])")


@dataclass(frozen=True)
class Column:
    """A column of a table.

    ``kind`` is ``name`` (of nodes and tensors), ``text``, ``number`` or ``verdict``; ``hint`` the heading's tooltip.
    """

    label: str
    kind: str = "text"
    hint: str = ""


@dataclass(frozen=True)
class Cell:
    """A cell of a table.

    Attributes:
        sort: the sort key; None sorts by the text.
        colour: its colour (`onnx_bridge.views.html.colours`).
        more: lines that unfold on a click.
    """

    text: str
    sort: float | str | None = None
    colour: str = ""
    more: Sequence[str] = ()


@dataclass(frozen=True)
class Row:
    """A row of a table.

    Attributes:
        choice: the value that the table's filter selects the row by.
        tensor: the key of the tensor that it describes, if that can be plotted.
    """

    cells: Sequence[Cell]
    choice: str = ""
    tensor: str = ""
    colour: str = ""

    @classmethod
    def of(cls, *values: object, choice: str = "", tensor: str = "", colour: str = "") -> Row:
        """Return a row of cells, and of values that become cells."""
        return cls([value if isinstance(value, Cell) else cell(value) for value in values], choice, tensor, colour)


@dataclass(frozen=True)
class Table:
    """A table that can be sorted and filtered.

    Attributes:
        id: its anchor.
        rows: the rows in their natural order.
        note: how to read it, in one sentence.
        place: ``first``, above the plots, or ``last``, below.
    """

    id: str
    title: str
    columns: Sequence[Column]
    rows: Sequence[Row]
    note: str = ""
    place: str = "first"

    def trimmed(self) -> Table:
        """Return the table without its empty columns; its note says what is alike in all of many rows."""
        cells = [[row.cells[index] for row in self.rows] for index in range(len(self.columns))]
        kept, alike = [], []
        for index, column in enumerate(self.columns):
            texts = {cell.text for cell in cells[index]}
            plain = column.kind in ("text", "code") and not any(cell.more for cell in cells[index])
            if plain and len(texts) == 1 and len(self.rows) >= _FEW and any(texts):
                alike.append(f"{column.label} {texts.pop()}")
            elif any(texts):
                kept.append(index)
        rows = [replace(row, cells=[row.cells[index] for index in kept]) for row in self.rows]
        note = " ".join(filter(None, (self.note, f"In all rows: {', '.join(alike)}." if alike else "")))
        return replace(self, columns=[self.columns[index] for index in kept], rows=rows, note=note)

    @property
    def choices(self) -> list[str]:
        """The values of the filter; none if all rows have the same."""
        choices = dict.fromkeys(row.choice for row in self.rows if row.choice)
        return list(choices) if len(choices) > 1 else []


@dataclass(frozen=True)
class Graphs:
    """The graph around a node, before and after cleaning, with a legend of the colours."""

    title: str
    before: Drawing | None
    after: Drawing | None
    legend: Sequence[tuple[str, str]]


@dataclass(frozen=True)
class Share:
    """A segment of a bar, or a partition."""

    name: str
    count: int
    colour: str


@dataclass
class Page:
    """The content of a page.

    Attributes:
        kind: the kind of the report ("parity", "doctor", "benchmark").
        passed: whether the result is positive; None if it is not determined.
        headline: the verdict, in a few words.
        sentences: the verdict, in full.
        facts: versions and settings, by name.
        notes: remarks, in sentences.
        error_profile: the error of each node, in graph order.
        tensors: the tensors that can be plotted, by key: a title and an error histogram.
        graphs: the graphs around the node in question.
        shares: the nodes by planned action, or by the side that runs them; ``shares_title`` says which.
        charts: static plots, above the tables.
    """

    kind: str
    model: str
    passed: bool | None
    headline: str
    sentences: Sequence[str]
    facts: Sequence[tuple[str, str]] = ()
    notes: Sequence[str] = ()
    tables: Sequence[Table] = ()
    error_profile: ErrorProfile | None = None
    tensors: Mapping[str, tuple[str, Sketch]] = field(default_factory=dict)
    graphs: Graphs | None = None
    shares: Sequence[Share] = ()
    shares_title: str = "Planned actions"
    partitions: Sequence[Share] = ()
    charts: Sequence[Chart] = ()

    @property
    def sections(self) -> list[tuple[str, str]]:
        """The anchor and title of each section, in order."""
        sections = [("shares", self.shares_title)] if self.shares else []
        sections += [(chart.id, chart.title) for chart in self.charts]
        for table in (table for table in self.tables if table.place == "first"):
            sections += [("error", "Error")] if table.id == "layers" and self.error_profile else []
            sections.append((table.id, table.title))
        sections += [("plots", "Plots")] if self.tensors else []
        sections += [("graph", "Graph")] if self.graphs else []
        return sections + [(table.id, table.title) for table in self.tables if table.place == "last"]

    @property
    def tensor_names(self) -> list[tuple[str, str]]:
        """The key and title of each tensor that can be plotted."""
        return [(key, title) for key, (title, _) in self.tensors.items()]

    @property
    def footer(self) -> str:
        """The line at the bottom."""
        return f"Made by ONNX Bridge {VERSION}. This file is self-contained."

    def data(self) -> str:
        """Return the error histograms as JSON, escaped for use inside HTML."""
        tensors = {key: {"title": title, **sketch.to_json()} for key, (title, sketch) in self.tensors.items()}
        text = json.dumps({"tensors": tensors}, allow_nan=False, separators=(",", ":"))
        return text.replace("<", "\\u003c").replace("&", "\\u0026")

    def html(self) -> str:
        from markupsafe import Markup

        return (
            _environment()
            .get_template("page.html.j2")
            .render(
                page=replace(self, tables=[table.trimmed() for table in self.tables]),
                data=Markup(self.data()),
                style=Markup(_text("style.css")),
                script=Markup(_text("script.js")),
                most_rows=_MOST_ROWS,
                box_width=neighbourhood.WIDTH,
                box_height=neighbourhood.HEIGHT,
            )
        )

    def write(self, path: str | os.PathLike[str]) -> None:
        """Write the page; raises InputError if the file cannot be written."""
        write_text(path, self.html())


def cell(value: object, colour: str = "") -> Cell:
    """Return a value as a cell: a number sorts as such, and None is empty."""
    if isinstance(value, (int, float)):
        return Cell(f"{value:.4g}" if isinstance(value, float) else str(value), value, colour)
    return Cell("" if value is None else str(value), colour=colour)


def unfolding(lines: Iterable[str], title: str) -> Cell:
    """Return lines that unfold under a title; an empty cell without any."""
    cells = list(lines)
    return Cell(title, len(cells), more=cells) if cells else Cell("")


@cache
def _environment() -> Environment:
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.FunctionLoader(_text), autoescape=True, trim_blocks=True, undefined=jinja2.StrictUndefined
    )
    environment.filters["breakable"] = _breakable
    return environment


def _breakable(text: str) -> Markup:
    """Return a name that may be broken behind its separators."""
    from markupsafe import Markup, escape

    ends = [match.end() for match in _SEPARATORS.finditer(text)]
    parts = (escape(text[begin:end]) for begin, end in itertools.pairwise([0, *ends, len(text)]))
    return Markup("<wbr>").join(parts)


def _text(name: str) -> str:
    return (resources.files("onnx_bridge.views.html") / "page" / name).read_text(encoding="utf-8")


def facts_of(values: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return facts with their values as text."""
    return [(name, str(value)) for name, value in values.items()]
