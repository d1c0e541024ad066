"""Groups of nodes that may be right each alone and wrong together.

A compiler fuses neighbours, and hands on tensors that it has not laid out anew. Where that goes wrong, no probe of a
single node shows it:

    Conv(Pad(x))      the padding of the one is taken for the padding of the other, whatever its value and axes
    Resize(view(x))   elements are taken by their place in memory; Transpose, Slice and others only change the view,
                      and most operators lay out their results as what they take: Resize(Relu(Conv(Transpose(x))))

Skips: neighbours that only targets with more fusions than ``ref`` join, which probes could not show either; what lies
between a Transpose and a Resize that are further apart than `_FARTHEST` nodes.
"""

from __future__ import annotations

from collections.abc import Iterator

import onnx_ir as ir

from passes.core.graphs import Scope

_PADDED = frozenset(
    ["Conv", "ConvInteger", "ConvTranspose", "FusedConv", "QLinearConv"]
    + [f"{scope}{kind}Pool" for scope in ("", "Global") for kind in ("Max", "Average", "Lp")]
)
_VIEWS = frozenset(["Expand", "Identity", "Slice", "Split", "Squeeze", "Transpose", "Unsqueeze"])
_AFTER_VIEWS = frozenset(["Resize", "Upsample"])
_LAID_OUT = frozenset(
    ["DepthToSpace", "Einsum", "Flatten", "Gather", "Gemm", "MatMul", "Reshape", "Resize", "SpaceToDepth", "Upsample"]
)
"""What gives its result the usual order in memory, whatever it takes."""
_LONGEST = 4
"""How many views are followed."""
_FARTHEST = 16
"""How many nodes away a Transpose is looked for."""


def suspects(scope: Scope) -> Iterator[tuple[ir.Node, ...]]:
    """The groups in a scope, each in topological order; the last node is the one that takes what the others make."""
    for node in scope.nodes():
        if node.op_type in _PADDED:
            maker = _maker(node)
            if maker is not None and maker.op_type == "Pad":
                yield maker, node
        elif node.op_type in _AFTER_VIEWS:
            group = _from_transpose(node)
            while len(group) <= _LONGEST and (maker := _maker(group[0])) is not None and maker.op_type in _VIEWS:
                group.insert(0, maker)
            if len(group) > 1:
                yield tuple(group)


def _from_transpose(node: ir.Node) -> list[ir.Node]:
    """A shortest way to a node from a Transpose whose order of elements may reach it; the node alone without one."""
    after: dict[ir.Node, ir.Node | None] = {node: None}
    pending = [node]
    for _ in range(_FARTHEST):
        made = {maker: each for each in pending for maker in _makers(each, node) if maker not in after}
        after |= made
        found = next((maker for maker in made if maker.op_type == "Transpose"), None)
        if found is not None:
            way, step = [found], after[found]
            while step is not None:
                way.append(step)
                step = after[step]
            return way
        pending = [maker for maker in made if maker.op_type not in _LAID_OUT]
    return [node]


def _makers(node: ir.Node, last: ir.Node) -> list[ir.Node]:
    """What makes the tensors that a node takes, in the same graph; of the last one, its data."""
    values = node.inputs[:1] if node is last else node.inputs
    makers = [value.producer() for value in values if value is not None]
    return [each for each in makers if each is not None and each.graph is node.graph and each.op_type != "Constant"]


def _maker(node: ir.Node) -> ir.Node | None:
    """What makes the data of a node, in the same graph."""
    value = node.inputs[0] if node.inputs else None
    maker = value.producer() if value is not None else None
    return maker if maker is not None and maker.graph is node.graph else None
