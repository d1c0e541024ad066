"""Building the replacement of a node: a proposal outside of the graph, until it is committed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import onnx_ir as ir

from passes.core.errors import PassError
from passes.graphs import lineage
from passes.graphs.matching import producer
from passes.graphs.replacement import can_take_name, detach_nodes, remove_nodes, replace_value, take_name
from passes.graphs.scopes import Scope
from passes.graphs.tensors import constant_of, ints
from passes.graphs.traversal import is_used
from passes.rewriting.base import NotApplicable, Rewrite
from passes.rewriting.expressions import Array, Attribute, Expressions
from passes.shapes.inference import infer_node

_REDUCTIONS = "L1 L2 LogSum LogSumExp Max Mean Min Prod SumSquare"
_ATTRIBUTES: Mapping[str, tuple[int, Mapping[int, str]]] = {
    "Clip": (11, {1: "min", 2: "max"}),
    "Pad": (11, {1: "pads", 2: "value"}),
    "Slice": (10, {1: "starts", 2: "ends", 3: "axes"}),
    "Split": (13, {1: "split"}),
    "Squeeze": (13, {1: "axes"}),
    "TopK": (10, {1: "k"}),
    "Unsqueeze": (13, {1: "axes"}),
    "ReduceSum": (13, {1: "axes"}),
    **{f"Reduce{name}": (18, {1: "axes"}) for name in _REDUCTIONS.split()},
}
"""Operators with inputs that were attributes before an opset: that opset, and the attributes by input index."""
_SCALARS = {"min", "max", "value", "k"}


class Edit(Expressions):
    """A rule's view of its node, and the builder of the replacement, outside of the graph.

    Args:
        scope: the main graph or function that contains the node, with opset, constants, shapes and dtypes.

    Attributes:
        root: the node whose outputs are replaced; a rule that is called with an inner node of what it replaces sets it.
        absorbed: nodes before ``root`` that the replacement covers as well.
        nodes: the new nodes, in topological order.
    """

    def __init__(self, scope: Scope, node: ir.Node) -> None:
        self.scope = scope
        self.root = node
        self.absorbed: list[ir.Node] = []
        self.nodes: list[ir.Node] = []
        self.constants: list[ir.Value] = []

    def producer(self, node: ir.Node, index: int, *operators: str, domain: str = "") -> ir.Node | None:
        """Return the node that computes input ``index`` of ``node``, if it is one of ``operators`` of ``domain``.

        None for a node of another graph, if a function of the model redefines the operator, and if the caller of a
        function supplies attributes of it.
        """
        value = node.inputs[index] if index < len(node.inputs) else None
        return producer(value, node.graph, self.scope, *operators, domain=domain)

    def input(self, node: ir.Node, index: int = 0) -> ir.Value:
        """Return an input that is always given."""
        value = node.inputs[index]
        assert value is not None
        return value

    def shape(self, node: ir.Node, index: int = 0) -> tuple[int, ...]:
        """Return the shape of an input that ``needs_shape`` lists."""
        shape = self.scope.static_shape(node.inputs[index])
        if shape is None:
            raise PassError(f"input {index} of {node.op_type} has no static shape: needs_shape must list it")
        return shape

    def dtype(self, node: ir.Node, index: int = 0) -> ir.DataType:
        """Return the dtype of an input that ``needs_dtype`` lists."""
        dtype = self.scope.dtype(node.inputs[index])
        if dtype is None:
            raise PassError(f"input {index} of {node.op_type} has no known dtype: needs_dtype must list it")
        return dtype

    def integers(self, node: ir.Node, index: int, what: str) -> list[int] | None:
        """Return the elements of an optional input; None if it is omitted.

        Raises NotApplicable if the input, which the reason calls ``what``, is not constant.
        """
        value = node.inputs[index] if index < len(node.inputs) else None
        elements = ints(self.scope.constant(value))
        if value is not None and elements is None:
            raise NotApplicable(not_constant(value, what))
        return elements

    def absorb(self, *nodes: ir.Node) -> None:
        """Let the replacement cover ``nodes`` as well; the driver removes those that nothing else uses."""
        self.absorbed += nodes

    def node(
        self,
        op_type: str,
        inputs: Sequence[ir.Value | None],
        attributes: Mapping[str, Attribute] | None = None,
        *,
        domain: str = "",
        outputs: int = 1,
    ) -> ir.Node:
        """Return a new node, with the types and shapes of its outputs inferred.

        Operators are written in their newest form. If an input (axes, pads, split, …) is still an attribute in the
        model's opset, the constant given for it becomes that attribute.

        Args:
            inputs: values of the graph or of this edit; None for optional inputs that are not given.
            attributes: by name; empty lists are not possible, since their type is unknown.

        Raises:
            PassError: an input that must be an attribute in the model's opset is not constant.
        """
        given: dict[str, Attribute] = dict(attributes or {})
        since, moved = _ATTRIBUTES.get(op_type, (0, {}))
        if domain == "" and self.scope.opset() < since:
            given |= self._as_attributes(op_type, moved, inputs)
            inputs = [value for index, value in enumerate(inputs) if index not in moved]
        node = ir.Node(
            domain,
            op_type,
            inputs,
            ir.convenience.convert_attributes(given),
            num_outputs=outputs,
            name=self.scope.names.node(f"{self.root.name}/{op_type}"),
        )
        for index, value in enumerate(node.outputs):
            value.name = self.scope.names.value(f"{node.name}_output_{index}")
        infer_node(node, self.scope)
        self.nodes.append(node)
        return node

    def constant(self, array: Array | np.generic | ir.TensorProtocol, name: str | None = None) -> ir.Value:
        """Return a new constant: an initializer in a graph, a Constant node in a function.

        Args:
            array: an array of any dtype and shape that ONNX has, or a tensor.
            name: its name, made unique; default: derived from the node.
        """
        tensor = ir.Tensor(np.asarray(array)) if isinstance(array, (np.ndarray, np.generic)) else array
        label = self.scope.names.value(name or f"{self.root.name}/constant")
        kind, shape = ir.TensorType(tensor.dtype), ir.Shape(tensor.shape.numpy())
        if self.scope.function is None:
            value = ir.Value(name=label, type=kind, shape=shape, const_value=tensor)
            self.constants.append(value)
            return value
        value = ir.Value(name=label, type=kind, shape=shape)
        attribute = ir.AttrTensor("value", tensor)
        self.nodes.append(ir.Node("", "Constant", [], [attribute], outputs=[value], name=self.scope.names.node(label)))
        return value

    def reshape_or_fold(self, x: ir.Value, shape: Sequence[int]) -> ir.Value:
        """Reshape ``x`` to a static shape; the reshape of a constant is a constant."""
        tensor = x.const_value if x in self.constants else self.scope.constant(x)
        return self.reshape(x, shape) if tensor is None else self.constant(tensor.numpy().reshape(shape))

    def _as_attributes(
        self, op_type: str, moved: Mapping[int, str], inputs: Sequence[ir.Value | None]
    ) -> dict[str, Attribute]:
        converted: dict[str, Attribute] = {}
        for index, name in moved.items():
            value = inputs[index] if index < len(inputs) else None
            if value is None:
                continue
            tensor = value.const_value if value in self.constants else self.scope.constant(value)
            producer = value.producer()
            if tensor is None and producer is not None:
                tensor = constant_of(producer)
            if tensor is None:
                raise PassError(
                    f"{op_type} takes {name} as an attribute before opset {_ATTRIBUTES[op_type][0]}, so it must be "
                    "constant",
                    where=self.root.name,
                )
            elements = tensor.numpy()
            converted[name] = elements.item() if name in _SCALARS else elements.ravel().tolist()
        return converted


def not_constant(value: ir.Value, what: str) -> str:
    """Return the reason for skipping a node with an operand that is not constant, and what to do about it."""
    if value.is_graph_input():
        return f"{what} is not constant: freeze it with --freeze {value.name}=VALUE"
    return f"{what} is not constant: {value.name} is computed at run time"


@dataclass(eq=False)
class Proposal:
    """The parts of an `Edit` that is complete but not yet in the graph.

    Attributes:
        node: the `Edit.root`.
        outputs: the replacement of each of its outputs; None for outputs that nothing uses.
    """

    scope: Scope
    node: ir.Node
    outputs: Sequence[ir.Value | None]
    nodes: list[ir.Node] = field(default_factory=list)
    constants: list[ir.Value] = field(default_factory=list)
    absorbed: Sequence[ir.Node] = ()

    def commit(self, maker: str, within: Proposal | None = None) -> Rewrite:
        """Insert the replacement into the graph and remove the node.

        Args:
            maker: the name of the pass, which is recorded in the new nodes.
            within: the proposal that the graph is a part of, if it is not yet in the model.

        Raises:
            PassError: an output that is used has no replacement.
        """
        graph = self.node.graph
        assert graph is not None
        # an output that is left out has an empty name, which its replacement must not take
        self.outputs = [new if old.name else None for old, new in zip(self.node.outputs, self.outputs, strict=True)]
        pairs = list(zip(self.node.outputs, self.outputs, strict=True))
        lost = next((old for old, new in pairs if new is None and is_used(old)), None)
        if lost is not None:
            self.discard()
            raise PassError(
                f"{maker} has no replacement for the output {lost.name}, which is used", where=self.node.name
            )
        self.prune()
        old_format = self.scope.model.ir_version < 4  # in which a subgraph has no initializers
        home = self.scope.graph if old_format else graph
        for value in self.constants:
            assert value.const_value is not None
            if value.uses() or value in self.outputs:
                if old_format and within is not None:
                    within.constants.append(value)
                    continue
                home.initializers.add(value)
                if old_format:
                    home.inputs.append(value)
        graph.insert_before(self.node, self.nodes)
        new_values = {*self.constants, *(value for node in self.nodes for value in node.outputs)}
        for old, new in pairs:
            if new is not None:
                self._replace(old, new, new_values, graph)
        removed = self._remove(graph)
        lineage.stamp(self.nodes, maker, removed or [self.node])
        return Rewrite(tuple(node.name or "" for node in removed), tuple(node.name or "" for node in self.nodes))

    def substitute(self, node: ir.Node, inner: Proposal) -> None:
        """Replace one of the new nodes by another proposal for it."""
        for old, new in zip(node.outputs, inner.outputs, strict=True):
            if new is not None:
                old.replace_all_uses_with(new)
                self.outputs = [new if value is old else value for value in self.outputs]
        index = self.nodes.index(node)
        self.nodes[index : index + 1] = inner.nodes
        self.constants += inner.constants
        detach_nodes([node])
        self.prune()

    def discard(self) -> None:
        """Detach the replacement, so that the values of the graph have no uses in it."""
        detach_nodes(self.nodes)
        self.nodes = []

    def prune(self) -> None:
        """Remove new nodes that do not contribute to the outputs."""
        kept: list[ir.Node] = []
        for node in reversed(self.nodes):
            if any(value.uses() or value in self.outputs for value in node.outputs):
                kept.append(node)
            else:
                detach_nodes([node])
        self.nodes = kept[::-1]

    def _replace(self, old: ir.Value, new: ir.Value, new_values: set[ir.Value], graph: ir.Graph) -> None:
        if old.is_graph_output() and not can_take_name(new, graph):
            identity = ir.Node("", "Identity", [new], name=self.scope.names.node(f"{self.node.name}/Identity"))
            graph.insert_before(self.node, identity)
            self.nodes.append(identity)
            new = identity.outputs[0]
            new_values.add(new)
        if new in new_values:
            take_name(new, old)
            new_values.discard(new)
        replace_value(old, new)

    def _remove(self, graph: ir.Graph) -> list[ir.Node]:
        removed = [self.node]
        remove_nodes(graph, removed)
        pending = list(self.absorbed)
        while unused := next((node for node in pending if node.graph is not None and _is_unused(node)), None):
            pending.remove(unused)
            removed.append(unused)
            remove_nodes(graph, [unused])
        return removed


def _is_unused(node: ir.Node) -> bool:
    return not any(map(is_used, node.outputs))
