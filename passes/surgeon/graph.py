"""graphsurgeon's graph and node classes, adapted for scripts.

``copy`` keeps the tags, and ``fold_constants`` runs the pass fold-constants: graphsurgeon's own is wrong for some
operators, and loads the weights.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import onnx_graphsurgeon as gs
import onnx_ir as ir

from passes.cleanup.fold_constants import FoldConstants
from passes.graphs import lineage
from passes.rewriting.base import Context
from passes.surgeon.exporter import Exporter
from passes.surgeon.tags import GraphTag, tag, tag_of
from passes.surgeon.tensors import ArraySources, TensorValues

_EXCLUDED = "onnx_bridge.excluded"


class SurgeonNode(gs.Node):  # type: ignore[misc]
    """A node that is equal only to itself: graphsurgeon compares nodes by content, which confuses and slows lists."""

    __eq__ = object.__eq__
    __hash__ = object.__hash__


class SurgeonGraph(gs.Graph):  # type: ignore[misc]
    """The graph that scripts receive."""

    def copy(self, tensor_map: Any = None) -> SurgeonGraph:
        """Return a copy whose parts have the same tags."""
        copied: SurgeonGraph = super().copy(tensor_map)
        copied.__class__ = type(self)
        tag(copied, tag_of(self))
        copied.producer_name, copied.producer_version = self.producer_name, self.producer_version
        for old, new in zip(self.nodes, copied.nodes, strict=True):
            tag(new, tag_of(old))
        copies = copied.tensors()
        for name, tensor in self.tensors().items():
            tag(copies[name], tag_of(tensor))
            if isinstance(tensor, gs.Variable):
                copies[name].type = tensor.type
        return copied

    def fold_constants(
        self,
        *_: Any,
        size_threshold: int | None = None,
        should_exclude_node: Callable[[gs.Node], bool] | None = None,
        **__: Any,
    ) -> SurgeonGraph:
        """Turn tensors into constants if the pass fold-constants can compute them; call ``cleanup()`` afterwards.

        Args:
            size_threshold: the largest result to fold, in bytes.
            should_exclude_node: returns True for nodes that must not be folded.
        """
        shown: GraphTag | None = tag_of(self)
        if shown is None or shown.graph is not shown.model.graph:
            return self  # subgraphs are folded with the main graph
        exporter = Exporter(shown.model, shown.sources)
        model = ir.Model(exporter.graph(self), ir_version=shown.model.ir_version)
        for node, node_copy in exporter.nodes:
            if should_exclude_node is not None and should_exclude_node(node):
                node_copy.domain = _EXCLUDED
        step = FoldConstants() if size_threshold is None else FoldConstants(size_threshold)
        step.run(model, Context())
        for graph, folded in exporter.pairs:
            _apply_folded(graph, folded, shown.sources)
        return self


def _apply_folded(graph: gs.Graph, folded: ir.Graph, sources: ArraySources) -> None:
    """Make the folded tensors constant in a graphsurgeon graph; a graph output becomes an Identity of its constant."""
    outputs = {
        node.outputs[0].name: node
        for node in folded
        if node.metadata_props.get(lineage.PASS) == FoldConstants.name and node.op_type == "Identity"
    }
    for name, tensor in graph.tensors().items():
        if not isinstance(tensor, gs.Variable) or not tensor.inputs:
            continue
        value, node = folded.initializers.get(name), outputs.get(name)
        if value is not None and value.const_value is not None:
            tensor.to_constant(TensorValues(value.const_value, sources))
            tensor.inputs.clear()
        elif node is not None and node.inputs[0] is not None and node.inputs[0].const_value is not None:
            tensor.inputs.clear()
            constant = gs.Constant(node.inputs[0].name, TensorValues(node.inputs[0].const_value, sources))
            graph.nodes.append(gs.Node("Identity", node.name, inputs=[constant], outputs=[tensor]))
