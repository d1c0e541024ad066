"""The form of a node that ONNX Runtime's MIGraphX provider leaves to the CPU, whatever its operator.

    y = Op(x, w)   →   y = at(Reshape(Op(at(x), w), at([0, 0, …])))     at(v) = SequenceAt(SequenceConstruct(v), 0)

The provider claims nodes by operator and element type, in runs between nodes that it does not claim, in ONNX Runtime's
order of nodes; it never claims sequences. So the node and its Reshape are a run of their own. The provider drops a run
with a Reshape whose shape is computed outside of it. A shape of zeros keeps all sizes, so the Reshape changes nothing,
and no optimization of ONNX Runtime folds sequences. What is constant stays an operand as it is, except the shape of a
Reshape, which needs no other: the first Reshape of a run decides. Sequences have no elements of 4 bits, of bfloat16 and
of float8: without one, the nodes next to a hidden node may fall to the CPU, too.

Nodes in subgraphs are offered to the provider first, by themselves: those of a hidden node are hidden, too.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

import numpy as np
import onnx_ir as ir

from passes.graphs.scopes import Scope
from passes.graphs.tensors import constant_of
from passes.graphs.traversal import captures, subgraphs

LEAST_OPSET = 11
"""The first opset with sequences."""
_NUMERIC = "bool int8 int16 int32 int64 uint8 uint16 uint32 uint64 float16 float32 float64"
_ELEMENTS = {*(ir.DataType.from_numpy(np.dtype(name)) for name in _NUMERIC.split())}
"""The types of tensors that sequences have."""
HIDDEN = "onnx_bridge.hidden"
"""The key in the metadata of the nodes of this form: the name of the node that they hide."""


def hide(node: ir.Node, scope: Scope) -> None:
    """Bring a node, and those of its subgraphs, into the form that the provider leaves to the CPU.

    Args:
        node: a node of a graph, not hidden yet.
        scope: the scope of the graph.
    """
    for graph in subgraphs(node):
        for inner in list(graph):
            hide(inner, scope)
    if constant_of(node) is not None or not all(map(is_tensor, (*filter(None, node.inputs), *node.outputs))):
        return
    given = [value for value in dict.fromkeys(node.inputs) if value is not None and _can_be_element(value)]
    computed = [value for value in given if node.op_type == "Reshape" or not _is_constant(value, scope)]
    for value in computed or given[:1]:
        hidden = _Form(node, scope).sequence(value, before=True)
        for index, operand in enumerate(node.inputs):
            if operand is value:
                node.replace_input_with(index, hidden)
    for value in [value for value in captures(node) if _can_be_element(value) and not _is_constant(value, scope)]:
        hidden = _Form(node, scope).sequence(value, before=True)
        for graph in subgraphs(node):
            _replace_within(graph, value, hidden)
    for value in [value for value in node.outputs if value.name and is_tensor(value)]:
        _hide_output(value, node, scope)


def shape_scalar(value: ir.Value, users: Collection[ir.Node], scope: Scope) -> None:
    """Let a scalar leave the provider as (1,), the shape that it gives to scalars, and shape it again on the CPU.

    Args:
        value: a scalar that a node of the provider computes.
        users: the nodes on the CPU that take it; outputs of the graph do, too.
        scope: the scope of the graph.
    """
    node = value.producer()
    assert node is not None
    form = _Form(node, scope)
    longer = form.add("Reshape", [value, form.constant(np.array([1], np.int64))], like=value)
    longer.shape = ir.Shape([1])
    scalar = form.add("Reshape", [longer, form.constant(np.array([], np.int64))], like=value)
    _replace(value, scalar, [(user, index) for user, index in value.uses() if user in users], scope)
    shaping = scalar.producer()
    assert shaping is not None
    hide(shaping, scope)


def _replace(value: ir.Value, result: ir.Value, uses: Iterable[tuple[ir.Node, int]], scope: Scope) -> None:
    """Let ``result`` be what ``value`` was for some nodes, and for outputs of the graph, with its name then."""
    for user, index in uses:
        user.replace_input_with(index, result)
    producer = value.producer()
    assert producer is not None and producer.graph is not None
    if value.is_graph_output():
        for index, output in enumerate(producer.graph.outputs):
            if output is value:
                producer.graph.outputs[index] = result
        result.name, value.name = value.name, scope.names.value(f"{value.name}_visible")
        result.metadata_props.update(value.metadata_props)


def _hide_output(value: ir.Value, node: ir.Node, scope: Scope) -> None:
    if not value.uses() and not value.is_graph_output():
        return
    uses = list(value.uses())
    form = _Form(node, scope)
    shaped = value
    if value.shape is not None and _can_be_element(value) and node.op_type != "Reshape":
        zeros = form.constant(np.zeros(len(value.shape), np.int64))
        shape = form.sequence(zeros)  # after the node: of two operands, ONNX Runtime orders the later one first
        shaped = form.add("Reshape", [value, shape], like=value)
    result = form.sequence(shaped, like=value) if _can_be_element(value) else shaped
    if result is value:
        return
    _replace(value, result, uses, scope)


class _Form:
    """Nodes around a node: some before it, the others after it, in the order in which they are added."""

    def __init__(self, node: ir.Node, scope: Scope) -> None:
        self._node, self._scope, self._last = node, scope, node

    def sequence(self, value: ir.Value, *, before: bool = False, like: ir.Value | None = None) -> ir.Value:
        """Return a value after it was an element of a sequence."""
        like = like or value
        made = self.add("SequenceConstruct", [value], before=before)
        made.type = ir.SequenceType(ir.TensorType(like.dtype or ir.DataType.UNDEFINED))
        zero = self.constant(np.array(0, np.int64))
        return self.add("SequenceAt", [made, zero], like=like, before=before)

    def constant(self, array: np.ndarray[Any, np.dtype[Any]]) -> ir.Value:
        tensor = ir.tensor(array)
        value = self.add("Constant", [], attributes=[ir.AttrTensor("value", tensor)], before=True)
        value.const_value, value.type, value.shape = tensor, ir.TensorType(tensor.dtype), ir.Shape(array.shape)
        return value

    def add(
        self,
        op_type: str,
        inputs: list[ir.Value],
        *,
        attributes: Iterable[ir.Attr] = (),
        like: ir.Value | None = None,
        before: bool = False,
    ) -> ir.Value:
        """Add a node, and return its output, with the type and shape of another value."""
        names = self._scope.names
        result = ir.Value(name=names.value(f"{self._node.name}_hidden"))
        if like is not None:
            result.type, result.shape = like.type, like.shape
        made = ir.Node("", op_type, inputs, list(attributes), outputs=[result], name=names.node(op_type))
        made.metadata_props[HIDDEN] = str(self._node.name)
        graph = self._node.graph
        assert graph is not None
        if before:
            graph.insert_before(self._node, made)
        else:
            graph.insert_after(self._last, made)
            self._last = made
        return result


def _replace_within(graph: ir.Graph, old: ir.Value, new: ir.Value) -> None:
    for node in graph:
        for index, operand in enumerate(node.inputs):
            if operand is old:
                node.replace_input_with(index, new)
        for inner in subgraphs(node):
            _replace_within(inner, old, new)
    for index, output in enumerate(graph.outputs):
        if output is old:
            graph.outputs[index] = new


def is_tensor(value: ir.Value) -> bool:
    """Return whether a value is a tensor of numbers; the provider claims nodes with such values alone."""
    return isinstance(value.type, ir.TensorType) and value.dtype not in (None, ir.DataType.STRING)


def _can_be_element(value: ir.Value) -> bool:
    """Return whether a sequence can have a value as an element."""
    return is_tensor(value) and value.dtype in _ELEMENTS


def _is_constant(value: ir.Value, scope: Scope) -> bool:
    return value.is_initializer() or scope.constant(value) is not None
