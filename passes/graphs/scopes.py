"""Scopes: the main graph or a function, with its subgraphs, its opsets, its constants and its unique names."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

import onnx_ir as ir

from passes.core.schemas import has_dtype
from passes.graphs import lineage
from passes.graphs.tensors import constant_of
from passes.graphs.traversal import graphs_within, with_nested

DISPUTED = "onnx_bridge.disputed"
"""Marks, in ``meta``, a value whose script-declared type or shape inference could not confirm: passes do not use it."""
ANNOTATION = "quant_parameter_tensor_names"
"""The key in ``meta`` of the quantization annotation of a value, which `onnx_ir` keeps: names of its parameters."""
CLAIMED = "onnx_bridge.claimed"
"""The part that inference proves, in ``meta`` of a value whose shape is declared and depends on data."""


class Names:
    """The names of all values and nodes of a scope, to make unique new ones."""

    def __init__(self, scope: Scope) -> None:
        self._values: dict[str, int] = {}
        self._nodes: dict[str, int] = {}
        for graph in scope.graphs():
            self._values |= dict.fromkeys((value.name for value in graph.inputs if value.name), 1)
            self._values |= dict.fromkeys(graph.initializers, 1)
            for node in graph:
                self._nodes[node.name or ""] = 1
                self._values |= dict.fromkeys((value.name for value in node.outputs if value.name), 1)

    def value(self, base: str) -> str:
        """Return ``base``, or the first free one of ``base_2``, ``base_3``, …"""
        return _unique(base, self._values)

    def node(self, base: str) -> str:
        """Return ``base``, or the first free one of ``base_2``, ``base_3``, …"""
        return _unique(base, self._nodes)


def _unique(base: str, taken: dict[str, int]) -> str:
    """Return ``base`` or a numbered name that is free; ``taken`` holds the highest number of each base."""
    if base not in taken:
        taken[base] = 1
        return base
    count = taken[base] + 1
    while (name := f"{base}_{count}") in taken:
        count += 1
    taken[base], taken[name] = count, 1
    return name


@dataclass(eq=False)
class Scope:
    """The main graph or a function, with all its subgraphs: what shares opset imports and unique names.

    Attributes:
        graph: the main graph, or the function's.
        function: the function; None for the main graph. Functions have no initializers.
    """

    model: ir.Model
    graph: ir.Graph
    function: ir.Function | None = None

    @cached_property
    def names(self) -> Names:
        """All names of the scope, collected at first use; every new name must come from here."""
        return Names(self)

    @property
    def opset_imports(self) -> Mapping[str, int]:
        """Versions by domain; the standard domain is always ``""``."""
        imports = self.graph.opset_imports
        return {"" if domain == "ai.onnx" else domain: version for domain, version in imports.items()}

    def opset(self, domain: str = "") -> int:
        """Return the version of a domain; 1 if it is not imported."""
        return self.opset_imports.get(domain, 1)

    def nodes(self) -> Iterator[ir.Node]:
        """Yield all nodes, each followed by those of its subgraphs."""
        return with_nested(self.graph)

    def graphs(self) -> Iterator[ir.Graph]:
        """Yield the graph and all its subgraphs."""
        return graphs_within(self.graph)

    def is_parameter(self, value: ir.Value) -> bool:
        """Return whether a value is an initializer that callers cannot override.

        Before IR version 4 every initializer had to be an input as well.
        """
        return value.is_initializer() and (not value.is_graph_input() or self.model.ir_version < 4)

    def constant(self, value: ir.Value | None) -> ir.TensorProtocol | None:
        """Return the tensor of a parameter or of a Constant node's output; None for all other values.

        The constants of a proposal are in no graph yet.
        """
        if value is None:
            return None
        node = value.producer()
        is_proposed = node is None and value.graph is None
        if is_proposed or self.is_parameter(value):
            return value.const_value
        return constant_of(node) if node is not None else None

    def shape(self, value: ir.Value | None) -> ir.Shape | None:
        """Return the shape of a value; None if it is unknown, disputed, or in a function, whose calls differ."""
        tensor = self.constant(value)
        if tensor is not None:
            return ir.Shape(tensor.shape.numpy())
        return value.shape if value is not None and self._is_reliable(value) else None

    def proven_shape(self, value: ir.Value | None) -> ir.Shape | None:
        """Return the part of a value's shape that inference proves, if no run will show a declaration to be false."""
        shape = self.shape(value)
        if shape is None or value is None or self.constant(value) is not None:
            return shape
        proven: ir.Shape | None = value.meta.get(CLAIMED, shape)
        return proven

    def static_shape(self, value: ir.Value | None) -> tuple[int, ...] | None:
        """Return the shape of a value, if all its dimensions are known numbers."""
        shape = self.shape(value)
        return shape.numpy() if shape is not None and shape.is_static() else None

    def proven_sizes(self, value: ir.Value | None) -> tuple[int, ...] | None:
        """Return the shape of a value, if all its dimensions are numbers that inference proves (`proven_shape`)."""
        shape = self.proven_shape(value)
        return shape.numpy() if shape is not None and shape.is_static() else None

    def dtype(self, value: ir.Value | None) -> ir.DataType | None:
        """Return the dtype of a value; None if it is unknown, disputed, or in a function."""
        tensor = self.constant(value)
        if tensor is not None:
            return tensor.dtype
        return value.dtype if value is not None and self._is_reliable(value) else None

    def values(self) -> Iterator[ir.Value]:
        """Yield all values of the scope."""
        for graph in self.graphs():
            yield from graph.inputs
            yield from (value for value in graph.initializers.values() if not value.is_graph_input())
            for node in graph:
                yield from node.outputs

    def has_identity(self, value: ir.Value) -> bool:
        """Return whether Identity takes a value: sequences since opset 14, optionals since 16."""
        since = 1 if value.type is None or isinstance(value.type, ir.TensorType) else 14
        return self.opset() >= (16 if isinstance(value.type, ir.OptionalType) else since)

    def _is_reliable(self, value: ir.Value) -> bool:
        return self.function is None and DISPUTED not in value.meta

    def new_constant(self, graph: ir.Graph, tensor: ir.TensorProtocol, name: str) -> ir.Value:
        """Add an initializer to ``graph``, which must not be that of a function.

        Before IR version 4 a subgraph has none, and the main graph gets it, under another name.
        """
        if self.model.ir_version < 4 and graph is not self.graph:
            graph, name = self.graph, self.names.value(name)
        value = ir.Value(
            name=name, type=ir.TensorType(tensor.dtype), shape=ir.Shape(tensor.shape.numpy()), const_value=tensor
        )
        graph.initializers.add(value)
        if self.model.ir_version < 4 and graph is self.graph:
            graph.inputs.append(value)
        return value

    def constant_problem(self, dtype: ir.DataType) -> str | None:
        """Return why no constant can be added: a function holds it in a Constant node, which takes few old dtypes."""
        if self.function is None or has_dtype("Constant", self.opset(), 0, dtype.value, is_output=True):
            return None
        return f"functions of opset {self.opset()} have no constants of {dtype.name.lower()}"

    def drop_constant(self, value: ir.Value) -> bool:
        """Remove a parameter that nothing uses; False if it is not a parameter, or is used."""
        graph = value.graph
        if graph is None or not self.is_parameter(value) or value.is_graph_output() or value.uses():
            return False
        del graph.initializers[str(value.name)]
        if value.is_graph_input():
            graph.inputs.remove(value)
        return True


def scopes(model: ir.Model) -> Iterator[Scope]:
    """Yield the main graph, then every function."""
    yield Scope(model, model.graph)
    for function in list(model.functions.values()):
        yield Scope(model, function.graph, function)


def nodes_of(model: ir.Model) -> Iterator[ir.Node]:
    """Yield the nodes of the main graph, then of every function, each followed by those of its subgraphs."""
    return (node for scope in scopes(model) for node in scope.nodes())


def values_of(model: ir.Model) -> Iterator[ir.Value]:
    """Yield all values of the main graph and its subgraphs."""
    yield from Scope(model, model.graph).values()


def required_inputs(model: ir.Model) -> list[ir.Value]:
    """Return the inputs of a model that have no default, in order."""
    return [value for value in model.graph.inputs if not value.is_initializer()]


def required_names(model: ir.Model) -> list[str]:
    """Return the names of the inputs of a model that have no default, in order."""
    return [str(value.name) for value in required_inputs(model)]


def weight_bytes(model: ir.Model) -> int:
    """Return the bytes of the initializers of the main graph."""
    return sum(value.const_value.nbytes for value in model.graph.initializers.values() if value.const_value)


def name_nodes(scope: Scope) -> Scope:
    """Give a name to every node that has none of its own, since reports and origins need them; return the scope."""
    taken: set[tuple[ir.Graph | ir.Function | None, str]] = set()
    for node in scope.nodes():
        name = node.name or ""
        if name and (node.graph, name) in taken:
            node.metadata_props[lineage.ORIGIN] = lineage.common_origin([node])
        if not name or (node.graph, name) in taken:
            node.name = scope.names.node(name or node.op_type)
        taken.add((node.graph, name))
    return scope
