"""Clusters of nodes that a compiler may fuse wrongly: each node alone is right, but the cluster computes wrong numbers.

No probe of a single node shows this:

    Conv(Pad(x))      the compiler takes the pads of Pad for those of Conv, whatever their value and axes
    Resize(view(x))   it reads elements in memory order, but Transpose, Slice and others only change the view, and most
                      operators keep the layout of their inputs: Resize(Relu(Conv(Transpose(x))))
    Conv(DQ(x), DQ(w, s))  it computes with the integers, and may take no scales per channel; likewise Gemm and MatMul;
                      only if the fusions of the gpu target are rehearsed
    MatMul(x, DQ(v, s, z)), MatMul(x, DQ(w, t))  it makes one product of both, and expects a zero point of the second;
                      likewise Conv and Gemm, and only there

Skips: other neighbours that only targets with more fusions than ``ref`` fuse; a Transpose and a Resize that are more
than `_MAX_DISTANCE` nodes apart.
"""

from __future__ import annotations

from collections.abc import Iterator

import onnx_ir as ir

from passes.graphs.quantization import Parameters, parameters
from passes.graphs.scopes import Scope
from passes.operators import is_dequantize

_PADDED = frozenset(
    ["Conv", "ConvInteger", "ConvTranspose", "FusedConv", "QLinearConv"]
    + [f"{scope}{kind}Pool" for scope in ("", "Global") for kind in ("Max", "Average", "Lp")]
)
_QUANTIZABLE = frozenset(["Conv", "Gemm", "MatMul"])
_VIEWS = frozenset(["Expand", "Identity", "Slice", "Split", "Squeeze", "Transpose", "Unsqueeze"])
_AFTER_VIEWS = frozenset(["Resize", "Upsample"])
_STANDARD_LAYOUT = frozenset(
    ["DepthToSpace", "Einsum", "Flatten", "Gather", "Gemm", "MatMul", "Reshape", "Resize", "SpaceToDepth", "Upsample"]
)
"""Operators whose results have the standard layout, whatever that of their inputs."""
_MAX_VIEWS = 4
"""The most views in a row that are followed."""
_MAX_DISTANCE = 16
"""The most nodes between a Transpose and a Resize."""


def fusion_clusters(scope: Scope, *, rehearsed: bool = False) -> Iterator[tuple[ir.Node, ...]]:
    """Yield the clusters of a scope, each in topological order, so that the last node is the one to rewrite.

    Args:
        rehearsed: whether to include those that the gpu target alone fuses.
    """
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
            cluster = _path_from_transpose(node)
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


def _path_from_transpose(node: ir.Node) -> list[ir.Node]:
    """Return a shortest path to a node from a Transpose whose layout may reach it; the node alone if there is none."""
    successors: dict[ir.Node, ir.Node | None] = {node: None}
    pending = [node]
    for _ in range(_MAX_DISTANCE):
        reached = {
            producer: last for last in pending for producer in _producers(last, node) if producer not in successors
        }
        successors |= reached
        transpose = next((producer for producer in reached if producer.op_type == "Transpose"), None)
        if transpose is not None:
            path, step = [transpose], successors[transpose]
            while step is not None:
                path.append(step)
                step = successors[step]
            return path
        pending = [producer for producer in reached if producer.op_type not in _STANDARD_LAYOUT]
    return [node]


def _producers(node: ir.Node, last: ir.Node) -> list[ir.Node]:
    """Return the producers of a node's inputs, in the same graph; of the last node, that of its data."""
    values = node.inputs[:1] if node is last else node.inputs
    producers = [value.producer() for value in values if value is not None]
    return [
        producer
        for producer in producers
        if producer is not None and producer.graph is node.graph and producer.op_type != "Constant"
    ]


def _producer(node: ir.Node, index: int) -> ir.Node | None:
    value = node.inputs[index] if index < len(node.inputs) else None
    producer = value.producer() if value is not None else None
    return producer if producer is not None and producer.graph is node.graph else None
