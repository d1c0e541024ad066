"""What became of a model's nodes: the verb ``diff``.

Nodes are matched by name; those that passes made say by themselves what they stand for (``onnx_bridge.pass`` and
``onnx_bridge.origin`` in their metadata).
"""

from __future__ import annotations

import dataclasses
import os
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import onnx_ir as ir

from onnx_bridge.model import io as models
from passes.core.graphs import ORIGIN, PASS

if TYPE_CHECKING:
    from rich.console import RenderableType


@dataclass(frozen=True)
class NodeChange:
    """A node that one model has and the other has not, or has otherwise.

    Attributes:
        name: its name.
        operator: its operator, in the second model where it is there.
        made_by: the pass that made it; empty where none says so.
        origin: the nodes of the first model that it stands for.
        changes: for a changed node, what is different, in words.
    """

    name: str
    operator: str
    made_by: str = ""
    origin: tuple[str, ...] = ()
    changes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Difference:
    """The nodes of a second model against those of a first.

    Attributes:
        removed: in the first alone, and named as an origin by nothing in the second.
        replaced: in the first alone, but something in the second stands for them.
        added: in the second alone.
        changed: in both, not alike.
        same: how many are alike.
    """

    removed: list[NodeChange]
    replaced: list[NodeChange]
    added: list[NodeChange]
    changed: list[NodeChange]
    same: int

    def to_json(self) -> dict[str, Any]:
        """As JSON values."""
        return dataclasses.asdict(self)

    def render(self) -> RenderableType:
        """One line a node."""
        from rich.console import Group
        from rich.text import Text

        lines = [Text(f"- {each.name} ({each.operator})", style="red") for each in (*self.removed, *self.replaced)]
        for each in self.added:
            by = f" by {each.made_by}" if each.made_by else ""
            origin = f" from {', '.join(each.origin)}" if each.origin else ""
            lines.append(Text(f"+ {each.name} ({each.operator}){by}{origin}", style="green"))
        for each in self.changed:
            lines.append(Text(f"~ {each.name} ({each.operator}): {'; '.join(each.changes)}", style="yellow"))
        gone = Counter(each.operator for each in (*self.removed, *self.replaced))
        come = Counter(each.operator for each in self.added)
        kinds = [f"{kind} {come[kind] - gone[kind]:+d}" for kind in sorted(gone | come) if come[kind] != gone[kind]]
        counts = f"{len(self.removed) + len(self.replaced)} removed ({len(self.replaced)} replaced), "
        counts += f"{len(self.added)} added, {len(self.changed)} changed, {self.same} alike"
        return Group(*lines, counts, *([", ".join(kinds)] if kinds else []))


def diff(first: str | os.PathLike[str] | ir.Model, second: str | os.PathLike[str] | ir.Model) -> Difference:
    """Compare the nodes of two models, subgraphs and functions included; weights are not read.

    Raises:
        InputError: a model cannot be read.
    """
    before, after = (_nodes(each if isinstance(each, ir.Model) else models.load(each)) for each in (first, second))
    added = [_change(node) for name, node in after.items() if name not in before]
    stood_for = {name for each in added for name in each.origin}
    gone = [NodeChange(name, _operator(node)) for name, node in before.items() if name not in after]
    changed, same = [], 0
    for name in before.keys() & after.keys():
        differences = tuple(_differences(before[name], after[name]))
        if differences:
            changed.append(dataclasses.replace(_change(after[name]), changes=differences))
        else:
            same += 1
    return Difference(
        removed=[each for each in gone if each.name not in stood_for],
        replaced=[each for each in gone if each.name in stood_for],
        added=added,
        changed=sorted(changed, key=lambda each: each.name),
        same=same,
    )


def _nodes(model: ir.Model) -> dict[str, ir.Node]:
    nodes = {str(node.name): node for node in model.graph.all_nodes()}
    for identifier, function in model.functions.items():
        nodes |= {f"{'::'.join(filter(None, identifier))}/{node.name}": node for node in function.all_nodes()}
    return nodes


def _operator(node: ir.Node) -> str:
    return f"{node.domain}::{node.op_type}" if node.domain else node.op_type


def _change(node: ir.Node) -> NodeChange:
    import json

    origin = tuple(json.loads(node.metadata_props.get(ORIGIN, "[]")))
    return NodeChange(str(node.name), _operator(node), node.metadata_props.get(PASS, ""), origin)


def _differences(before: ir.Node, after: ir.Node) -> list[str]:
    found = []
    if _operator(before) != _operator(after):
        found.append(f"operator {_operator(before)} → {_operator(after)}")
    for kind, old, new in (("input", before.inputs, after.inputs), ("output", before.outputs, after.outputs)):
        names = [[value.name if value is not None else "" for value in values] for values in (old, new)]
        if names[0] != names[1]:
            found.append(f"{kind}s {', '.join(map(str, names[0]))} → {', '.join(map(str, names[1]))}")
    for name in sorted(before.attributes.keys() | after.attributes.keys()):
        texts = [_attribute(node.attributes.get(name)) for node in (before, after)]
        if texts[0] != texts[1]:
            found.append(f"{name} {texts[0]} → {texts[1]}")
    return found


def _attribute(attribute: ir.Attr | None) -> str:
    """Its value as text; graphs count as equal here, since their nodes are compared by themselves."""
    if attribute is None:
        return "(none)"
    if attribute.type in (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS):
        return "(graph)"
    if attribute.type == ir.AttributeType.TENSOR:
        tensor = attribute.as_tensor()
        value = tensor.numpy().tolist() if tensor.size <= 16 else hash(tensor.tobytes())
        return f"{tensor.dtype.name.lower()}{list(tensor.shape)} {value}"
    return str(attribute.value)
