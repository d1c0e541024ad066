"""What colours mean: the tones that the style sheet knows, and that of a layer."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from onnx_bridge.parity.layer_report import Layer, Layers

GOOD, BAD, WARN, PLAIN = "good", "bad", "warn", "plain"
RANK = (PLAIN, GOOD, WARN, BAD)
"""The worse come later."""
FIRST, SECOND, THIRD = "first", "second", "third"
"""Of series, which mean nothing by themselves."""


def blame(layers: Layers) -> list[tuple[str, str]]:
    """What each layer does to the numbers, in words and as a tone, in their order.

    What cleaning did to a value is not known apart from what it did to those before: a layer that takes a value that
    cleaning changed is taken to pass that on.
    """
    changed: set[str] = set()
    found = []
    for row in layers.rows:
        if row.cleaning is not None and not row.cleaning.passed:
            known = ("passes it on", WARN) if changed.intersection(row.takes) else ("changed by cleaning", BAD)
            changed.add(row.tensor)
        else:
            known = ("agrees", GOOD)
        found.append(_worse(known, _on_migraphx(row)))
    return found


def _on_migraphx(row: Layer) -> tuple[str, str]:
    if row.local is not None and not row.local.passed:
        return "makes the error", BAD
    if row.accumulated is not None and not row.accumulated.passed:
        return "passes it on" if row.local is not None else "differs", WARN
    if row.accumulated is None and row.local is None:
        return "unknown", PLAIN
    return "agrees", GOOD


def _worse(first: tuple[str, str], second: tuple[str, str]) -> tuple[str, str]:
    """Of what is known the worse; that nothing is known of MIGraphX is told where cleaning did nothing."""
    if second[1] == PLAIN:
        return first if first[1] != GOOD else second
    return max(first, second, key=lambda each: RANK.index(each[1]))
