"""The console that everything for the terminal is printed to: what comes from others is shown, and not obeyed."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING, Any

from passes.core.text import printable

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderableType
    from rich.segment import Segment
    from rich.table import Table
    from rich.text import Text


def unbroken(text: str) -> RenderableType:
    """A line to copy, such as a path or a command: it is not folded where it is longer than the terminal is wide."""
    from rich.console import Group
    from rich.text import Text

    return Group(Text(text, no_wrap=True, overflow="ignore"))  # a text by itself would be joined with others


def plain_table(*headings: str, numbers: Collection[str] = (), **options: Any) -> Table:
    """A table without lines, for eighty columns as well: texts are folded where it is too wide, numbers are not.

    Args:
        headings: of all columns.
        numbers: the headings of those with numbers, which are aligned at the right.
        options: of rich's Table.
    """
    from rich.table import Table

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), **options)
    for each in headings:
        number = each in numbers
        table.add_column(each, overflow="fold", justify="right" if number else "left", no_wrap=number)
    return table


def console(**options: Any) -> Console:
    """A console of rich, on which strings have no markup, and neither strings nor texts have control characters.

    An end of a line in a string is escaped like any other: what has several lines is a group of lines.

    Args:
        options: of rich's Console.
    """
    from rich.console import Console
    from rich.text import Text

    class Escaping(Console):
        def render_str(self, text: str, **how: Any) -> Text:
            return super().render_str(printable(text), **how)

        def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
            if isinstance(renderable, Text) and (plain := printable(renderable.plain)) != renderable.plain:
                style, no_wrap, overflow = renderable.style, renderable.no_wrap, renderable.overflow
                renderable = Text(plain, style=style, no_wrap=no_wrap, overflow=overflow)
            return super().render(renderable, options)

    return Escaping(markup=False, emoji=False, highlight=False, **options)
