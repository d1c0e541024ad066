"""The console that results are printed to, and tables and lines in their form.

What comes from others is shown, and not obeyed.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from rich.console import Console, ConsoleOptions, Group, RenderableType
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from passes.core.text import printable


class _EscapingConsole(Console):
    def render_str(self, text: str, **options: Any) -> Text:
        return super().render_str(printable(text), **options)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        if isinstance(renderable, Text) and (plain := printable(renderable.plain)) != renderable.plain:
            style, no_wrap, overflow = renderable.style, renderable.no_wrap, renderable.overflow
            renderable = Text(plain, style=style, no_wrap=no_wrap, overflow=overflow)
        return super().render(renderable, options)


def console(**options: Any) -> Console:
    """Return a console on which strings have no markup, and neither strings nor texts have control characters.

    The end of a line in a string is escaped like any other control character: several lines are a group of lines.
    """
    return _EscapingConsole(markup=False, emoji=False, highlight=False, **options)


def unbroken(text: str) -> RenderableType:
    """Return a line to copy, such as a path or a command, which is not folded however long it is."""
    return Group(Text(text, no_wrap=True, overflow="ignore"))  # a text by itself would be joined with others


def plain_table(*headings: str, numbers: Collection[str] = (), **options: Any) -> Table:
    """Return a table without lines, for eighty columns as well: texts are folded if it is too wide, numbers are not.

    Columns whose headings are in ``numbers`` are aligned at the right.
    """
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), **options)
    for heading in headings:
        number = heading in numbers
        table.add_column(heading, overflow="fold", justify="right" if number else "left", no_wrap=number)
    return table


def facts_table(facts: Mapping[str, RenderableType]) -> Table:
    """Return a table with a row for each fact, its name in bold."""
    table = Table.grid(padding=(0, 2))
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in facts.items():
        table.add_row(name, value)
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


def counted(count: int, noun: str) -> str:
    """Return a number with its noun in the singular or the plural."""
    return f"{count} {noun}{'s' * (count != 1)}"
