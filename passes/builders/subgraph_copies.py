"""Copies of a subgraph with values substituted for its inputs, for unrolling loops and inlining branches.

Nodes that depend on constants only are evaluated while copying, so that an iteration's number, and everything derived
from it, is known when the next iteration is copied. The copies are part of the proposal of their `Edit`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import onnx_ir as ir

from passes.core.text import counted
from passes.evaluation.constant_session import EvaluationError
from passes.evaluation.evaluation import evaluate
from passes.graphs.matching import is_op, is_plain
from passes.graphs.randomness import is_random
from passes.graphs.replacement import detach_nodes, merge_shapes
from passes.graphs.scopes import DISPUTED, Scope
from passes.graphs.tensors import constant_of
from passes.graphs.traversal import captures, graphs_within, has_subgraphs, with_nested
from passes.operators import operators
from passes.rewriting.base import NotApplicable
from passes.rewriting.edit import Edit
from passes.shapes.inference import infer_node
from passes.shapes.skeleton import SMALL

_INDEXED = {
    **dict.fromkeys(("Gather", "GatherElements", "GatherND", "Scatter", "ScatterElements", "ScatterND"), 1),
    "TensorScatter": 2,
}
"""Operators with an input of indices: the position of that input."""
_SIZED = {"Concat", "DequantizeLinear", "GatherElements", "QuantizeLinear", "Reshape", "Split", "Squeeze"}
_OF_ANY_SIZE = operators("bounded") - _SIZED


class Body:
    """A subgraph (`require_copyable`) that is copied, into an edit, in place of the node that it belongs to."""

    def __init__(self, graph: ir.Graph, edit: Edit) -> None:
        self.graph, self.edit = graph, edit
        self._shared: dict[ir.Value, ir.Value] = {}
        self._known: dict[ir.Value, ir.TensorProtocol] = {}
        self._pending: list[ir.Node] = []

    def known(self, value: ir.Value) -> ir.TensorProtocol | None:
        """Return the constant tensor of a value from outside or of a copy; None if it is not constant."""
        tensor = self._known.get(value)
        return tensor if tensor is not None else self.edit.scope.constant(value)

    def constant(self, tensor: np.ndarray | np.generic | ir.TensorProtocol, name: str | None = None) -> ir.Value:
        """Add a constant to the edit that is known to the copies."""
        held = tensor if not isinstance(tensor, (np.ndarray, np.generic)) else ir.Tensor(np.asarray(tensor))
        value = self.edit.constant(held, name)
        self._known[value] = held
        return value

    def copy(self, arguments: Sequence[ir.Value], label: str) -> list[ir.Value]:
        """Add a copy.

        Args:
            arguments: substituted for the inputs of the subgraph.
            label: part of the names of all new nodes and values.

        Returns:
            The values of its outputs, which are new or existing ones.
        """
        new = dict(zip(self.graph.inputs, arguments, strict=True))
        for value in self.graph.initializers.values():
            if value not in new:
                assert value.const_value is not None
                new[value] = self._share(value, value.const_value)
        for node in self.graph:
            tensor = constant_of(node)
            if tensor is not None:
                new[node.outputs[0]] = self._share(node.outputs[0], tensor)
            elif node.op_type == "Identity" and is_plain(node, self.edit.scope) and node.domain == "":
                assert node.inputs[0] is not None
                new[node.outputs[0]] = new.get(node.inputs[0], node.inputs[0])
            else:
                self._add(node, new, label)
        self._evaluate_pending([new.get(value, value) for value in self.graph.outputs], new)
        detach_nodes(self._pending)  # evaluated lazily and never used
        self._pending = []
        return [new.get(value, value) for value in self.graph.outputs]

    def _share(self, value: ir.Value, tensor: ir.TensorProtocol) -> ir.Value:
        """Return the constant of the edit that all copies use for a constant of the subgraph."""
        if value not in self._shared:
            self._shared[value] = self.constant(tensor, f"{self.edit.root.name}/{value.name}")
        return self._shared[value]

    def _add(self, node: ir.Node, new: dict[ir.Value, ir.Value], label: str) -> None:
        names, prefix = self.edit.scope.names, f"{self.edit.root.name}/{label}"
        inputs = _mapped(node.inputs, new)
        computed = self._is_computable(node, inputs)
        if not computed:
            self._evaluate_pending([value for value in (*inputs, *_captured(node, new)) if value is not None], new)
            inputs = _mapped(node.inputs, new)
        copied = ir.Node(
            node.domain,
            node.op_type,
            inputs,
            [self._attribute(attribute, new, prefix) for attribute in node.attributes.values()],
            overload=node.overload,
            num_outputs=len(node.outputs),
            name=names.node(f"{prefix}/{node.name}"),
            doc_string=node.doc_string,
            metadata_props=dict(node.metadata_props),
        )
        for old, value in zip(node.outputs, copied.outputs, strict=True):
            value.name = names.value(f"{prefix}/{old.name}") if old.name else ""
        self._infer(node, copied)
        new.update(zip(node.outputs, copied.outputs, strict=True))
        if is_op(copied, "Shape", "Size") and self._fold_shape(copied, new):
            return
        if computed and not all(_is_small(value, self.edit.scope) for value in copied.outputs):
            self._evaluate_pending([value for value in inputs if value is not None], new)
            for index, given in enumerate(_mapped(inputs, new)):
                copied.replace_input_with(index, given)
            self._infer(node, copied)
            computed = all(_is_small(value, self.edit.scope) for value in copied.outputs)
        (self._pending if computed else self.edit.nodes).append(copied)

    def _infer(self, node: ir.Node, copied: ir.Node) -> None:
        """Set types and shapes of a copied node: inferred, as they may differ by iteration, else the declared ones."""
        infer_node(copied, self.edit.scope)
        for old, value in zip(node.outputs, copied.outputs, strict=True):
            value.type = value.type if value.type is not None else old.type
            if old.shape is not None and DISPUTED not in old.meta:
                sizes = ir.Shape([size if isinstance(size, int) else None for size in old.shape])
                value.shape = merge_shapes(value.shape, sizes)

    def _attribute(self, attribute: ir.Attr, new: Mapping[ir.Value, ir.Value], prefix: str) -> ir.Attr:
        if attribute.is_ref() or attribute.type not in (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS):
            return attribute
        if attribute.type == ir.AttributeType.GRAPHS:
            inner = [self._nested(graph, new, prefix) for graph in attribute.as_graphs()]
            return ir.AttrGraphs(attribute.name, inner)
        return ir.AttrGraph(attribute.name, self._nested(attribute.as_graph(), new, prefix))

    def _nested(self, graph: ir.Graph, new: Mapping[ir.Value, ir.Value], prefix: str) -> ir.Graph:
        """Return a copy of a nested subgraph, with unique names."""
        copy, names = graph.clone(allow_outer_scope_values=True), self.edit.scope.names
        for nested in graphs_within(copy):
            computed = (value for node in nested for value in node.outputs)
            values = [*nested.inputs, *nested.initializers.values(), *computed]
            for value in dict.fromkeys(values):
                value.name = names.value(f"{prefix}/{value.name}") if value.name else value.name
            for node in nested:
                node.name = names.node(f"{prefix}/{node.name}")
                for index, old in enumerate(node.inputs):
                    if old is not None and old in new:
                        node.replace_input_with(index, new[old])
        return copy

    # evaluation

    def _is_computable(self, node: ir.Node, inputs: Sequence[ir.Value | None]) -> bool:
        """Return whether all inputs of a node are small constants, or pending evaluation."""
        scope = self.edit.scope
        if node.domain not in ("", "ai.onnx.ml") or is_random(node, scope) or not is_plain(node, scope):
            return False
        if has_subgraphs(node) or not any(value.name for value in node.outputs):
            return False
        copied = {value for pending in self._pending for value in pending.outputs}
        for value in inputs:
            if value is None or value in copied:
                continue
            tensor = self.known(value)
            if tensor is None or tensor.nbytes > SMALL:
                return False
        return True

    def _fold_shape(self, copied: ir.Node, new: dict[ir.Value, ir.Value]) -> bool:
        """Replace a Shape or Size of a value of static shape by a constant."""
        shape = self.edit.scope.shape(copied.inputs[0])
        if shape is None or not shape.is_static():
            return False
        start, end = (copied.attributes.get_int(name, None) for name in ("start", "end"))
        sizes = np.array(shape.numpy(), np.int64)
        known = np.asarray(np.prod(sizes, dtype=np.int64)) if copied.op_type == "Size" else sizes[start:end]
        self._replace(copied.outputs[0], ir.Tensor(known), new)
        detach_nodes([copied])
        return True

    def _evaluate_pending(self, needed: Sequence[ir.Value], new: dict[ir.Value, ir.Value]) -> None:
        """Evaluate the pending nodes if any of their outputs is in ``needed``."""
        copied = [value for node in self._pending for value in node.outputs if value.name]
        if not set(copied).intersection(needed):
            return
        island, self._pending = self._pending, []
        operands = {value: None for node in island for value in node.inputs if value is not None}
        constants = {value: tensor for value in operands if (tensor := self.known(value)) is not None}
        try:
            tensors = evaluate(island, constants, copied, self.edit.scope)
        except EvaluationError:  # evaluated at run time instead
            self.edit.nodes.extend(island)
            return
        for value, tensor in zip(copied, tensors, strict=True):
            self._replace(value, tensor, new)
        detach_nodes(island)

    def _replace(self, value: ir.Value, tensor: ir.TensorProtocol, new: dict[ir.Value, ir.Value]) -> None:
        """Substitute a constant for a value of the copy."""
        constant = self.constant(tensor, str(value.name))
        for old in [old for old, copied in new.items() if copied is value]:
            new[old] = constant
        new[value] = constant


def require_copyable(graph: ir.Graph, inputs: int, outputs: int) -> None:
    """Check that a subgraph can be copied, and has the required numbers of inputs and outputs."""
    if len(graph.inputs) != inputs or len(graph.outputs) != outputs:
        raise NotApplicable(
            f"the subgraph is not valid: it needs {counted(inputs, 'input')} and {counted(outputs, 'output')}"
        )
    for nested in graphs_within(graph):
        own = {*nested.inputs, *nested.initializers.values()}
        for value in nested.outputs:
            if value not in own and (value.producer() is None or value.graph is not nested):
                raise NotApplicable(f"the subgraph returns {value.name}, which it does not compute")


def speculation_hazard(graph: ir.Graph, scope: Scope) -> str | None:
    """Return why a subgraph must not be executed when its results are not needed; None if it may be."""
    for node in with_nested(graph):
        if node.domain not in ("", "ai.onnx.ml", "com.microsoft") or not is_plain(node, scope):
            return f"{node.op_type} may have unknown side effects"
        if is_random(node, scope):
            return f"{node.op_type} is random"
        if node.op_type != "If" and has_subgraphs(node):
            return f"the subgraph contains {node.op_type}"
        if any(value.type is not None and not isinstance(value.type, ir.TensorType) for value in node.outputs):
            return f"{node.op_type} has an output that is not a tensor"
        if node.op_type in ("Div", "Mod") and scope.constant(node.inputs[1]) is None:
            dtype = scope.dtype(node.inputs[1]) or node.inputs[1].dtype  # type: ignore[union-attr]
            if dtype is None or not dtype.is_floating_point():
                return f"{node.op_type} of integers may divide by zero"
        index = _INDEXED.get(node.op_type)
        if index is not None and scope.constant(node.inputs[index]) is None:
            return f"the indices of {node.op_type} may be out of range"
    return None


def require_fitting(nodes: Iterable[ir.Node], scope: Scope) -> None:
    """Check that no node can fail for sizes that are open: those of a branch may fit only if it is taken."""
    for node in nodes:
        for value in () if node.op_type in _OF_ANY_SIZE else node.inputs:
            if value is not None and scope.constant(value) is None and scope.static_shape(value) is None:
                raise NotApplicable(f"{node.op_type} may not take the sizes of {value.name}, which are open")


def stack(body: Body, values: Sequence[ir.Value], axis: int = 0) -> ir.Value:
    """Stack tensors of one shape along a new axis; the stack of small constants of one shape is a constant."""
    tensors = [body.known(value) for value in values]
    if all(tensor is not None and tensor.nbytes <= SMALL for tensor in tensors):
        arrays = [tensor.numpy() for tensor in tensors if tensor is not None]
        dtype = tensors[0].dtype if tensors[0] is not None else None
        if len({array.shape for array in arrays}) == 1:
            return body.constant(ir.Tensor(np.stack(arrays, axis), dtype=dtype))
    axes = body.constant(np.array([axis]))
    parts = [body.edit.op("Unsqueeze", [value, axes]) for value in values]
    return parts[0] if len(parts) == 1 else body.edit.op("Concat", parts, {"axis": axis})


def empty_stack(body: Body, element: ir.Value, axis: int = 0) -> ir.Value:
    """Return the result of `stack` for no values like ``element``: an empty tensor."""
    shape, dtype = element.shape, element.dtype
    if shape is None or not shape.is_static() or dtype is None or DISPUTED in element.meta:
        raise NotApplicable(f"the loop has no iterations, and the shape of {element.name} is unknown")
    sizes = list(shape.numpy())
    sizes.insert(axis if axis >= 0 else len(sizes) + 1 + axis, 0)
    return body.constant(ir.Tensor(np.zeros(sizes, dtype.numpy()), dtype=dtype))


def to_scalar(value: ir.Value, edit: Edit) -> ir.Value:
    """Reshape a value of one element to rank 0."""
    shape = edit.scope.shape(value)
    if shape is None:
        raise NotApplicable(f"the shape of {value.name} is unknown")
    return edit.squeeze(value, range(len(shape)))


def select(condition: ir.Value, one: ir.Value, other: ir.Value, edit: Edit) -> ir.Value:
    """Return ``one`` if the condition holds, else ``other``; both have the same shape.

    ONNX Runtime's Where does not support bool.
    """
    if edit.scope.dtype(one) != ir.DataType.BOOL:
        return edit.op("Where", [condition, one, other])
    no = edit.op("And", [edit.op("Not", [condition]), other])
    return edit.op("Or", [edit.op("And", [condition, one]), no])


def _mapped(values: Sequence[ir.Value | None], new: Mapping[ir.Value, ir.Value]) -> list[ir.Value | None]:
    return [value if value is None else new.get(value, value) for value in values]


def _captured(node: ir.Node, new: Mapping[ir.Value, ir.Value]) -> list[ir.Value]:
    if not has_subgraphs(node):
        return []
    return [new.get(value, value) for value in captures(node)]


def _is_small(value: ir.Value, scope: Scope) -> bool:
    if not value.name:
        return True
    shape, dtype = scope.shape(value), scope.dtype(value)
    if shape is None or dtype is None or not shape.is_static() or dtype == ir.DataType.STRING:
        return False
    return int(np.prod(shape.numpy(), dtype=np.int64)) * dtype.bitwidth <= 8 * SMALL
