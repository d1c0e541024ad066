"""Groups of nodes that may be right each alone and wrong together.

A compiler fuses neighbours, and hands on tensors that it has not laid out anew. Where that goes wrong, no probe of a
single node shows it:

    Conv(Pad(x))      the padding of the one is taken for the padding of the other, whatever its value and axes
    Resize(view(x))   elements are taken by their place in memory; Transpose, Slice and others only change the view

Skips: neighbours that only targets with more fusions than ``ref`` join, which probes could not show either.
"""

from __future__ import annotations

from collections.abc import Iterator

import onnx_ir as ir

from passes.graphs import Scope

_PADDED = frozenset(
    ["Conv", "ConvInteger", "ConvTranspose", "FusedConv", "QLinearConv"]
    + [f"{scope}{kind}Pool" for scope in ("", "Global") for kind in ("Max", "Average", "Lp")]
)
_VIEWS = frozenset(["Expand", "Identity", "Slice", "Split", "Squeeze", "Transpose", "Unsqueeze"])
_AFTER_VIEWS = frozenset(["Resize", "Upsample"])
_LONGEST = 4
"""How many views are followed."""


def suspects(scope: Scope) -> Iterator[tuple[ir.Node, ...]]:
    """The groups in a scope, each in topological order; the last node is the one that takes what the others make."""
    for node in scope.nodes():
        if node.op_type in _PADDED:
            maker = _maker(node)
            if maker is not None and maker.op_type == "Pad":
                yield maker, node
        elif node.op_type in _AFTER_VIEWS:
            group = [node]
            while len(group) <= _LONGEST and (maker := _maker(group[0])) is not None and maker.op_type in _VIEWS:
                group.insert(0, maker)
            if len(group) > 1:
                yield tuple(group)


def _maker(node: ir.Node) -> ir.Node | None:
    """What makes the data of a node, in the same graph."""
    value = node.inputs[0] if node.inputs else None
    maker = value.producer() if value is not None else None
    return maker if maker is not None and maker.graph is node.graph else None
