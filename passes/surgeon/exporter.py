"""Make a model of the graphsurgeon graph that a script left, and restore what graphsurgeon did not show.

As in graphsurgeon, tensors are identified by name. Unlike in graphsurgeon, a tensor that two nodes or none compute is
an error, subgraphs capture constants of outer graphs instead of copying them, disconnected nodes are dropped, and the
nodes may be in any order.
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Iterable, Iterator
from dataclasses import replace

import onnx_graphsurgeon as gs
import onnx_ir as ir

from passes.core.errors import InputError
from passes.graphs.replacement import inherit
from passes.graphs.scopes import nodes_of
from passes.graphs.traversal import is_used
from passes.surgeon.attributes import attribute_of, unchanged
from passes.surgeon.changes import Changes
from passes.surgeon.tags import GraphTag, NodeTag, TensorTag, tag_of
from passes.surgeon.tensors import ArraySources, dimension, same_elements, same_type, tensor_of, type_of

Values = ChainMap[str, ir.Value]


class Exporter:
    """Makes graphs of a model of graphsurgeon graphs; the graphs of the original model are not changed.

    Args:
        sources: the arrays that the script read.

    Attributes:
        changes: what the script changed, in the graphs exported so far.
        pairs: the exported graphs and subgraphs: graphsurgeon's, and the model's.
        nodes: the exported nodes, likewise.
    """

    def __init__(self, model: ir.Model, sources: ArraySources) -> None:
        self.ir_version, self.sources = model.ir_version, sources
        self.changes = Changes()
        self.pairs: list[tuple[gs.Graph, ir.Graph]] = []
        self.nodes: list[tuple[gs.Node, ir.Node]] = []
        self._now: dict[ir.Value, ir.Value] = {}
        self._constants: dict[int, ir.Value] = {}
        self._names = {node.name or "" for node in nodes_of(model)}
        self._on_devices: list[tuple[ir.Node, ir.Node]] = []

    def graph(self, graph: gs.Graph) -> ir.Graph:
        """Return the main graph, with its opset imports; raises InputError if the script left an invalid graph."""
        exported = self._graph(graph, ChainMap(), graph.opset)
        self._restore_defaults(graph, exported)
        return self._finish(graph, exported)

    def functions(self, graph: gs.Graph) -> list[ir.Function]:
        """Return the functions; an unchanged one is the model's own.

        Raises InputError if the script left an invalid function.
        """
        return [self._function(function) for function in graph.functions]

    def _function(self, function: gs.Function) -> ir.Function:
        tag: GraphTag | None = tag_of(function)
        before, count = tag.function if tag is not None else None, self.changes.count()
        exported_graph = self._finish(function, self._graph(function, ChainMap(), function.opset, in_function=True))
        node = gs.Node(function.name, name=function.name, domain=function.domain)
        attributes = []
        for name, value in function.attrs.items():
            old = before.attributes.get(name) if before is not None else None
            if value is not None:
                attributes.append(self._attribute(name, value, node, old, ChainMap(), function.opset))
            else:
                attributes.append(old if old is not None else ir.Attr(name, ir.AttributeType.UNDEFINED, None))
        overload = before.overload if before is not None else ""
        exported = ir.Function(function.domain, function.name, overload, graph=exported_graph, attributes=attributes)
        if before is not None and count == self.changes.count() and before.identifier() == exported.identifier():
            old_attributes = before.attributes.values()
            same = [new.value for new in attributes] == [old.value for old in old_attributes]
            if same and len(before.graph) == len(exported_graph):
                return before
        self.changes.other.append(f"function {function.domain}::{function.name}")
        return exported

    def _graph(self, graph: gs.Graph, outer: Values, opset: int, *, in_function: bool = False) -> ir.Graph:
        tag: GraphTag | None = tag_of(graph)
        before = tag.graph if tag is not None else None
        values = outer.new_child()
        inputs = [self._define(tensor, values) for tensor in graph.inputs]
        constants = [self._define(constant, values) for constant in self._own_constants(graph, before, values)]
        constants += [
            self._define_again(value, values) for value in _never_used(before) if value.name not in values.maps[0]
        ]
        gs_nodes = [node for node in graph.nodes if len(node.outputs)]  # nodes without outputs were disconnected
        outputs = [[self._output(node, output, values) for output in node.outputs] for node in gs_nodes]
        nodes = [self._node(*pair, values, opset) for pair in zip(gs_nodes, outputs, strict=True)]
        if in_function:
            made_here = [_constant_node(value) for value in constants]
            self.changes.new.update(dict.fromkeys(made_here))
            nodes, constants = [*made_here, *nodes], []
        defined = [value for value in (*inputs, *constants) if value.const_value is not None]
        exported = ir.Graph(
            inputs,
            [self._graph_output(tensor, values) for tensor in graph.outputs],
            nodes=nodes,
            initializers=self._in_old_order(defined, before),
            name=before.name if before is not None and tag is not None and graph.name == tag.name else graph.name,
            doc_string=graph.doc_string or None,
            metadata_props=dict(before.metadata_props) if before is not None else None,
        )
        self.pairs.append((graph, exported))
        if before is None or not self._same_interface(exported, before):
            self.changes.other.append(f"inputs, outputs, name or description of {exported.name}")
        return exported

    def _in_old_order(self, values: list[ir.Value], before: ir.Graph | None) -> list[ir.Value]:
        """Return initializers in the order of the model, then new ones."""
        old = list(before.initializers.values()) if before is not None else []
        places = {value: place for place, value in enumerate(old)}
        return sorted(values, key=lambda value: places.get(self.changes.was.get(value) or value, len(old)))

    def _same_interface(self, graph: ir.Graph, before: ir.Graph) -> bool:
        was = self.changes.was
        old = [value for value in before.inputs if not value.is_initializer()]
        return (
            [was.get(value) for value in graph.inputs] == old
            and [was.get(value) or value.name for value in graph.outputs]
            == [value if value in self._now else value.name for value in before.outputs]
            and (graph.name, graph.doc_string or "") == (before.name, before.doc_string or "")
        )

    def _own_constants(self, graph: gs.Graph, before: ir.Graph | None, values: Values) -> Iterator[gs.Constant]:
        """Yield the constants that a graph must define: those that it uses, and its own that its subgraphs use."""
        seen: dict[str, gs.Constant] = {}
        for constant in _constants(graph, before):
            if not constant.name:
                raise InputError(f"a constant of the graph {graph.name} has no name")
            visible = values.get(constant.name)
            if visible is not None and visible is self._constants.get(id(constant)):
                continue
            if visible is not None and visible.const_value is tensor_of(constant, self.sources):
                continue  # graphsurgeon copies the constants of outer graphs with a subgraph
            first = seen.setdefault(constant.name, constant)
            if first is constant:
                yield constant
            elif not same_elements(tensor_of(first, self.sources), tensor_of(constant, self.sources)):
                raise InputError(f"two different constants have the name {constant.name}")

    def _define(self, tensor: gs.Tensor, values: Values) -> ir.Value:
        if tensor.name in values.maps[0]:
            raise InputError(f"two inputs or constants have the name {tensor.name}")
        tag: TensorTag | None = tag_of(tensor)
        before = tag.value if tag is not None else None
        if isinstance(tensor, gs.Constant):
            own = tensor_of(tensor, self.sources)
            value = ir.Value(
                name=tensor.name, type=ir.TensorType(own.dtype), shape=ir.Shape(own.shape.numpy()), const_value=own
            )
            self._constants[id(tensor)] = value
            same = before is not None and before.const_value is own
            if before is not None and same:
                value.type, value.shape = before.type, before.shape
        else:
            value = self._variable(tensor)
            same = before is not None and before.is_graph_input() and value not in self.changes.declared
        if not same:
            self.changes.values.add(value)
        return self._place(value, before, values)

    def _define_again(self, before: ir.Value, values: Values) -> ir.Value:
        """Return an unused constant, which scripts cannot see."""
        value = ir.Value(name=before.name, type=before.type, shape=before.shape, const_value=before.const_value)
        return self._place(value, before, values)

    def _output(self, node: gs.Node, tensor: gs.Tensor, values: Values) -> ir.Value:
        if tensor.is_empty():
            return ir.Value(name="")
        if tensor.name in values.maps[0]:
            hint = "clear tensor.inputs of the tensor that it replaces"
            raise InputError(f"tensor {tensor.name} is computed by {node.name} and by another node", hint=hint)
        tag: TensorTag | None = tag_of(tensor)
        return self._place(self._variable(tensor), tag.value if tag is not None else None, values)

    def _place(self, value: ir.Value, before: ir.Value | None, values: Values) -> ir.Value:
        """Register a value by its name, with the metadata of the value that it was."""
        values[str(value.name)] = value
        if before is not None:
            inherit(value, before)
            self._now[before] = value
            self.changes.was[value] = before
            if value.name != before.name:
                self.changes.other.append(f"{before.name} is renamed to {value.name}")
        return value

    def _variable(self, tensor: gs.Tensor) -> ir.Value:
        """Return a value that is not constant, with its previous type and shape, or those that the script set."""
        value = ir.Value(name=tensor.name)
        if isinstance(tensor, gs.Constant):
            raise InputError(f"{tensor.name} is both a constant and the output of a node", hint="clear its inputs")
        tag: TensorTag | None = tag_of(tensor)
        shape = None if tensor.shape is None else tuple(tensor.shape)
        if tag is not None and tag.kind and same_type(tensor, tag.dtype, tag.kind):
            value.type = tag.value.type
        elif tensor.dtype is not None or (tag is not None and tag.dtype is not None):
            value.type = type_of(tensor) if tensor.dtype is not None else None
            self.changes.declared.add(value)
        if tag is not None and tag.kind and shape == tag.shape:
            value.shape = tag.value.shape
        elif shape is not None:
            value.shape = ir.Shape([dimension(dim) for dim in shape])
            self.changes.declared.add(value)
        return value

    def _node(self, node: gs.Node, outputs: list[ir.Value], values: Values, opset: int) -> ir.Node:
        tag: NodeTag | None = tag_of(node)
        before = tag.node if tag is not None else None
        shown = tag.attributes if tag is not None else {}
        domain = "" if node.domain in (None, "ai.onnx") else node.domain
        same = before is not None and (domain, node.op) == (before.domain, before.op_type)
        attributes = {}
        for name, value in node.attrs.items():
            old = before.attributes.get(name) if before is not None else None
            if old is not None and name in shown and unchanged(value, shown[name], old):
                attributes[name] = old
            elif value is not None:
                attributes[name] = self._attribute(name, value, node, old, values, opset)
                same = same and isinstance(value, gs.Graph) and value is shown.get(name)
        if before is not None and same:
            hidden = {name: old for name, old in before.attributes.items() if name not in shown}
            attributes = {**hidden, **attributes}
            same = attributes.keys() == before.attributes.keys()
        inputs = [None if tensor.is_empty() else self._input(node, tensor, values) for tensor in node.inputs]
        exported = ir.Node(
            domain,
            node.op,
            inputs,
            attributes.values(),
            overload=before.overload if before is not None and same else "",
            outputs=outputs,
            name=self._name(node, tag),
            doc_string=before.doc_string if before is not None else None,
            metadata_props=dict(before.metadata_props) if before is not None else None,
        )
        self.nodes.append((node, exported))
        same = same and before is not None and exported.name == (before.name or exported.name)
        self._note(exported, before, same=same)
        return exported

    def _note(self, node: ir.Node, before: ir.Node | None, *, same: bool) -> None:
        changes, was = self.changes, self.changes.was
        if before is not None:
            changes.kept.add(before)
            if before.device_configurations:
                self._on_devices.append((node, before))
            node.meta.update(before.meta)
        if before is None or not same:
            changes.new[node] = before
        elif [was.get(value) if value else None for value in node.inputs] != list(before.inputs) or [
            was.get(value) for value in node.outputs if value.name
        ] != [output for output in before.outputs if output.name]:
            changes.rewired[node] = before

    def _name(self, node: gs.Node, tag: NodeTag | None) -> str:
        if tag is not None and node.name == tag.name:
            return tag.node.name or tag.name
        base = str(node.name or node.op)
        name, count = base, 1
        while name in self._names:
            count += 1
            name = f"{base}_{count}"
        self._names.add(name)
        return name

    def _input(self, node: gs.Node, tensor: gs.Tensor, values: Values) -> ir.Value:
        if tensor.name not in values:
            what = f"no node computes tensor {tensor.name}, which {node.name} ({node.op}) takes"
            raise InputError(what, hint="make it a graph input or a constant, or append the node that computes it")
        return values[tensor.name]

    def _graph_output(self, tensor: gs.Tensor, values: Values) -> ir.Value:
        if tensor.name in values.maps[0]:
            return values[tensor.name]
        if tensor.name not in values:
            raise InputError(f"no node computes tensor {tensor.name}, which is a graph output")
        return ir.Value(name=tensor.name)  # refers by name to a value of an outer graph, as in the source

    def _attribute(
        self, name: str, value: object, node: gs.Node, old: ir.Attr | None, values: Values, opset: int
    ) -> ir.Attr:
        return attribute_of(
            name,
            value,
            node,
            old,
            opset=opset,
            sources=self.sources,
            graph_of=lambda graph: self._graph(graph, values, opset),
        )

    def _restore_defaults(self, graph: gs.Graph, exported: ir.Graph) -> None:
        """Restore the default values of inputs, which graphsurgeon does not show."""
        tag: GraphTag | None = tag_of(graph)
        if tag is None:
            return
        shown = list(exported.inputs)
        old = [self._now[value] for value in tag.graph.inputs if value in self._now]
        defaults = [value for value in old if value.is_initializer() and not value.is_graph_input()]
        all_shown = [value for value in old if value.is_graph_input()]
        in_order = shown[: len(all_shown)] == all_shown
        wanted = set(defaults) | set(all_shown)
        merged = [value for value in old if value in wanted] + shown[len(all_shown) :]
        exported.inputs[:] = merged if in_order else [*shown, *defaults]
        if self.ir_version < 4:
            exported.inputs.extend(value for value in exported.initializers.values() if not value.is_graph_input())

    def _finish(self, graph: gs.Graph, exported: ir.Graph) -> ir.Graph:
        """Set opset imports, sort, and update device configurations to the new values."""
        tag: GraphTag | None = tag_of(graph)
        imports = {domain.domain: domain.version for domain in graph.import_domains or ()}
        standard = "ai.onnx" if "ai.onnx" in imports else ""
        if tag is None or graph.opset != tag.opset or standard not in imports:  # graphsurgeon ignores a changed opset
            imports[standard] = graph.opset
        for node in ir.traversal.RecursiveGraphIterator(exported):
            imports.setdefault(node.domain or standard, 1)
        exported.opset_imports.update(imports)
        if tag is not None and imports != tag.graph.opset_imports:
            self.changes.other.append("opset imports")
        try:
            exported.sort()
        except ValueError:
            raise InputError(f"the nodes of the graph {exported.name} form a cycle") from None
        for node, before in self._on_devices:
            node.device_configurations = tuple(
                replace(configuration, sharding_specs=tuple(self._remapped(configuration.sharding_specs)))
                for configuration in before.device_configurations
            )
        self._on_devices.clear()
        return exported

    def _remapped(self, specs: Iterable[ir.ShardingSpec]) -> Iterator[ir.ShardingSpec]:
        for spec in specs:
            if spec.value in self._now:
                yield replace(spec, value=self._now[spec.value])


def _constants(graph: gs.Graph, before: ir.Graph | None) -> Iterator[gs.Constant]:
    """Yield the constants that a graph uses, and those defined in it that its subgraphs use."""
    for node in graph.nodes:
        yield from (tensor for tensor in node.inputs if isinstance(tensor, gs.Constant))
        for inner in node.subgraphs(recursive=True):
            for tensor in (*(value for inside in inner.nodes for value in inside.inputs), *inner.outputs):
                tag = tag_of(tensor)
                if isinstance(tensor, gs.Constant) and tag is not None and tag.owner is before:
                    yield tensor
    yield from (tensor for tensor in graph.outputs if isinstance(tensor, gs.Constant))


def _never_used(graph: ir.Graph | None) -> Iterator[ir.Value]:
    for value in graph.initializers.values() if graph is not None else ():
        if value.const_value is not None and not is_used(value):
            yield value


def _constant_node(value: ir.Value) -> ir.Node:
    assert value.const_value is not None
    attribute = ir.AttrTensor("value", value.const_value)
    value.const_value = None
    return ir.Node("", "Constant", [], [attribute], outputs=[value], name=f"{value.name}/Constant")
