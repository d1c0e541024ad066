"""What the passes of a pipeline did, as a table: of ``clean`` and of a bundle's manifest."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from onnx_bridge.core.console import plain_table

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.text import Text


def pass_table(
    results: Sequence[Mapping[str, Any]], *, idle: bool = False, checked: Sequence[str | Text] = ()
) -> RenderableType:
    """A row for each pass that did something, and how many had nothing to do.

    Args:
        results: of all passes, as `passes.rewriting.pipeline.Step.to_json` gives them.
        idle: whether those that had nothing to do have a row as well.
        checked: what a comparison of numbers says of each pass; empty if there was none.
    """
    from rich.console import Group

    numbers = ("nodes", "rewrites", "skips", "seconds", *(["numbers"] if checked else []))
    table = plain_table("pass", *numbers, numbers=numbers)
    for index, each in enumerate(results):
        skips = sum(len(skip["nodes"]) for skip in each["skips"])
        if idle or each["rewrites"] or skips:
            nodes = f"{each['nodes_before']} → {each['nodes_after']}"
            counts = (str(each["rewrites"] or "–"), str(skips or "–"), f"{each['seconds']:.3f}")
            table.add_row(each["name"], nodes, *counts, *checked[index : index + 1])
    left_out = len(results) - table.row_count
    return Group(table, *([f"{left_out} of {len(results)} passes had nothing to do"] if left_out else []))
