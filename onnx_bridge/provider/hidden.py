"""The form of nodes that ONNX Runtime's MIGraphX provider leaves to the CPU, whatever their operators.

    y = Op(x, w)   →   y = Squeeze(Scan(e, Unsqueeze(x, 0)) { Op(x, w), 6 × SequenceAt(SequenceConstruct(e), 0) }, 0)

The provider claims nodes by operator and element type, never a Scan, and nothing at all of a graph in which it does not
claim more than ten nodes. So the body of the Scan, which runs once, has a dozen nodes with sequences beside the hidden
ones; a graph within these, as of If and Loop, is offered to the provider as well, and has its own dozen. Branches may
be left open: then the provider runs them, and the CPU only chooses. The body of a Loop may not: ONNX Runtime forgets
the sizes of its inputs, so that it would be compiled in a run, and not kept. What the nodes take is an input of the
Scan: the provider crashes on values of its own that a body captures. Around the Scan nothing changes: it counts as a
single node, whatever it holds.

The provider returns a scalar as (1,). That is what an input of a Scan has to be, within which it is a scalar again; so
the scalars that a model returns go through a Scan as well.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np
import onnx_ir as ir

from onnx_bridge.core.values import Array
from passes.graphs.scopes import Scope
from passes.graphs.traversal import operands_of, subgraphs

LEAST_OPSET = 11
"""The first opset with sequences."""
HIDDEN = "onnx_bridge.hidden"
"""The key in the metadata of the nodes of this form, except the hidden ones."""
_PACKED = ("INT2", "UINT2", "INT4", "UINT4", "FLOAT4E2M1")
_PAIRS = 6
"""The number of pairs of nodes with sequences: twelve nodes are more than ten."""


def is_tensor(value: ir.Value) -> bool:
    """Return whether a value is a tensor of numbers; the provider claims nodes with such values alone."""
    return isinstance(value.type, ir.TensorType) and value.dtype not in (None, ir.DataType.STRING)


def hide(nodes: Sequence[ir.Node], scope: Scope, is_open: Collection[str] = ()) -> bool:
    """Bring nodes of the main graph into the form that the provider leaves to the CPU, as one node.

    Args:
        nodes: in topological order; what lies between them is among them.
        scope: the scope of the main graph.
        is_open: the names of nodes within whose graphs nothing is hidden.

    Returns:
        Whether it was possible: what enters and leaves a Scan are tensors, and those that leave it have a known rank.
    """
    inside, graph = set(nodes), scope.graph
    taken = dict.fromkeys(value for node in nodes for value in operands_of(node) if value.producer() not in inside)
    given = [value for node in nodes for value in node.outputs if _leaves(value, inside)]
    tensors = all(isinstance(value.type, ir.TensorType) for value in (*taken, *given))
    if not tensors or not given or any(value.shape is None or _is_packed(value) for value in given):
        return False
    states = [value for value in given if not len(value.shape or ()) or not _has_kernels(value)]
    stacked = [value for value in given if value not in states]
    if not all(value.shape is not None and value.shape.is_static() and is_tensor(value) for value in states):
        return False
    for node in nodes:
        for inner in () if node.name in is_open else subgraphs(node):
            _fill(inner, scope)
    made = _Made(scope)
    computed = [value for value in taken if scope.constant(value) is None and not value.is_initializer()]
    computed = [value for value in computed if _has_kernels(value)]
    inputs = [made.value(value.type, value.shape) for value in computed]
    for value, element in zip(computed, inputs, strict=True):
        for node in nodes:
            _replace_within(node, value, element)
    starts = [made.zeros(value) for value in states]
    results = [made.value(value.type, value.shape) for value in states]
    for value, result in zip(states, results, strict=True):
        _replace(value, result, inside, scope)
    after, ends = [], []
    for value in stacked:
        ends.append(made.value(value.type, ir.Shape([1, *(value.shape or ())])))
        after.append(made.squeeze(ends[-1], value))
        _replace(value, after[-1].outputs[0], inside, scope)
    graph.remove(nodes)
    start = made.value(ir.TensorType(ir.DataType.FLOAT), ir.Shape([1]))
    chain, end = made.chain(start)
    unused = [made.value(value.type, value.shape) for value in states]
    body = ir.Graph([*unused, start, *inputs], [*states, end, *stacked], nodes=[*nodes, *chain], name="hidden")
    attributes = [ir.AttrGraph("body", body), ir.AttrInt64("num_scan_inputs", 1 + len(inputs))]
    outputs = [*results, made.value(ir.TensorType(ir.DataType.FLOAT), ir.Shape([1, 1])), *ends]
    given_to = [*starts, made.constant(np.zeros([1, 1], np.float32)), *map(made.unsqueezed, computed)]
    scan = made.node("Scan", given_to, attributes, outputs)
    graph.extend([*made.before, scan, *after])
    graph.sort()
    return True


def shape_scalars(names: Collection[str], scope: Scope) -> None:
    """Shape the scalars that nodes of some names compute for the outputs of the model: all of them by one node."""
    made, squeezing = _Made(scope), []
    for node in list(scope.graph):
        for value in node.outputs if node.name in names else ():
            if value.is_graph_output() and _is_computed_scalar(value, scope):
                squeezed = made.squeeze(made.unsqueezed(value), value)
                _replace(value, squeezed.outputs[0], {squeezed, *made.all}, scope, outputs_only=True)
                squeezing.append(squeezed)
    scope.graph.extend([*made.before, *squeezing])
    if squeezing:
        hide(squeezing, scope)


def _is_computed_scalar(value: ir.Value, scope: Scope) -> bool:
    shaped = value.shape is not None and not len(value.shape) and is_tensor(value)
    return shaped and value.producer() is not None and scope.constant(value) is None


def _fill(graph: ir.Graph, scope: Scope) -> None:
    """Give a graph within a hidden node, and all within it, a dozen nodes that the provider does not claim."""
    for node in list(graph):
        for inner in subgraphs(node):
            _fill(inner, scope)
    outputs = [value for value in graph.outputs if isinstance(value.type, ir.TensorType)]
    outputs.sort(key=lambda value: len(value.shape) if value.shape is not None else 99)
    if not outputs:
        return
    value, made = outputs[0], _Made(scope)
    nodes, end = made.chain(value)
    end.type, end.shape = value.type, value.shape
    graph.extend([*made.before, *nodes])
    for index, output in enumerate(graph.outputs):
        if output is value:
            graph.outputs[index] = end


class _Made:
    """New nodes of a scope; those in ``before`` go to the main graph, before the others."""

    def __init__(self, scope: Scope) -> None:
        self._scope = scope
        self.before: list[ir.Node] = []
        self.all: list[ir.Node] = []

    def value(self, kind: ir.TypeProtocol | None, shape: ir.Shape | None) -> ir.Value:
        return ir.Value(name=self._scope.names.value("hidden"), type=kind, shape=shape)

    def node(
        self, op_type: str, inputs: Sequence[ir.Value], attributes: Sequence[ir.Attr], outputs: Sequence[ir.Value]
    ) -> ir.Node:
        name = self._scope.names.node(f"hidden_{op_type}")
        made = ir.Node("", op_type, inputs, attributes, outputs=outputs, name=name)
        made.metadata_props[HIDDEN] = "1"
        self.all.append(made)
        return made

    def constant(self, array: Array, dtype: ir.DataType | None = None) -> ir.Value:
        tensor = ir.tensor(array, dtype=dtype)
        value = self.value(ir.TensorType(tensor.dtype), ir.Shape(array.shape))
        value.const_value = tensor
        self.before.append(self.node("Constant", [], [ir.AttrTensor("value", tensor)], [value]))
        return value

    def zeros(self, value: ir.Value) -> ir.Value:
        """Return a constant of the type and the static shape of a value."""
        assert value.dtype is not None and value.shape is not None
        array = np.zeros(value.shape.numpy(), value.dtype.numpy())
        return self.constant(array, value.dtype)

    def chain(self, value: ir.Value) -> tuple[list[ir.Node], ir.Value]:
        """Return nodes that pass a value through sequences, and its end."""
        zero, nodes = self.constant(np.array(0, np.int64)), []
        for _ in range(_PAIRS):
            sequence = self.value(ir.SequenceType(ir.TensorType(value.dtype or ir.DataType.FLOAT)), None)
            nodes.append(self.node("SequenceConstruct", [value], [], [sequence]))
            value = self.value(value.type, value.shape)
            nodes.append(self.node("SequenceAt", [sequence, zero], [], [value]))
        return nodes, value

    def unsqueezed(self, value: ir.Value) -> ir.Value:
        """Return a value with a first dimension of 1; a scalar may be of the shape (1,) already."""
        longer = self.value(value.type, None if value.shape is None else ir.Shape([1, *value.shape]))
        if value.shape is not None and not len(value.shape):
            self.before.append(self.node("Reshape", [value, self.constant(np.ones(1, np.int64))], [], [longer]))
            return longer
        self.before.append(self._first_axis("Unsqueeze", value, longer))
        return longer

    def squeeze(self, value: ir.Value, like: ir.Value) -> ir.Node:
        """Return a node that removes the first dimension; the result is like another value."""
        return self._first_axis("Squeeze", value, self.value(like.type, like.shape))

    def _first_axis(self, op_type: str, value: ir.Value, result: ir.Value) -> ir.Node:
        if self._scope.opset() >= 13:
            return self.node(op_type, [value, self.constant(np.zeros(1, np.int64))], [], [result])
        return self.node(op_type, [value], [ir.AttrInt64s("axes", [0])], [result])


def claim_nothing(scope: Scope) -> bool:
    """Let the provider claim nothing, by a dozen nodes a graph; return whether the main one has a value for them."""
    for node in list(scope.graph):
        for inner in subgraphs(node):
            _fill(inner, scope)
    values = [*scope.graph.inputs, *scope.graph.outputs]
    suited = [value for value in values if is_tensor(value) and _has_kernels(value) and not value.is_initializer()]
    for value in suited[:1]:
        made = _Made(scope)
        nodes, end = made.chain(value)
        _replace(value, end, {*nodes, *made.before}, scope)
        scope.graph.extend([*made.before, *nodes])
        scope.graph.sort()
    return bool(suited)


def _is_packed(value: ir.Value) -> bool:
    """Return whether elements take less than a byte: no Scan of ONNX Runtime returns them."""
    return value.dtype is not None and value.dtype.name in _PACKED


def _has_kernels(value: ir.Value) -> bool:
    """Return whether ONNX Runtime's CPU can squeeze a value: it cannot with types that numpy does not know."""
    return value.dtype is ir.DataType.STRING or (value.dtype is not None and hasattr(np, value.dtype.numpy().name))


def _leaves(value: ir.Value, inside: Collection[ir.Node]) -> bool:
    """Return whether a value is used by others than some nodes and those within them."""
    if not value.name:
        return False
    within = {inner for node in inside for graph in subgraphs(node) for inner in graph.all_nodes()}
    return value.is_graph_output() or any(user not in inside and user not in within for user, _ in value.uses())


def _replace(
    old: ir.Value, new: ir.Value, inside: Collection[ir.Node], scope: Scope, *, outputs_only: bool = False
) -> None:
    """Replace a value outside of some nodes, and among the outputs of the main graph, whose name it takes."""
    within = {inner for node in inside for graph in subgraphs(node) for inner in graph.all_nodes()}
    for user, index in () if outputs_only else list(old.uses()):
        if user not in inside and user not in within:
            user.replace_input_with(index, new)
    for index, output in enumerate(scope.graph.outputs):
        if output is old:
            scope.graph.outputs[index] = new
            new.metadata_props.update(old.metadata_props)
            new.name, old.name = old.name, scope.names.value(f"{old.name}_hidden")


def _replace_within(node: ir.Node, old: ir.Value, new: ir.Value) -> None:
    """Replace an operand of a node, and of the nodes within it."""
    for index, operand in enumerate(node.inputs):
        if operand is old:
            node.replace_input_with(index, new)
    for graph in subgraphs(node):
        for inner in graph:
            _replace_within(inner, old, new)
        for index, output in enumerate(graph.outputs):
            if output is old:
                graph.outputs[index] = new
