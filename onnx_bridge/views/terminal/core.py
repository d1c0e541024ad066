"""The results of ``cache`` and ``docs``."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.markdown import Markdown

from onnx_bridge.core.files.user_cache import CacheFolder, Cleared
from onnx_bridge.core.pages import Page, Pages
from onnx_bridge.views.terminal.tables import plain_table, unbroken
from onnx_bridge.views.terminal.view import view


@view.register
def _folder(cache: CacheFolder, verbose: bool) -> RenderableType:
    return unbroken(str(cache.folder))


@view.register
def _cleared(cleared: Cleared, verbose: bool) -> RenderableType:
    """Return a line for each name, and the sum."""
    lines = [f"{size / 2**20:10.1f} MiB  {name}" for name, size in cleared.sizes.items()]
    verb = "would free" if cleared.dry_run else "freed"
    return Group(*lines, f"{verb} {cleared.bytes / 2**20:.1f} MiB in {cleared.folder}")


@view.register
def _page(page: Page, verbose: bool) -> RenderableType:
    return Markdown(page.text)


@view.register
def _pages(pages: Pages, verbose: bool) -> RenderableType:
    table = plain_table("page", "about")
    for page in pages.pages:
        table.add_row(page.topic, page.title)
    return table
