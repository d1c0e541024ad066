"""Witnesses: small instances of probes, which are run if the real ones are too large.

The witness of a probe has the same operators, attributes, dtypes, ranks and constants, in a model of its own. Only
sizes are smaller: equal sizes are equal in the witness too, 0, 1 and 2 stay, and sizes keep their order and their
remainder by 2, by strides and by what else selects behaviour (`passes.probing.shrinking`). Elements of constants are
those of the real ones, taken at even distances, so that each gate, group or part of an axis is in it; those that name
sizes or positions become smaller with what they name. Nodes that differ only in sizes that select nothing have equal
witnesses.

What is computed must have the pattern that the real one has: the same ranks, the same axes of 1, and sizes that follow
the rules wherever a node of the probe needs them. If it has not, larger witnesses are tried.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from passes.graphs.scopes import Scope
from passes.graphs.tensors import constant_of
from passes.graphs.traversal import has_subgraphs, with_nested
from passes.probing.probe import RANGE, Probe
from passes.probing.probe_writer import SAMPLED, keeps_elements
from passes.probing.shrinking.operands import Dims, Operands
from passes.probing.shrinking.shrink import shrink, shrink_arithmetic
from passes.probing.shrinking.sizes import ALIKE, Expression, Key, Rule, SizeMap
from passes.rewriting.base import Skip
from passes.shapes import inference

_ATTEMPTS = ((0, 0), (1, 1), (3, 2), (15, 2))
"""The excess over the smallest sizes, as a factor less one, and the power of all moduli that keeps remainders."""
_ELEMENTS = 24
"""An input has at least this many elements, unless the real one has fewer: as many edge cases fit in."""
_LIST = 64
"""Shape arithmetic computes lists of at most this many elements."""


def witness(probe: Probe) -> Probe | Skip:
    """Return a small instance of a probe, in a model of its own; its outputs correspond to those of the probe by index.

    Returns:
        The witness; `Skip` with the reason if the probe has none.
    """
    if probe.problem is not None:
        return Skip(probe.problem)
    if probe.replaces is not None:
        return Skip("the node is judged by what it replaces")
    blueprint = _Blueprint(probe)
    reason = ""
    for least, power in _ATTEMPTS:
        blueprint.solve(least, power)
        copy = _Copy(blueprint)
        reason = copy.difference()
        if not reason:
            return copy.probe()
    return Skip(reason)


class _Blueprint:
    """The sizes of a witness, and how each node shrinks."""

    def __init__(self, probe: Probe) -> None:
        self.probe, self.scope = probe, probe.scope
        self.dependencies = probe.full_dependencies
        self.ranges = dict(zip(self.dependencies.inputs, probe.input_ranges, strict=True))
        self.nodes = list(self.dependencies.ordered())
        self.sizes = SizeMap()
        self.axes: dict[ir.Value, list[Expression | None]] = {}
        self.elements: dict[ir.Value, list[Expression]] = {}
        self.limits: dict[ir.Value, list[Expression]] = {}
        self.shrunk: dict[ir.Node, Operands] = {}
        every = list(with_nested(self.nodes))
        arithmetic: set[ir.Node] = set()
        for node in every:
            operands = self._operands(node, kinds=len(every) == 1)
            if len(every) > 1 and self._is_arithmetic(node, operands, arithmetic):
                arithmetic.add(node)
                shrink_arithmetic(operands)
            else:
                shrink(operands)
            self._add(node, operands)

    def solve(self, least: int, power: int) -> None:
        """Find the sizes; those of inputs with too few elements are larger."""
        self.sizes.solve(least, power)
        for value in self.dependencies.inputs:
            real = self.real(value) or ()
            small = self.small(value, real)
            missing = min(math.prod(real), _ELEMENTS) / max(math.prod(small), 1)
            if missing > 1:
                free = [(size, axis) for axis, size in enumerate(real) if self._key(value, axis) is not None]
                if free:
                    _, axis = max(free)
                    key = self._key(value, axis)
                    assert key is not None
                    self.sizes.require(key, Rule(math.ceil(small[axis] * missing)))
                    self.sizes.solve(least, power)

    def _key(self, value: ir.Value, axis: int) -> Key | None:
        """Return the size that an axis of an input has, if it does not follow from others."""
        axes = self.axes.get(value)
        expression = axes[axis] if axes else None
        key = None if expression is None else expression.key
        return None if key in self.sizes.definitions else key

    def _add(self, node: ir.Node, shrunk: Operands) -> None:
        self.shrunk[node] = shrunk
        for index, value in enumerate(node.inputs):
            if value is not None:
                self.axes.setdefault(value, shrunk.axes[index])
                if index in shrunk.small_elements:
                    self.elements.setdefault(value, shrunk.small_elements[index])
                if index in shrunk.limits:
                    self.limits.setdefault(value, shrunk.limits[index])

    def constant(self, value: ir.Value | None) -> ir.TensorProtocol | None:
        tensor = None if value is None else self.dependencies.constants.get(value)
        return tensor if tensor is not None else self.scope.constant(value)

    def real(self, value: ir.Value | None) -> Dims | None:
        tensor = self.constant(value)
        shape = self.scope.static_shape(value) if tensor is None else tensor.shape.numpy()
        return None if shape is None else tuple(shape)

    def _operands(self, node: ir.Node, *, kinds: bool) -> Operands:
        tensors = {index: self.constant(value) for index, value in enumerate(node.inputs)}
        known = {index: tensor for index, tensor in tensors.items() if tensor is not None}
        shapes, results = [[self.real(value) for value in values] for values in (node.inputs, node.outputs)]
        return Operands(node, shapes, results, known, kinds, self.sizes)

    def _is_arithmetic(self, node: ir.Node, operands: Operands, before: set[ir.Node]) -> bool:
        """Return whether a node computes lists of numbers from shapes or constants."""
        if node.op_type in ("Shape", "Size") or has_subgraphs(node):
            return False
        if any(result is None or len(result) > 1 or sum(result) > _LIST for result in operands.results):
            return False
        producers = [value.producer() for value in node.inputs if value is not None]
        if any(
            producer is not None and (producer in before or producer.op_type in ("Shape", "Size"))
            for producer in producers
        ):
            return True
        dtype = self.scope.dtype(node.outputs[0])
        return node in self.dependencies.cone and dtype is not None and dtype.is_integer()

    def small(self, value: ir.Value, real: Sequence[int]) -> list[int]:
        """Return the shape of an input or a constant in the witness."""
        axes = self.axes.get(value)
        if axes is None or len(axes) != len(real):  # an output of a subgraph, or of the probe
            return [self.sizes["", size] for size in real]
        return [size if axis is None else self.sizes.evaluate(axis) for axis, size in zip(axes, real, strict=True)]


class _Copy:
    """A model with the nodes of a probe, for smaller sizes."""

    def __init__(self, blueprint: _Blueprint) -> None:
        self._blueprint = blueprint
        self._values: dict[ir.Value, ir.Value] = {}
        dependencies, scope = blueprint.dependencies, blueprint.scope
        inputs = [self._input(value) for value in dependencies.inputs]
        constants = [self._constant(value, tensor) for value, tensor in dependencies.constants.items()]
        nodes = [self._node(node) for node in blueprint.nodes]
        outputs = [self._values[value] for value in blueprint.probe.outputs]
        imports = dict(scope.opset_imports)
        graph = ir.Graph(inputs, outputs, nodes=nodes, initializers=constants, opset_imports=imports, name="witness")
        functions = list(scope.model.functions.values())
        self._model = ir.Model(graph, ir_version=max(scope.model.ir_version, 4), functions=functions)
        self._scope = Scope(self._model, graph)
        self._infer(nodes)

    def probe(self) -> Probe:
        """Return the nodes as a probe of this model."""
        copies = {old: self._values[old.outputs[0]].producer() for old in self._blueprint.probe.nodes}
        outputs = [self._values[value] for value in self._blueprint.probe.outputs]
        return Probe([node for node in copies.values() if node is not None], self._scope, outputs)

    # copying

    def _named(self, value: ir.Value) -> ir.Value:
        new = ir.Value(name=f"v{len(self._values)}" if value.name != "" else "", type=value.type)
        self._values[value] = new
        return new

    def _input(self, value: ir.Value) -> ir.Value:
        new, real = self._named(value), self._blueprint.real(value)
        new.shape = None if real is None else ir.Shape(self._blueprint.small(value, real))
        if (known_range := self._blueprint.ranges.get(value)) is not None:
            new.meta[RANGE] = known_range
        return new

    def _constant(self, value: ir.Value, tensor: ir.TensorProtocol) -> ir.Value:
        new = self._named(value)
        small = self._tensor(value, tensor)
        new.type, new.shape, new.const_value = ir.TensorType(tensor.dtype), ir.Shape(small.shape.numpy()), small
        return new

    def _tensor(self, value: ir.Value, tensor: ir.TensorProtocol) -> ir.TensorProtocol:
        """Return the elements of a constant: what they name if they name sizes, else a sample of the real ones."""
        blueprint = self._blueprint
        shape = blueprint.small(value, tensor.shape.numpy())
        elements = blueprint.elements.get(value)
        if elements is not None:
            numbers = np.array([blueprint.sizes.evaluate(element) for element in elements], tensor.dtype.numpy())
            return ir.Tensor(numbers.reshape(shape), dtype=tensor.dtype)
        limits = blueprint.limits.get(value)
        small = sampled(tensor, shape)
        if limits is None:
            return small
        return within(small, [limit.real for limit in limits], [blueprint.sizes.evaluate(limit) for limit in limits])

    def _node(self, node: ir.Node) -> ir.Node:
        inputs = [None if value is None else self._values[value] for value in node.inputs]
        attributes = [self._attribute(attribute, node) for attribute in node.attributes.values()]
        outputs = [self._named(value) for value in node.outputs]
        return ir.Node(
            node.domain, node.op_type, inputs, attributes, overload=node.overload, outputs=outputs, name=node.name
        )

    def _attribute(self, attribute: ir.Attr, node: ir.Node) -> ir.Attr:
        elements = self._blueprint.shrunk[node].attributes.get(attribute.name)
        if elements is not None:
            small = [self._blueprint.sizes.evaluate(element) for element in elements]
            single = attribute.type == ir.AttributeType.INT
            return ir.AttrInt64(attribute.name, small[0]) if single else ir.AttrInt64s(attribute.name, small)
        if attribute.is_ref():
            return attribute
        if attribute.type == ir.AttributeType.GRAPH:
            return ir.AttrGraph(attribute.name, self._graph(attribute.as_graph()))
        if attribute.type == ir.AttributeType.GRAPHS:
            return ir.AttrGraphs(attribute.name, [self._graph(graph) for graph in attribute.as_graphs()])
        tensor = constant_of(node)
        return attribute if tensor is None else ir.AttrTensor("value", self._tensor(node.outputs[0], tensor))

    def _graph(self, graph: ir.Graph) -> ir.Graph:
        constants = [
            self._constant(value, value.const_value)
            for value in graph.initializers.values()
            if value.const_value is not None and not value.is_graph_input()
        ]
        inputs = [self._input(value) for value in graph.inputs]
        nodes = [self._node(node) for node in graph]
        outputs = [self._values[value] for value in graph.outputs]
        return ir.Graph(inputs, outputs, nodes=nodes, initializers=constants, name=graph.name)

    def _infer(self, nodes: Sequence[ir.Node]) -> None:
        if len(self._blueprint.shrunk) == 1:
            inference.infer_node(nodes[0], self._scope)
        if any(value.shape is None for node in nodes for value in node.outputs if value.name):
            inference.infer(self._model)
        for node, shrunk in self._blueprint.shrunk.items():
            for index, axes in shrunk.small_results.items():
                new = self._values[node.outputs[index]]
                if new.shape is None:
                    new.shape = ir.Shape([self._blueprint.sizes.evaluate(axis) for axis in axes])
        inference.infer_foreign(self._model)
        followed = [self._follow_first_input(node) for node in self._blueprint.nodes]
        if any(followed):
            inference.infer(self._model)

    def _follow_first_input(self, node: ir.Node) -> bool:
        """Give the result of an operator that nothing infers the shape of its first input, if it has that in truth."""
        result = self._values[node.outputs[0]]
        if node.domain in ("", "ai.onnx.ml") or result.shape is not None or not node.inputs:
            return False
        given = self._values[node.inputs[0]] if node.inputs[0] is not None else None
        if given is None or given.shape is None:
            return False
        if self._blueprint.real(node.outputs[0]) != self._blueprint.real(node.inputs[0]):
            return False
        result.shape = given.shape
        return True

    # verification

    def difference(self) -> str:
        """Return how the witness differs in pattern from what it stands for; empty if it does not."""
        for node, shrunk in self._blueprint.shrunk.items():
            has_body = has_subgraphs(node)  # whose results ONNX may not infer
            for value in node.outputs:
                if value.name and not (has_body and self._small(value) is None) and (reason := self._differs(value)):
                    return reason
            for (index, axis), rule in shrunk.rules.items():
                real, small = self._blueprint.real(node.inputs[index]), self._small(node.inputs[index])
                if real and small and not rule.allows(small[axis] or 0, real[axis]):
                    return f"input {index} of {node.op_type} of {list(real)} would become {small}"
        return ""

    def _differs(self, value: ir.Value) -> str:
        before, after = self._blueprint.scope.shape(value), self._small(value)
        if before is None:
            return ""
        if after is None or len(before) != len(after):
            return f"the shape of {value.name} is not known for smaller sizes"
        for size, small in zip(before, after, strict=True):
            if isinstance(size, int) and (small is None or not ALIKE.allows(small, size)):
                return f"{value.name} of {before} would become {after}"
        return ""

    def _small(self, value: ir.Value | None) -> list[int | None] | None:
        shape = self._scope.shape(self._values[value]) if value is not None else None
        return None if shape is None else [size if isinstance(size, int) else None for size in shape]


def sampled(tensor: ir.TensorProtocol, shape: Sequence[int]) -> ir.TensorProtocol:
    """Return elements of a tensor at even distances along each axis; the tensor itself if it has that shape.

    If a probe of the tensor would not have its elements, one of the sample has not either: the witnesses of nodes with
    other weights are equal.
    """
    real = tensor.shape.numpy()
    if list(shape) == list(real):
        return tensor
    places = [np.arange(small) * size // max(small, 1) for small, size in zip(shape, real, strict=True)]
    array = np.asarray(tensor.numpy())
    return _sample(np.ascontiguousarray(array[np.ix_(*places)]), tensor)


def _sample(array: np.ndarray[Any, np.dtype[Any]], source: ir.TensorProtocol) -> ir.TensorProtocol:
    small = ir.Tensor(array, dtype=source.dtype)
    if not keeps_elements(source):
        small.meta[SAMPLED] = True
    return small


def within(indices: ir.TensorProtocol, before: Sequence[int], after: Sequence[int]) -> ir.TensorProtocol:
    """Return indices for smaller axes: at the same distance from the start or, if they are negative, from the end.

    Those that are too large become the last ones, in their order.

    Args:
        indices: indices in any shape; if there are several sizes, its last axis has as many elements.
        before: the sizes of the axes.
        after: their smaller sizes.
    """
    array = np.asarray(indices.numpy())
    small = np.array(after if len(after) > 1 else after[0], array.dtype)
    clipped = np.clip(array, -small, small - 1)
    if len(np.unique(clipped)) < len(np.unique(array)) <= min(after, default=0):
        positive = np.where(array < 0, array + np.array(before, array.dtype), array).reshape(array.shape)
        clipped = np.searchsorted(np.unique(positive), positive).astype(array.dtype)
    return _sample(clipped, indices)
