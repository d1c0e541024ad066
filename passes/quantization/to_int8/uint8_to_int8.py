"""Quantize to int8 instead of uint8.

    Q(x, s, z) in 0 … 255   →  Q(x, s, z − 128) in −128 … 127
    DQ(q, s, z)             →  DQ(q − 128, s, z − 128)

Integers and zero points decrease by 128, so their differences, and the values they represent, are unchanged. The same
holds behind operators that only move integers or select the larger of two. MIGraphX has int8 kernels; with uint8 it
computes in float.

All connected tensors change together or not at all. Skips: uint8 graph inputs and outputs, integers that another
operator takes or makes, and zero points that are not constant.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np
import onnx_ir as ir

from passes.builders.operands import given
from passes.graphs import lineage
from passes.graphs.quantization import is_quantized, plain, quantized_dtype, zero_point
from passes.graphs.scopes import Scope, name_nodes
from passes.operators import is_dequantize, is_quantize
from passes.rewriting.base import Context, Exactness, Pass, Result, Rewrite, Skip
from passes.shapes.inference import infer

_SHIFT = 128
_MOVING = (
    "Concat", "DepthToSpace", "Expand", "Flatten", "Gather", "GatherElements", "GatherND", "Identity", "MaxPool", "Pad",
    "Reshape", "Resize", "Slice", "SpaceToDepth", "Split", "Squeeze", "Tile", "Transpose", "Unsqueeze",
)  # fmt: skip
"""Operators whose output holds elements of their integer input and nothing else."""
_OF_ALL_INPUTS = {"Concat"}
"""Those that move all of their inputs; the others move the first."""
_UINT8 = ir.DataType.UINT8


@dataclass
class _Component:
    """Connected integer tensors.

    Attributes:
        values: those that nodes compute.
        constants: where constants are used: a node and the index of its input.
        quantizers: the QuantizeLinear nodes that make them.
        dequantizers: the DequantizeLinear nodes that take them.
        moving: the operators between.
    """

    values: dict[ir.Value, None] = field(default_factory=dict)
    constants: dict[tuple[ir.Node, int], None] = field(default_factory=dict)
    quantizers: dict[ir.Node, None] = field(default_factory=dict)
    dequantizers: dict[ir.Node, None] = field(default_factory=dict)
    moving: dict[ir.Node, None] = field(default_factory=dict)

    def ends(self) -> Iterable[ir.Node]:
        return (*self.quantizers, *self.dequantizers)

    def nodes(self) -> list[str]:
        return [node.name or "" for node in (*self.ends(), *self.moving)]


class Uint8ToInt8(Pass):
    """Quantize to int8 instead of uint8."""

    name = "uint8-to-int8"
    exactness = Exactness.BITWISE

    def run(self, model: ir.Model, context: Context) -> Result:
        """Convert each group of connected tensors."""
        result = Result(model)
        if not is_quantized(model):
            return result
        infer(model)
        scope = name_nodes(Scope(model, model.graph))
        done: set[ir.Node] = set()
        for node in list(scope.nodes()):
            if node in done or not is_dequantize(node) or quantized_dtype(node, scope) != _UINT8:
                continue
            component = _component(node, scope)
            if isinstance(component, str):
                result.skips.append(Skip(component, node.name or ""))
                continue
            done.update(component.dequantizers)
            if not context.budget.take():
                break
            _shift(component, scope)
            names = tuple(component.nodes())
            result.rewrites.append(Rewrite(names, names, "uint8 → int8"))
        return result


def _component(start: ir.Node, scope: Scope) -> _Component | str:
    """Return the integers connected with those that a DequantizeLinear takes; a reason if they must stay uint8."""
    component = _Component()
    component.dequantizers[start] = None
    pending = _operands(component, start, [0], scope)
    while pending:
        value = pending.pop()
        if value in component.values:
            continue
        component.values[value] = None
        maker = value.producer()
        if maker is None or value.is_graph_output():
            return f"{value.name} is a uint8 graph input or output"
        for node in (maker, *value.consumers()):
            if is_quantize(node) and node is maker:
                component.quantizers[node] = None
            elif is_dequantize(node) and node is not maker:
                component.dequantizers[node] = None
            elif plain(node, scope, "Shape", "Size") and node is not maker:
                continue
            elif node not in component.moving:
                if problem := _obstacle(node, value, scope):
                    return problem
                component.moving[node] = None
                moved = range(len(node.inputs)) if node.op_type in _OF_ALL_INPUTS else [0]
                pending += _operands(component, node, moved, scope)
                pending += [output for output in node.outputs if output.name]
    return _unknown_zero_point(component, scope) or component


def _operands(component: _Component, node: ir.Node, indices: Iterable[int], scope: Scope) -> list[ir.Value]:
    """Return the computed inputs of a node; constant ones are added to ``component``."""
    computed = []
    for index in indices:
        value = node.inputs[index]
        assert value is not None
        if scope.constant(value) is not None:
            component.constants[node, index] = None
        else:
            computed.append(value)
    return computed


def _unknown_zero_point(component: _Component, scope: Scope) -> str:
    """Return why a zero point cannot be changed; empty if all can."""
    for node in component.ends():
        zero = zero_point(node)
        if zero is not None and scope.constant(zero) is None:
            return "its zero point is not constant"
        if zero is None and scope.static_shape(node.inputs[1]) is None:
            return "the shape of its scale is unknown"
    return ""


def _obstacle(node: ir.Node, value: ir.Value, scope: Scope) -> str:
    """Return why a node prevents the conversion; empty if it only moves ``value``."""
    kind, mode = node.op_type, node.attributes.get_string("mode", "")
    crops = node.attributes.get_string("coordinate_transformation_mode") == "tf_crop_and_resize"
    unknown = given(node, 2) is not None and scope.constant(given(node, 2)) is None
    prevents = (
        not plain(node, scope, *_MOVING)
        or (kind == "MaxPool" and (len(node.outputs) > 1 or scope.opset() < 12))
        or (kind == "Resize" and (mode not in ("", "nearest") or crops))
        or (kind == "Pad" and mode in ("", "constant") and (scope.opset() < 13 or unknown))
        or (kind not in _OF_ALL_INPUTS and value in node.inputs[1:])
    )
    return f"{kind} {node.name} makes or takes {value.name}" if prevents else ""


def _shift(component: _Component, scope: Scope) -> None:
    """Subtract 128 from all integers and zero points of a group."""
    for node in component.moving:
        if node.op_type == "Pad" and node.attributes.get_string("mode", "constant") == "constant":
            padding = given(node, 2)
            tensor = scope.constant(padding)
            stored = tensor.numpy() if tensor is not None else np.zeros((), np.uint8)
            _set_input(node, 2, _constant(node, _lower(stored), f"{node.name}_value", scope))
            if padding is not None:
                scope.drop_constant(padding)
    for node, index in component.constants:
        value = node.inputs[index]
        tensor = scope.constant(value)
        assert tensor is not None and value is not None
        _set_input(node, index, _constant(node, _lower(tensor.numpy()), f"{value.name}_int8", scope))
        scope.drop_constant(value)
    for node in component.ends():
        zero = zero_point(node)
        tensor, shape = scope.constant(zero), scope.static_shape(node.inputs[1])
        stored = np.zeros(shape or (), np.uint8) if tensor is None else tensor.numpy()
        _set_input(node, 2, _constant(node, _lower(stored), f"{zero.name if zero else node.name}_int8", scope))
        node.attributes.pop("output_dtype", None)
        if zero is not None:
            scope.drop_constant(zero)
    for value in component.values:
        before = str(value.name)
        value.type = ir.TensorType(ir.DataType.INT8)
        value.name = scope.names.value(f"{before}_int8")  # its integers have changed
        lineage.record_shift(value, before, -_SHIFT)


def _lower(array: np.ndarray) -> np.ndarray:
    return (array.astype(np.int16) - _SHIFT).astype(np.int8)


def _constant(node: ir.Node, array: np.ndarray, name: str, scope: Scope) -> ir.Value:
    graph = node.graph
    assert isinstance(graph, ir.Graph)
    return scope.new_constant(graph, ir.Tensor(array), scope.names.value(name))


def _set_input(node: ir.Node, index: int, value: ir.Value) -> None:
    if index >= len(node.inputs):
        node.resize_inputs(index + 1)
    node.replace_input_with(index, value)
