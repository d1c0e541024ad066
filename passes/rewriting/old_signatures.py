"""Raise a model of an opset before 7 to opset 7, the first of which ONNX Runtime has all kernels.

    Reshape<shape=[1, -1]>(x)                 →  Reshape(x, [1, -1])
    Concat(x, y)                              →  Concat<axis=1>(x, y)
    Cast<to="DOUBLE">(x)                      →  Cast<to=11>(x)
    Tile(x, tiles, axis)                      →  Tile(x, [1, tiles, 1])
    Add<broadcast=1, axis=1>(x, y)            →  Add(x, Unsqueeze(y))         from axis 1 of x on
    PRelu(x, slope)                           →  PRelu(x, Unsqueeze(slope))   a slope for each channel
    Upsample<height_scale=2, width_scale=3>   →  Upsample<scales=[1, 1, 2, 3]>

Of any opset, the size of a window may be a list of one for ONNX Runtime, unless it knows the list: folding would make
it known.

    HannWindow(Shape(x))                      →  HannWindow(Reshape(Shape(x), []))

So no rule and no runtime reads an old signature. What has no equivalent is refused, before anything else is tried.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from passes.core.errors import InputError
from passes.graphs.matching import is_redefined
from passes.graphs.replacement import merge_shapes
from passes.graphs.scopes import Scope, name_nodes, scopes
from passes.graphs.traversal import is_used, subgraphs
from passes.rewriting.base import NotApplicable
from passes.rewriting.edit import not_constant
from passes.shapes.inference import infer_node

LOWEST = 7
"""The oldest opset of the models that passes are given."""
_WINDOWS = {"BlackmanWindow", "HammingWindow", "HannWindow"}
_EMPTY = ir.Tensor(np.array([], np.int64))


def raise_opset(model: ir.Model, where: str | None = None) -> None:
    """Rewrite all nodes of an opset before `LOWEST`, in place and with all functions.

    Raises InputError if a node has no equivalent, or it depends on ranks or constants that are unknown.
    """
    for scope in scopes(model):
        source = max(scope.opset_imports.get("", LOWEST), 1)
        if source < LOWEST:
            scope.graph.opset_imports.pop("ai.onnx", None)
            scope.graph.opset_imports[""] = LOWEST
            name_nodes(scope)
            _Raised(scope, source, where).graph(scope.graph)
    _make_scalars(Scope(model, model.graph))


def _make_scalars(scope: Scope) -> None:
    """Reshape the sizes of windows to scalars, unless they are these, or are constant."""
    for node in list(scope.nodes()):
        if node.domain == "" and node.op_type in _WINDOWS and node.inputs and not is_redefined(node, scope):
            size, shape = node.inputs[0], scope.shape(node.inputs[0])
            if scope.constant(size) is None and (shape is None or len(shape)):
                name_nodes(scope)
                raised = _Raised(scope, scope.opset(), None)
                empty = scope.new_constant(scope.graph, _EMPTY, scope.names.value(f"{node.name}/scalar"))
                node.replace_input_with(0, raised.insert(node, "Reshape", [size, empty]))


@dataclass(frozen=True)
class _Raised:
    """A main graph or function, which imports the new opset already, and the old one, ``source``."""

    scope: Scope
    source: int
    where: str | None

    def graph(self, graph: ir.Graph) -> None:
        for node in list(graph):
            for inner in subgraphs(node):
                self.graph(inner)
            if node.domain == "" and not is_redefined(node, self.scope):
                self._node(node)
            self._infer(node)

    def _node(self, node: ir.Node) -> None:
        for name in ("consumed_inputs", *_DROPPED.get(node.op_type, ())):
            node.attributes.pop(name, None)
        for name, default in _DEFAULTS.get(node.op_type, {}).items() if self.source < 6 else ():
            node.attributes.setdefault(name, ir.convenience.convert_attribute(name, default))
        try:
            if node.op_type in _EXPERIMENTS:
                raise NotApplicable("it was experimental, and no later opset has it")
            if node.op_type in _RULES:
                _RULES[node.op_type](node, self)
        except NotApplicable as error:
            raise InputError(
                f"{node.op_type} of opset {self.source} cannot be raised to opset {LOWEST}: {error}",
                where=", ".join(filter(None, (self.where, f"node {node.name}"))),
                hint=f"export the model with opset {LOWEST} or later",
            ) from None

    def _infer(self, node: ir.Node) -> None:
        """Infer the outputs of a node; what is declared only adds to it."""
        declared = [value.shape for value in node.outputs]
        for value in node.outputs:
            value.shape = None
        infer_node(node, self.scope)
        for value, shape in zip(node.outputs, declared, strict=True):
            value.shape = value.shape if shape is None else merge_shapes(value.shape, shape)

    def rank(self, node: ir.Node, index: int) -> int:
        shape = self.scope.shape(node.inputs[index])
        if shape is None:
            raise NotApplicable(f"the rank of its input {index} is unknown")
        return len(shape)

    def integers(self, node: ir.Node, index: int, what: str) -> list[int]:
        """Return the elements of a constant input, which may be floats."""
        value = node.inputs[index]
        tensor = self.scope.constant(value)
        if tensor is None:
            raise NotApplicable(f"{what} is not given" if value is None else not_constant(value, what))
        return [_integer(element, what) for element in tensor.numpy().ravel().tolist()]

    def insert(self, node: ir.Node, op_type: str, inputs: Sequence[ir.Value | None], *attributes: ir.Attr) -> ir.Value:
        """Insert another node before a node; return its output."""
        name = self.scope.names.node(f"{node.name}/{op_type}")
        added = ir.Node("", op_type, inputs, attributes, name=name)
        added.outputs[0].name = self.scope.names.value(f"{name}_output")
        assert node.graph is not None
        node.graph.insert_before(node, added)
        infer_node(added, self.scope)
        return added.outputs[0]

    def set_operand(self, node: ir.Node, numbers: Sequence[int]) -> None:
        """Give a node integers as its second and last input."""
        tensor, name = ir.Tensor(np.array(numbers, np.int64)), self.scope.names.value(f"{node.name}/numbers")
        if self.scope.constant_problem(tensor.dtype):
            floats = ir.AttrTensor("value", ir.Tensor(tensor.numpy().astype(np.float64)))
            constant = self.insert(node, "Constant", [], floats)
            operand = self.insert(node, "Cast", [constant], ir.AttrInt64("to", tensor.dtype.value))
        else:
            operand = self.scope.new_constant(self.scope.graph, tensor, name)
        node.resize_inputs(2)
        node.replace_input_with(1, operand)

    def append_axes(self, node: ir.Node, axes: range) -> None:
        """Append axes of size 1 to the second operand, unless it is a scalar."""
        if axes and axes.start:
            aligned = self.insert(node, "Unsqueeze", [node.inputs[1]], ir.AttrInt64s("axes", list(axes)))
            node.replace_input_with(1, aligned)


def _integer(number: float, what: str) -> int:
    if number != int(number):
        raise NotApplicable(f"{what} is {number}, which is not an integer")
    return int(number)


def _binary(node: ir.Node, raised: _Raised) -> None:
    """Align the second operand with the axes of the first one that it is broadcast along."""
    broadcast, axis = node.attributes.pop("broadcast", None), node.attributes.pop("axis", None)
    if broadcast is None or not broadcast.as_int() or axis is None or axis.as_int() == -1:  # by the last axes
        return
    rank, other = raised.rank(node, 0), raised.rank(node, 1)
    start = axis.as_int() + (rank if axis.as_int() < 0 else 0)
    if start < 0 or (start + other > rank and other):
        raise NotApplicable(f"{other} axes from axis {axis.as_int()} on are more than the {rank} of its first operand")
    raised.append_axes(node, range(other, rank - start))


def _slopes(node: ir.Node, raised: _Raised) -> None:
    """Align the slopes of PRelu with the channels, which are axis 1."""
    if raised.rank(node, 1) == 1:
        raised.append_axes(node, range(1, raised.rank(node, 0) - 1))


def _inference(node: ir.Node, raised: _Raised) -> None:
    """Require that a node does not train; Dropout without is_test leaves it open, as in opset 7."""
    is_test = node.attributes.pop("is_test", None)
    if not (node.op_type == "Dropout" if is_test is None else is_test.as_int()):
        raise NotApplicable("is_test=0 means training, by the statistics of the batch or random numbers")
    for value in node.outputs[1:]:
        if is_used(value):
            raise NotApplicable(f"its output {value.name} has no meaning in inference")
    node.resize_outputs(1)


def _cast(node: ir.Node, raised: _Raised) -> None:
    to = node.attributes["to"]
    if to.type == ir.AttributeType.STRING:
        if to.as_string().upper() not in ir.DataType.__members__:
            raise NotApplicable(f"there is no type {to.as_string()!r}")
        node.attributes["to"] = ir.AttrInt64("to", ir.DataType[to.as_string().upper()].value)


def _reshape(node: ir.Node, raised: _Raised) -> None:
    shape = node.attributes.pop("shape", None)
    if shape is not None:
        raised.set_operand(node, shape.as_ints())
    elif len(node.inputs) < 2:
        raise NotApplicable("it has no shape")


def _tile(node: ir.Node, raised: _Raised) -> None:
    if len(node.inputs) != 3:
        return
    tiles, axis = raised.integers(node, 1, "tiles"), raised.integers(node, 2, "the axis")
    repeats = [1] * raised.rank(node, 0)
    if not len(tiles) == len(axis) == 1 or not -len(repeats) <= axis[0] < len(repeats):
        raise NotApplicable(f"it takes one number of tiles, and one of the {len(repeats)} axes")
    repeats[axis[0]] = tiles[0]
    raised.set_operand(node, repeats)


def _split(node: ir.Node, raised: _Raised) -> None:
    if raised.source == 1 and "axis" not in node.attributes:
        raise NotApplicable("it has no axis, for which opset 1 has no default")
    if len(node.inputs) > 1:
        node.attributes["split"] = ir.AttrInt64s("split", raised.integers(node, 1, "the input split"))
        node.resize_inputs(1)


def _pad(node: ir.Node, raised: _Raised) -> None:
    if "paddings" in node.attributes:
        node.attributes["pads"] = ir.AttrInt64s("pads", node.attributes.pop("paddings").as_ints())


def _norm(node: ir.Node, raised: _Raised) -> None:
    if node.op_type == "LpPool" and "kernel_shape" not in node.attributes:
        raise NotApplicable("it has no kernel_shape")
    p = node.attributes.get("p")
    if p is not None and p.type == ir.AttributeType.FLOAT:
        node.attributes["p"] = ir.AttrInt64("p", _integer(p.as_float(), "p"))


def _upsample(node: ir.Node, raised: _Raised) -> None:
    height, width = (node.attributes.pop(name, None) for name in ("height_scale", "width_scale"))
    if height is not None and width is not None:
        node.attributes["scales"] = ir.AttrFloat32s("scales", [1.0, 1.0, height.as_float(), width.as_float()])
    if node.attributes.get_string("mode", "") == "bilinear":
        node.attributes["mode"] = ir.AttrString("mode", "linear")


def _gru(node: ir.Node, raised: _Raised) -> None:
    if node.attributes.get_string("direction", "") == "foward":  # the default of opset 1
        del node.attributes["direction"]


_BINARY = ("Add", "And", "Div", "Equal", "Greater", "Less", "Mul", "Or", "Pow", "Sub", "Xor")
_EXPERIMENTS = ("ATen", "ConstantFill", "GRUUnit", "GivenTensorFill", "LoopIndexTensor")
_DROPPED = {"Gemm": ("broadcast",), **dict.fromkeys(("GRU", "LSTM", "RNN"), ("output_sequence",))}
"""Attributes without an effect in inference, besides ``consumed_inputs``."""
_DEFAULTS: dict[str, dict[str, float]] = {"Concat": {"axis": 1}, "Selu": {"alpha": 1.6732, "gamma": 1.0507}}
"""Defaults that opset 6 does not have any more."""
_RULES: dict[str, Callable[[ir.Node, _Raised], None]] = {
    **dict.fromkeys(_BINARY, _binary),
    **dict.fromkeys(("BatchNormalization", "Dropout"), _inference),
    **dict.fromkeys(("GlobalLpPool", "LpPool"), _norm),
    "Cast": _cast,
    "GRU": _gru,
    "PRelu": _slopes,
    "Pad": _pad,
    "Reshape": _reshape,
    "Split": _split,
    "Tile": _tile,
    "Upsample": _upsample,
}
"""What else changed before opset 7."""
