"""The verb ``diff``: the nodes of two models compared; a bundle stands for its cleaned model.

Nodes are matched by name; those that passes made record the pass and the nodes that they replace in their metadata
(``onnx_bridge.pass``, ``onnx_bridge.origin``).
"""

from __future__ import annotations

import dataclasses
import os
from dataclasses import dataclass

import onnx_ir as ir

from onnx_bridge.bundle.bundle import Bundle, is_bundle
from onnx_bridge.core.errors import InputError
from onnx_bridge.core.schema import JsonRecord
from onnx_bridge.model import io as models
from onnx_bridge.model.provenance import operator
from passes.graphs import lineage


@dataclass(frozen=True)
class NodeChange:
    """A node that was removed, added or changed.

    Attributes:
        operator: its operator, in the second model if it is there.
        made_by: the pass that made it; empty if none is recorded.
        origin: the nodes of the first model that it replaces.
        changes: the differences of a changed node, in words.
    """

    name: str
    operator: str
    made_by: str = ""
    origin: tuple[str, ...] = ()
    changes: tuple[str, ...] = ()


@dataclass(frozen=True)
class ModelDiff(JsonRecord):
    """The differences of a second model from a first.

    Attributes:
        removed: nodes of the first model only, which no node of the second replaces.
        replaced: nodes of the first model only, which nodes of the second replace.
        added: nodes of the second model only.
        changed: nodes of both models that differ.
        unchanged: the number of equal nodes.
    """

    removed: list[NodeChange]
    replaced: list[NodeChange]
    added: list[NodeChange]
    changed: list[NodeChange]
    unchanged: int


def diff(first: str | os.PathLike[str] | ir.Model, second: str | os.PathLike[str] | ir.Model) -> ModelDiff:
    """Compare the nodes of two models, subgraphs and functions included; weights are not read.

    Args:
        first, second: ONNX files, models in memory, or bundles, which mean their cleaned models.

    Raises:
        InputError: a model cannot be read, or a bundle keeps none.
    """
    before, after = _nodes(_model(first)), _nodes(_model(second))
    added = [_change(node) for name, node in after.items() if name not in before]
    replaced = {name for change in added for name in change.origin}
    missing = [NodeChange(name, operator(node)) for name, node in before.items() if name not in after]
    changed, unchanged = [], 0
    for name in before.keys() & after.keys():
        differences = tuple(_differences(before[name], after[name]))
        if differences:
            changed.append(dataclasses.replace(_change(after[name]), changes=differences))
        else:
            unchanged += 1
    return ModelDiff(
        removed=[change for change in missing if change.name not in replaced],
        replaced=[change for change in missing if change.name in replaced],
        added=added,
        changed=sorted(changed, key=lambda change: change.name),
        unchanged=unchanged,
    )


def _model(given: str | os.PathLike[str] | ir.Model) -> ir.Model:
    if isinstance(given, ir.Model) or not is_bundle(given):
        return models.loaded(given)
    path = Bundle(given).model_path
    if path is None:
        raise InputError("the bundle keeps no cleaned model", where=str(given), hint="name an ONNX file")
    return models.load(path)


def _nodes(model: ir.Model) -> dict[str, ir.Node]:
    nodes = {str(node.name): node for node in model.graph.all_nodes()}
    for identifier, function in model.functions.items():
        nodes |= {f"{'::'.join(filter(None, identifier))}/{node.name}": node for node in function.all_nodes()}
    return nodes


def _change(node: ir.Node) -> NodeChange:
    origin = tuple(lineage.replaced(node) or ())
    return NodeChange(str(node.name), operator(node), node.metadata_props.get(lineage.PASS, ""), origin)


def _differences(before: ir.Node, after: ir.Node) -> list[str]:
    differences = []
    if operator(before) != operator(after):
        differences.append(f"operator {operator(before)} → {operator(after)}")
    for kind, old, new in (("input", before.inputs, after.inputs), ("output", before.outputs, after.outputs)):
        names = [[value.name if value is not None else "" for value in values] for values in (old, new)]
        if names[0] != names[1]:
            differences.append(f"{kind}s {', '.join(map(str, names[0]))} → {', '.join(map(str, names[1]))}")
    for name in sorted(before.attributes.keys() | after.attributes.keys()):
        texts = [_attribute(node.attributes.get(name)) for node in (before, after)]
        if texts[0] != texts[1]:
            differences.append(f"{name} {texts[0]} → {texts[1]}")
    return differences


def _attribute(attribute: ir.Attr | None) -> str:
    """Return the value of an attribute as text; graphs are equal here, since their nodes are compared separately."""
    if attribute is None:
        return "(none)"
    if attribute.type in (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS):
        return "(graph)"
    if attribute.type == ir.AttributeType.TENSOR:
        tensor = attribute.as_tensor()
        value = tensor.numpy().tolist() if tensor.size <= 16 else hash(tensor.tobytes())
        return f"{tensor.dtype.name.lower()}{list(tensor.shape)} {value}"
    return str(attribute.value)
