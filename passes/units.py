"""What is judged together: a node, or all that a legalization rule made of one.

A rule may shield an operator from what the runtime gets wrong: indices are made positive before ScatterND. Judged alone
the operator still fails; with what shields it, it does not.
"""

from __future__ import annotations

from collections.abc import Iterable

import onnx_ir as ir

from passes import graphs

RULE = "legalize/"
"""How the name of a pass begins that stands for a legalization rule."""


def units(nodes: Iterable[ir.Node]) -> dict[ir.Node, tuple[ir.Node, ...]]:
    """For each of the nodes that a rule made, in order, those that it made with it of the same nodes of the source."""
    groups: dict[tuple[str, str, ir.Graph | None], list[ir.Node]] = {}
    for node in nodes:
        maker = node.metadata_props.get(graphs.PASS, "")
        if maker.startswith(RULE):
            groups.setdefault((maker, node.metadata_props.get(graphs.ORIGIN, ""), node.graph), []).append(node)
    return {node: tuple(group) for group in groups.values() for node in group if len(group) > 1}
