"""Witnesses: small instances of probes, which are run where the real ones are too large.

The witness of a probe has the same operators, attributes, dtypes, ranks and constants, in a model of its own. Only
sizes are smaller: equal sizes are equal in the witness too, 0, 1 and 2 stay, and sizes keep their order and their
remainder by 2, by strides and by what else selects behaviour (`shrinking`, `size_map`). Elements of constants are those
of the real ones, taken at even distances, so that each gate, group or part of an axis is in it; those that name sizes
or positions become smaller with what they name. Nodes that differ only in sizes that select nothing have equal
witnesses.

What is computed must have the pattern that the real one has: the same ranks, the same axes of 1, and sizes that follow
the rules wherever a node of the probe needs them. If it has not, larger witnesses are tried.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from passes.core import graphs, inference
from passes.core.base import Skip
from passes.core.graphs import Scope
from passes.target.dependencies import Dependencies
from passes.target.probe import Probe
from passes.target.shrinking import Operands, Shrinking, shrink
from passes.target.size_map import Expression, Rule, SizeMap

_ATTEMPTS = 3
"""How often larger sizes are tried."""


def witness(probe: Probe) -> Probe | Skip:
    """A small instance of a probe, in a model of its own; its outputs correspond to those of the probe by index.

    Returns:
        The witness; `Skip` with the reason if the probe has none.
    """
    if probe.problem is not None:
        return Skip(probe.problem)
    if any(next(graphs.subgraphs(node), None) is not None for node in probe.nodes):
        return Skip("it has a subgraph")
    dependencies = Dependencies(probe.nodes, probe.scope, full=True)
    nodes = list(dependencies.ordered())
    reason = ""
    for attempt in range(_ATTEMPTS):
        plan = _Plan(nodes, dependencies, Rule(least=3 * 2**attempt, modulus=2 if attempt == 0 else 4 * 2**attempt))
        small = _Copy(probe, plan).probe()
        reason = _difference(probe, small, plan)
        if not reason:
            return small
    return Skip(reason)


class _Plan:
    """The sizes of a witness, and how each node shrinks."""

    def __init__(self, nodes: Sequence[ir.Node], dependencies: Dependencies, least: Rule) -> None:
        self.nodes, self.dependencies = nodes, dependencies
        self.sizes = SizeMap()
        self.shrunk = {node: shrink(self._operands(node), self.sizes) for node in nodes}
        if least != Rule():
            for key in list(self.sizes.rules):
                self.sizes.require(key, least)
        self.sizes.solve()
        self.axes: dict[ir.Value, list[Expression | None]] = {}
        self.elements: dict[ir.Value, list[Expression]] = {}
        for node, shrunk in self.shrunk.items():
            for index, value in enumerate(node.inputs):
                if value is not None:
                    self.axes.setdefault(value, shrunk.axes[index])
                    if index in shrunk.elements:
                        self.elements.setdefault(value, shrunk.elements[index])

    def _operands(self, node: ir.Node) -> Operands:
        constants = self.dependencies.constants
        shapes: list[tuple[int, ...] | None] = [
            tuple(constants[each].shape.numpy()) if each in constants else self._static(each) for each in node.inputs
        ]
        results = [self._static(each) for each in node.outputs]
        known = {index: constants[each] for index, each in enumerate(node.inputs) if each in constants}
        return Operands(node, shapes, results, known, kinds=len(self.nodes) == 1)

    def _static(self, value: ir.Value | None) -> tuple[int, ...] | None:
        shape = self.dependencies.scope.static_shape(value)
        return None if shape is None else tuple(shape)

    def shape(self, value: ir.Value, real: Sequence[int]) -> list[int]:
        """The shape of an input or a constant in the witness."""
        axes = self.axes.get(value)
        if axes is None:  # captured by a subgraph
            return [self.sizes["", size] for size in real]
        return [size if axis is None else self.sizes.evaluate(axis) for axis, size in zip(axes, real, strict=True)]


class _Copy:
    """A model with the nodes of a probe, for smaller sizes."""

    def __init__(self, probe: Probe, plan: _Plan) -> None:
        self._plan, self._probe = plan, probe
        self._values: dict[ir.Value, ir.Value] = {}
        dependencies, scope = plan.dependencies, probe.scope
        inputs = [self._input(value, scope) for value in dependencies.inputs]
        constants = [self._constant(value, tensor) for value, tensor in dependencies.constants.items()]
        nodes = [self._node(node) for node in plan.nodes]
        outputs = [self._values[value] for value in probe.outputs]
        graph = ir.Graph(
            inputs,
            outputs,
            nodes=nodes,
            initializers=constants,
            opset_imports=dict(scope.opset_imports),
            name="witness",
        )
        model = ir.Model(
            graph, ir_version=max(scope.model.ir_version, 4), functions=list(scope.model.functions.values())
        )
        self._scope = Scope(model, graph)
        self._infer(nodes)

    def probe(self) -> Probe:
        """The nodes as a probe of this model."""
        nodes = [self._values[node.outputs[0]].producer() for node in self._probe.nodes]
        outputs = [self._values[value] for value in self._probe.outputs]
        return Probe([node for node in nodes if node is not None], self._scope, outputs)

    def _named(self, value: ir.Value) -> ir.Value:
        new = self._values[value] = ir.Value(name=f"v{len(self._values)}", type=value.type)
        return new

    def _input(self, value: ir.Value, scope: Scope) -> ir.Value:
        new = self._named(value)
        new.shape = ir.Shape(self._plan.shape(value, scope.static_shape(value) or ()))
        return new

    def _constant(self, value: ir.Value, tensor: ir.TensorProtocol) -> ir.Value:
        new = self._named(value)
        shape = self._plan.shape(value, tensor.shape.numpy())
        small = sampled(tensor, shape)
        elements = self._plan.elements.get(value)
        if elements is not None:
            array = np.array([self._plan.sizes.evaluate(each) for each in elements], tensor.dtype.numpy())
            small = ir.Tensor(array.reshape(shape), dtype=tensor.dtype)
        new.type, new.shape, new.const_value = ir.TensorType(tensor.dtype), ir.Shape(shape), small
        return new

    def _node(self, node: ir.Node) -> ir.Node:
        inputs = [None if value is None else self._values[value] for value in node.inputs]
        outputs = [self._named(value) for value in node.outputs]
        for old, new in zip(node.outputs, outputs, strict=True):
            new.name = new.name if old.name else ""
        attributes = [self._attribute(each, self._plan.shrunk[node]) for each in node.attributes.values()]
        return ir.Node(
            node.domain, node.op_type, inputs, attributes, overload=node.overload, outputs=outputs, name=node.name
        )

    def _attribute(self, attribute: ir.Attr, shrunk: Shrinking) -> ir.Attr:
        elements = shrunk.attributes.get(attribute.name)
        if elements is not None:
            small = [self._plan.sizes.evaluate(each) for each in elements]
            if attribute.type == ir.AttributeType.INT:
                return ir.AttrInt64(attribute.name, small[0])
            return ir.AttrInt64s(attribute.name, small)
        return attribute

    def _infer(self, nodes: Sequence[ir.Node]) -> None:
        if len(nodes) == 1:
            inference.infer_node(nodes[0], self._scope)
        else:
            inference.infer(self._scope.model, declared=False)


def sampled(tensor: ir.TensorProtocol, shape: Sequence[int]) -> ir.TensorProtocol:
    """Elements of a tensor at even distances along each axis; the tensor itself if it has that shape."""
    if list(shape) == list(tensor.shape.numpy()):
        return tensor
    places = [np.arange(small) * size // small for small, size in zip(shape, tensor.shape.numpy(), strict=True)]
    return ir.Tensor(np.ascontiguousarray(tensor.numpy()[np.ix_(*places)]), dtype=tensor.dtype)


def _difference(probe: Probe, small: Probe, plan: _Plan) -> str:
    """How a witness differs from what it stands for; empty if it does not."""
    for real, own in zip(probe.outputs, small.outputs, strict=True):
        before, after = probe.shape(real), small.shape(own)
        if before is None:
            continue
        if after is None or len(before) != len(after):
            return f"the shape of {real.name} is not known for smaller sizes"
        for size, less in zip(before, after, strict=True):
            if (size is None) != (less is None) or (size is not None and less is not None and not _alike(size, less)):
                return f"{real.name} of {list(before)} would become {list(after)}"
    return ""


def _alike(size: int, small: int) -> bool:
    return small <= size and (size > 1) == (small > 1) and (size > 0) == (small > 0)
