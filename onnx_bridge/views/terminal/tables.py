"""The console that results are printed to, and tables and lines in their form.

What comes from others is shown, and not obeyed.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

from rich.cells import cell_len, chop_cells
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.measure import Measurement
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from onnx_bridge.requests.spelling import as_typed
from passes.core.text import printable

_PARTS = re.compile(r"\s*(?:[^\s/._:,;=]|(?<=\d)[.,](?=\d))+[/._:,;=]*|\s*[/._:,;=]+|\s+")
"""The parts of a text between which a line may end."""


class _EscapingConsole(Console):
    def print(self, *objects: Any, **options: Any) -> None:
        """Print; a line of a file ends with its text, and not with the spaces that align columns."""
        if self.is_terminal or self.record or self._buffer_index:  # the last: what is printed is captured
            super().print(*objects, **options)
            return
        with self.capture() as printed:
            super().print(*objects, **options)
        self.file.write(re.sub(r" +$", "", printed.get(), flags=re.MULTILINE))
        self.file.flush()

    def render_str(self, text: str, **options: Any) -> Text:
        return super().render_str(_shown(text), **options)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        if isinstance(renderable, Text) and (plain := _shown(renderable.plain)) != renderable.plain:
            style, no_wrap, overflow = renderable.style, renderable.no_wrap, renderable.overflow
            renderable = Text(plain, style=style, no_wrap=no_wrap, overflow=overflow)
        return super().render(renderable, options)


def _shown(text: str) -> str:
    """Return a text without control characters, with options as they are typed."""
    return printable(as_typed(text))


def console(**options: Any) -> Console:
    """Return a console on which strings have no markup, and neither strings nor texts have control characters.

    The end of a line in a string is escaped like any other control character: several lines are a group of lines.
    """
    return _EscapingConsole(markup=False, emoji=False, highlight=False, **options)


def unbroken(text: str) -> RenderableType:
    """Return a line to copy, such as a path or a command, which is not folded however long it is."""
    return Group(Text(text, no_wrap=True, overflow="ignore"))  # a text by itself would be joined with others


class _Breakable:
    """A text that is broken at spaces and behind separators, and inside of a word only if that is too long by itself.

    A separator is what identifiers, paths and lists have: ``.``, ``/``, ``_``, ``::``.
    """

    def __init__(self, text: str | Text) -> None:
        given = text if isinstance(text, Text) else Text(text)
        self.text = Text(_shown(given.plain), style=given.style)
        self._parts = _PARTS.findall(self.text.plain)

    @property
    def widths(self) -> tuple[int, int]:
        """The width of the longest part, and that of the whole."""
        return max((cell_len(part.strip()) for part in self._parts), default=0), self.text.cell_len

    def __rich_measure__(self, _console: Console, options: ConsoleOptions) -> Measurement:
        return Measurement(*self.widths).with_maximum(options.max_width)

    def __rich_console__(self, _console: Console, options: ConsoleOptions) -> RenderResult:
        lines = [""]
        for part in self._parts:
            if cell_len(lines[-1] + part.rstrip()) <= options.max_width:
                lines[-1] += part
            else:
                lines += chop_cells(part.lstrip(), options.max_width)
        for line in lines if lines[0] else lines[1:] or [""]:
            yield Text(line.rstrip(), style=self.text.style, no_wrap=True)


class PlainTable(Table):
    """A table without lines. If it is too wide, the widest columns are broken (`_Breakable`), those of numbers are not.

    Those in ``last`` are broken if breaking the others is not enough.

    If even so words would be cut, each row is a paragraph, with a line for each cell.
    """

    def __init__(
        self, *headings: str, numbers: Collection[str] = (), last: Collection[str] = (), **options: Any
    ) -> None:
        super().__init__(box=None, pad_edge=False, padding=(0, 2, 0, 0), **options)
        self._numbers, self._last, self._headings = numbers, last, headings
        self._shown: list[list[_Breakable]] = []
        for heading in headings:
            self.add_column(_Breakable(heading), justify="right" if heading in numbers else "left")

    def add_row(self, *cells: str | Text) -> None:  # type: ignore[override]
        self._shown.append([_Breakable(cell) for cell in cells])
        super().add_row(*self._shown[-1])

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        least, widths = [], []
        for index, heading in enumerate(self._headings):
            whole = heading in self._numbers  # its cells are not broken
            cells = [row[index].widths for row in self._shown]
            least.append(max([_Breakable(heading).widths[0], *(cell[whole] for cell in cells)]))
            widths.append(max([cell_len(heading), *(most for _, most in cells)]))
        room = options.max_width - 2 * len(widths)
        if sum(least) > room:
            yield from self._paragraphs()
            return
        while sum(widths) > room:
            wide = [index for index, width in enumerate(widths) if width > least[index]]
            widths[max(wide, key=lambda index: (self._headings[index] not in self._last, widths[index]))] -= 1
        for column, width in zip(self.columns, widths, strict=True):
            column.width = width
        yield from super().__rich_console__(console, options)

    def _paragraphs(self) -> Iterator[_Breakable]:
        for row in self._shown:
            for number, (heading, cell) in enumerate(zip(self._headings, row, strict=True)):
                text = cell.text
                if not text.plain:
                    continue
                line = f"{'  ' * (number > 0)}{heading}{': ' * bool(heading)}{text.plain}"
                yield _Breakable(Text(line, style=text.style))


def plain_table(*headings: str, numbers: Collection[str] = (), **options: Any) -> PlainTable:
    """Return a table without lines; columns whose headings are in ``numbers`` are aligned at the right."""
    return PlainTable(*headings, numbers=numbers, **options)


def judged(text: str, good: bool | None) -> Text:
    """Return a verdict in the colour that it has everywhere: green, red, or yellow if it is neither."""
    return Text(text, style="yellow" if good is None else "green" if good else "red")


def facts_table(facts: Mapping[str, str | Text | Sequence[str]]) -> Table:
    """Return a table with a row for each fact, its name in bold, and a line for each of several values."""
    table = Table.grid(padding=(0, 2))
    table.add_column(style="bold", no_wrap=True)
    table.add_column()
    for name, value in facts.items():
        lines = [value] if isinstance(value, (str, Text)) else value
        table.add_row(name, Group(*map(_Breakable, lines)))
    return table


def pass_table(
    results: Sequence[Mapping[str, Any]], *, idle: bool = False, checked: Sequence[str | Text] = ()
) -> RenderableType:
    """Return a table with a row for each pass that did something, and how many had nothing to do.

    Args:
        results: the results of all passes, as `passes.rewriting.pipeline.Step.to_json` gives them.
        idle: whether passes that had nothing to do have a row as well.
        checked: the outcome of the comparison before and after each pass; empty if there was none.
    """
    numbers = ("nodes", "rewrites", "skips", "seconds", *(["numbers"] if checked else []))
    table = plain_table("pass", *numbers, numbers=numbers)
    for index, step in enumerate(results):
        skips = sum(len(skip["nodes"]) for skip in step["skips"])
        if idle or step["rewrites"] or skips:
            nodes = f"{step['nodes_before']} → {step['nodes_after']}"
            counts = (str(step["rewrites"] or "–"), str(skips or "–"), f"{step['seconds']:.3f}")
            table.add_row(step["name"], nodes, *counts, *checked[index : index + 1])
    left_out = len(results) - table.row_count
    return Group(table, *([f"{left_out} of {len(results)} passes had nothing to do"] if left_out else []))


def notes_of(notes: Iterable[str]) -> list[Text]:
    """Return a line for each note."""
    return [Text(f"note: {note}", style="yellow") for note in notes]


def versions_line(versions: Mapping[str, str], seed: int | None = None) -> list[Text]:
    """Return the line with the versions and the seed of generated samples; no line if there are neither."""
    facts = [f"{name} {version}" for name, version in versions.items()]
    facts += [] if seed is None else [f"seed {seed}"]
    return [Text(", ".join(facts), style="dim")] if facts else []


def written_line(path: object, otherwise: str) -> str:
    """Return the line that names the file that was written, or says why there is none."""
    return f"written to {path}" if path else otherwise


def sizes_text(sizes: Mapping[str, int]) -> str:
    """Return sizes by dimension in one line."""
    return ", ".join(f"{name}={size}" for name, size in sizes.items())
