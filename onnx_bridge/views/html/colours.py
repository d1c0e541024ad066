"""The colours of the style sheet by meaning, and the role of each layer in an error."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from onnx_bridge.parity.layers.report import Layer, LayerReport

GOOD, BAD, WARN, PLAIN = "good", "bad", "warn", "plain"
RANK = (PLAIN, GOOD, WARN, BAD)
"""From best to worst."""
FIRST, SECOND, THIRD = "first", "second", "third"
"""Of series in a plot; they carry no meaning."""


def layer_roles(layers: LayerReport) -> list[tuple[str, str]]:
    """Return the role of each layer in an error, as text and colour, in order.

    The error of cleaning is only known accumulated: a layer that reads a value that cleaning changed propagates it.
    """
    changed: set[str] = set()
    roles = []
    for row in layers.rows:
        if row.cleaning is not None and not row.cleaning.passed:
            known = ("propagates", WARN) if changed.intersection(row.inputs) else ("changed by cleaning", BAD)
            changed.add(row.tensor)
        else:
            known = ("agrees", GOOD)
        roles.append(_worse(known, _on_migraphx(row)))
    return roles


def _on_migraphx(row: Layer) -> tuple[str, str]:
    if row.local is not None and not row.local.passed:
        return "introduces the error", BAD
    if row.accumulated is not None and not row.accumulated.passed:
        return "propagates" if row.local is not None else "differs", WARN
    if row.accumulated is None and row.local is None:
        return "unknown", PLAIN
    return "agrees", GOOD


def _worse(first: tuple[str, str], second: tuple[str, str]) -> tuple[str, str]:
    """Return the worse of two; "unknown" only replaces "agrees"."""
    if second[1] == PLAIN:
        return first if first[1] != GOOD else second
    return max(first, second, key=lambda role: RANK.index(role[1]))
