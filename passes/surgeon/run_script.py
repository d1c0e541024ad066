"""A function on a graph of graphsurgeon, run on a model.

The graph is graphsurgeon's own, but for two methods: ``copy`` keeps what its parts stand for, and ``fold_constants``
is that of the pass fold-constants, since graphsurgeon's is wrong for some operators and takes the weights along.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import onnx_graphsurgeon as gs
import onnx_ir as ir

from passes.cleanup.fold_constants import FoldConstants
from passes.core import graphs
from passes.core.base import Context, Result, Rewrite, Skip
from passes.core.errors import InputError
from passes.core.graphs import Scope
from passes.surgeon.changes import doubt, stamp
from passes.surgeon.from_graphsurgeon import Exporter
from passes.surgeon.to_graphsurgeon import GraphTag, Importer, tag, tag_of
from passes.surgeon.values import Loaded, TensorValues

_EXCLUDED = "onnx_bridge.excluded"


class SurgeonGraph(gs.Graph):  # type: ignore[misc]
    """The graph that scripts get."""

    def copy(self, tensor_map: Any = None) -> SurgeonGraph:
        """A copy whose parts stand for the same parts of the model."""
        made: SurgeonGraph = super().copy(tensor_map)
        made.__class__ = type(self)
        tag(made, tag_of(self))
        made.producer_name, made.producer_version = self.producer_name, self.producer_version
        for old, new in zip(self.nodes, made.nodes, strict=True):
            tag(new, tag_of(old))
        copies = made.tensors()
        for name, tensor in self.tensors().items():
            tag(copies[name], tag_of(tensor))
            if isinstance(tensor, gs.Variable):
                copies[name].type = tensor.type
        return made

    def fold_constants(
        self,
        *_: Any,
        size_threshold: int | None = None,
        should_exclude_node: Callable[[gs.Node], bool] | None = None,
        **__: Any,
    ) -> SurgeonGraph:
        """Turn tensors into constants where the pass fold-constants can compute them; call ``cleanup()`` after it.

        Args:
            size_threshold: larger results than this many bytes are not folded.
            should_exclude_node: says which nodes are not.
        """
        about: GraphTag | None = tag_of(self)
        if about is None or about.graph is not about.model.graph:
            return self  # subgraphs are folded with the main graph
        exporter = Exporter(about.model, about.loaded)
        model = ir.Model(exporter.graph(self), ir_version=about.model.ir_version)
        for node, made in exporter.nodes:
            if should_exclude_node is not None and should_exclude_node(node):
                made.domain = _EXCLUDED
        step = FoldConstants() if size_threshold is None else FoldConstants(size_threshold)
        step.run(model, Context())
        for graph, folded in exporter.pairs:
            _take_over(graph, folded, about.loaded)
        return self


def _take_over(graph: gs.Graph, folded: ir.Graph, loaded: Loaded) -> None:
    """Make what was folded constant in graphsurgeon's graph as well; an output is an Identity of its constant."""
    outputs = {
        node.outputs[0].name: node
        for node in folded
        if node.metadata_props.get(graphs.PASS) == FoldConstants.name and node.op_type == "Identity"
    }
    for name, tensor in graph.tensors().items():
        if not isinstance(tensor, gs.Variable) or not tensor.inputs:
            continue
        value, node = folded.initializers.get(name), outputs.get(name)
        if value is not None and value.const_value is not None:
            tensor.to_constant(TensorValues(value.const_value, loaded))
            tensor.inputs.clear()
        elif node is not None and node.inputs[0] is not None and node.inputs[0].const_value is not None:
            tensor.inputs.clear()
            constant = gs.Constant(node.inputs[0].name, TensorValues(node.inputs[0].const_value, loaded))
            graph.nodes.append(gs.Node("Identity", node.name, inputs=[constant], outputs=[tensor]))


def operate(
    function: Callable[[gs.Graph], gs.Graph | None], model: ir.Model, context: Context, *, maker: str, where: str
) -> Result:
    """Run a function, and take over what it did as one rewrite.

    Args:
        function: gets the main graph; changes it, or returns another.
        model: its graph and functions are replaced if the function changed anything.
        context: its budget is asked for one rewrite.
        maker: the pass.
        where: what to call the function in errors.

    Raises:
        InputError: what the function left is no valid graph.
    """
    result = Result(model)
    for scope in graphs.scopes(model):
        graphs.name_nodes(scope)
    nodes = [node for scope in graphs.scopes(model) for node in scope.nodes()]
    loaded = Loaded()
    try:
        graph = Importer(model, loaded, SurgeonGraph).run()
        about: GraphTag = tag_of(graph)
        returned = function(graph)
        graph = graph if returned is None else returned
        if not isinstance(graph, gs.Graph):
            raise InputError(f"it returned {type(graph).__name__}, not a graph of graphsurgeon or None")
        exporter = Exporter(model, loaded)
        made, functions = exporter.graph(graph), exporter.functions(graph)
    except InputError as error:
        raise InputError(error.what, where=error.where or where, hint=error.hint) from error.__cause__
    changes = exporter.changes
    removed = (
        set(nodes) - changes.kept - {node for each in functions for node in Scope(model, each.graph, each).nodes()}
    )
    identifiers = [each.identifier() for each in functions]
    if identifiers != list(model.functions):
        changes.other.append("the list of functions")
    producer = (graph.producer_name, graph.producer_version)
    if (producer, graph.ir_version) != (about.producer, about.ir_version):
        changes.other.append("producer or IR version")
    if not changes.count() and not removed:
        return result

    after = ir.Model(made, ir_version=graph.ir_version or model.ir_version, functions=functions)
    for scope in graphs.scopes(after):
        stamp(list(scope.nodes()), changes, removed, maker)
    disputed, failure = doubt(after, changes)
    unknown = next((value.name for value in made.outputs if value.type is None), None)
    if unknown is not None:
        raise InputError(f"the dtype of the output {unknown} is not known", where=where, hint="set it in the script")
    if not context.budget.take():
        return result
    model.graph, model.ir_version = made, after.ir_version
    model.functions.clear()
    model.functions.update(after.functions)
    if producer != about.producer:
        model.producer_name, model.producer_version = producer
    if failure:
        result.skips.append(Skip(f"ONNX's inference fails on what the script left: {failure}"))
    elif disputed:
        result.skips.append(Skip(f"the types or shapes of {disputed} values may not be those that the model says"))
    old = {*removed, *(each for each in changes.made.values() if each is not None), *changes.rewired.values()}
    note = where + (f"; {len(changes.other)} other changes" if changes.other else "")
    new = [*changes.made, *changes.rewired]
    gone = tuple(node.name or "" for node in nodes if node in old)
    result.rewrites.append(Rewrite(gone, tuple(node.name or "" for node in new), note))
    return result
