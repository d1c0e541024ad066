"""Clusters of nodes that a compiler may fuse wrongly: each node alone is right, but the cluster computes wrong numbers.

No probe of a single node shows this:

    Conv(Pad(x))      the compiler takes the pads of Pad for those of Conv, whatever their value and axes
    Resize(view(x))   it reads elements in memory order, but Slice and others only change the view
    Resize(…(Transpose(x)))  likewise, and most operators keep the layout of their inputs: a whole network may lie
                      between the two, so that Resize is judged right after a Transpose of its own sizes
    Conv(DQ(x), DQ(w, s))  it computes with the integers, and may take no scales per channel; likewise Gemm and MatMul;
                      only if the fusions of the gpu target are rehearsed
    MatMul(x, DQ(v, s, z)), MatMul(x, DQ(w, t))  it makes one product of both, and expects a zero point of the second;
                      likewise Conv and Gemm, and only there

Skips: other neighbours that only targets with more fusions than ``ref`` fuse.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import onnx_ir as ir

from passes.graphs.quantization import Parameters, parameters
from passes.graphs.scopes import Scope
from passes.operators import is_dequantize
from passes.probing.probe import Probe

_PADDED = frozenset(
    ["Conv", "ConvInteger", "ConvTranspose", "FusedConv", "QLinearConv"]
    + [f"{scope}{kind}Pool" for scope in ("", "Global") for kind in ("Max", "Average", "Lp")]
)
_QUANTIZABLE = frozenset(["Conv", "Gemm", "MatMul"])
_VIEWS = frozenset(["Identity", "Slice", "Split", "Squeeze", "Unsqueeze"])
_AFTER_VIEWS = frozenset(["Resize", "Upsample"])
_REORDERING = frozenset(["Einsum", "Expand", "GridSample", "Hardmax", "Transpose"])
"""Operators whose results may have another layout than the standard one, which most operators keep."""
_STANDARD_LAYOUT = frozenset(
    ["DepthToSpace", "Flatten", "Gather", "Gemm", "MatMul", "Reshape", "Resize", "SpaceToDepth", "Upsample"]
)
"""Operators whose results have the standard layout, whatever that of their inputs."""
_MAX_VIEWS = 4
"""The most views in a row that are followed."""


class Cluster(NamedTuple):
    """Nodes in topological order, the last of which is the one to rewrite, and the probe that shows what they do."""

    nodes: tuple[ir.Node, ...]
    probe: Probe


def fusion_clusters(scope: Scope, *, rehearsed: bool = False) -> Iterator[Cluster]:
    """Yield the clusters of a scope.

    Args:
        rehearsed: whether to include those that the gpu target alone fuses.
    """
    for nodes in _adjacent(scope, rehearsed=rehearsed):
        yield Cluster(nodes, Probe.of(nodes, scope))
    for nodes in _reordered(scope):
        probe = _after_transpose(nodes[-1], scope)
        if probe is not None:
            yield Cluster(nodes, probe)


def _adjacent(scope: Scope, *, rehearsed: bool) -> Iterator[tuple[ir.Node, ...]]:
    """Yield the clusters whose nodes are neighbours."""
    for node in scope.nodes():
        if rehearsed and node.op_type in _QUANTIZABLE:
            operands = [_producer(node, index) for index in (0, 1)]
            if all(producer is not None and is_dequantize(producer) for producer in operands):
                yield *dict.fromkeys(operand for operand in operands if operand is not None), node
            yield from _beside_zero_point(node, scope)
        if node.op_type in _PADDED:
            producer = _producer(node, 0)
            if producer is not None and producer.op_type == "Pad":
                yield producer, node
        elif node.op_type in _AFTER_VIEWS:
            cluster = [node]
            while (
                len(cluster) <= _MAX_VIEWS
                and (producer := _producer(cluster[0], 0)) is not None
                and producer.op_type in _VIEWS
            ):
                cluster.insert(0, producer)
            if len(cluster) > 1:
                yield tuple(cluster)


def _beside_zero_point(node: ir.Node, scope: Scope) -> Iterator[tuple[ir.Node, ...]]:
    """Yield a product whose weight has no zero point, with one of the same input whose weight has."""
    zeros = _weight_zeros(node, scope)
    if zeros is None or zeros[1] or node.inputs[0] is None:
        return
    beside = [use.node for use in node.inputs[0].uses() if use.idx == 0 and use.node.op_type == node.op_type]
    for other in beside:
        weight = _weight_zeros(other, scope) if other.graph is node.graph else None
        if weight is not None and weight[1]:
            yield weight[0], zeros[0], other, node
            return


def _weight_zeros(node: ir.Node, scope: Scope) -> tuple[ir.Node, bool] | None:
    """Return the DequantizeLinear of a product's weight, and whether its zero point differs from 0; None for others."""
    weight = _producer(node, 1)
    params = parameters(weight, scope) if weight is not None and is_dequantize(weight) else None
    return (weight, bool(params.zero.any())) if weight is not None and isinstance(params, Parameters) else None


def _reordered(scope: Scope) -> Iterator[tuple[ir.Node, ir.Node]]:
    """Yield each Resize that a layout may reach, after a node that it may come from."""
    origins: dict[ir.Node | None, ir.Node] = {}
    for node in scope.nodes():
        if node.op_type in _AFTER_VIEWS and (data := _producer(node, 0)) in origins:
            yield origins[data], node
        elif node.op_type in _REORDERING:
            origins[node] = node
        elif node.op_type not in _STANDARD_LAYOUT:
            producers = (_producer(node, index) for index in range(len(node.inputs)))
            origin = next((origins[producer] for producer in producers if producer in origins), None)
            if origin is not None:
                origins[node] = origin


def _after_transpose(resize: ir.Node, scope: Scope) -> Probe | None:
    """Return a probe of a Resize right after a Transpose that reverses the axes, in a model of its own.

    None if the sizes of its input are not known, or its other operands not constant.
    """
    shape, dtype = scope.static_shape(resize.inputs[0]), scope.dtype(resize.inputs[0])
    tensors = [scope.constant(value) for value in resize.inputs[1:]]
    given = [value is not None for value in resize.inputs[1:]]
    if shape is None or dtype is None or given != [tensor is not None for tensor in tensors]:
        return None
    x, transposed = (
        ir.Value(name=name, type=ir.TensorType(dtype), shape=ir.Shape(sizes))
        for name, sizes in (("x", shape[::-1]), ("transposed", shape))
    )
    y = ir.Value(name="y", type=ir.TensorType(dtype), shape=scope.shape(resize.outputs[0]))
    graph = ir.Graph([x], [y], nodes=(), opset_imports=dict(scope.opset_imports))
    alone = Scope(ir.Model(graph, ir_version=max(scope.model.ir_version, 4)), graph)
    constants = [
        None if tensor is None else alone.new_constant(graph, tensor, f"c{index}")
        for index, tensor in enumerate(tensors)
    ]
    reversal = ir.AttrInt64s("perm", [*range(len(shape))][::-1])
    nodes = (
        ir.Node("", "Transpose", [x], [reversal], outputs=[transposed]),
        ir.Node(resize.domain, resize.op_type, [transposed, *constants], resize.attributes.values(), outputs=[y]),
    )
    graph.extend(nodes)
    return Probe.of(nodes, alone)


def _producer(node: ir.Node, index: int) -> ir.Node | None:
    value = node.inputs[index] if index < len(node.inputs) else None
    producer = value.producer() if value is not None else None
    return producer if producer is not None and producer.graph is node.graph else None
