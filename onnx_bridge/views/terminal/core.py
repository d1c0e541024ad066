"""The results of ``cache``."""

from __future__ import annotations

from rich.console import Group, RenderableType

from onnx_bridge.core.files.user_cache import CacheFolder, Cleared
from onnx_bridge.views.terminal.tables import unbroken
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
