"""Inference through If as it was before opset 11, where ONNX takes a shape, and sizes, that only one branch has.

    If(c) { then: Reshape(x, s)   else: Reshape(x, [3]) }   →  ONNX says [3], though the other branch may give anything

The outputs of each such If are detached from it while ONNX infers: what follows is inferred from that which both
branches have in common. As branches can depend on other Ifs, this is repeated until nothing more is known.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import onnx

from passes.shapes.corrections.proto_nodes import DETACHED, ProtoGraph, attach, detach, of_opsets, within

OPERATORS = frozenset(("If",))
_AGREE = 11
"""From this opset on, ONNX takes what both branches have in common."""
_ROUNDS = 20
_KNOWN = {None: 0, "dim_param": 1, "dim_value": 2}


def infer(model: onnx.ModelProto, run: Callable[[onnx.ModelProto], onnx.ModelProto]) -> onnx.ModelProto:
    """Infer a model that may have such Ifs.

    Args:
        model: not changed.
        run: ONNX's inference.
    """
    if not any(True for _ in _old_ifs(model)):
        return run(model)
    detached = onnx.ModelProto()
    detached.CopyFrom(model)
    for graph, node in list(_old_ifs(detached)):
        detach(graph, node)
    for _ in range(_ROUNDS):
        found = run(detached)
        pairs = list(zip(_old_ifs(found), _old_ifs(detached), strict=True))
        learned = [_learn(node, graph) for (_, node), (graph, _) in pairs]
        if not any(learned):
            break
    for graph, node in list(_old_ifs(found)):
        attach(graph, node)
    return found


def infer_node(node: onnx.NodeProto, opset: int, run: Callable[[onnx.NodeProto], _Types]) -> _Types:
    """Infer the types of the outputs of one node; of the shapes that such Ifs give, in it or as itself, none is known.

    Args:
        node: not changed.
        opset: of ONNX.
        run: ONNX's inference.
    """
    detached = onnx.GraphProto(node=[node])
    nested = list(within(detached, "If")) if opset < _AGREE else []
    for graph, each in nested:
        if graph is not detached:
            detach(graph, each)
    types = run(detached.node[0])
    for each in types.values() if nested and nested[0][0] is detached else ():
        if each.HasField("tensor_type"):
            each.tensor_type.ClearField("shape")
    return types


_Types = dict[str, onnx.TypeProto]


def _old_ifs(model: onnx.ModelProto) -> Iterator[tuple[ProtoGraph, onnx.NodeProto]]:
    """All such Ifs with the graph or the function around them; nothing of functions is learned."""
    return of_opsets(model, "If", lambda version: version < _AGREE)


def _learn(node: onnx.NodeProto, graph: ProtoGraph) -> bool:
    """Declare what the branches of an If have in common; whether that is more than before.

    Args:
        node: the If, inferred.
        graph: where it is declared.
    """
    branches = [each.g.output for each in node.attribute if each.type == onnx.AttributeProto.GRAPH]
    if len(branches) != 2 or isinstance(graph, onnx.FunctionProto):
        return False
    learned = False
    for name, one, other in zip(node.output, *branches, strict=False):
        common = _common(one.type.tensor_type, other.type.tensor_type)
        if name and common is not None:
            learned |= _declare(graph, name.removesuffix(DETACHED), one.type.tensor_type.elem_type, common)
    return learned


def _common(one: onnx.TypeProto.Tensor, other: onnx.TypeProto.Tensor) -> onnx.TensorShapeProto | None:
    """What two shapes have in common; None without a common rank."""
    if not one.HasField("shape") or not other.HasField("shape") or len(one.shape.dim) != len(other.shape.dim):
        return None
    unknown = onnx.TensorShapeProto.Dimension()
    pairs = zip(one.shape.dim, other.shape.dim, strict=True)
    return onnx.TensorShapeProto(dim=[mine if mine == theirs else unknown for mine, theirs in pairs])


def _declare(graph: onnx.GraphProto, name: str, dtype: int, shape: onnx.TensorShapeProto) -> bool:
    """Add to the declaration of a value; whether it said less before."""
    known = next((each for each in (*graph.value_info, *graph.output) if each.name == name), None)
    if known is None:
        known = graph.value_info.add(name=name)
    tensor = known.type.tensor_type
    tensor.elem_type = tensor.elem_type or dtype
    if not tensor.HasField("shape"):
        tensor.shape.CopyFrom(shape)
        return True
    learned = False
    if len(tensor.shape.dim) == len(shape.dim):
        for dim, found in zip(tensor.shape.dim, shape.dim, strict=True):
            if _KNOWN[found.WhichOneof("value")] > _KNOWN[dim.WhichOneof("value")]:
                dim.CopyFrom(found)
                learned = True
    return learned
