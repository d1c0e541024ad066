"""Inference through operators on which ONNX's crashes where the type of an operand is unknown (onnx 1.23).

    h = com.microsoft.Gelu(x)   y = EyeLike<dtype = 1>(h)   →  ONNX reads the type of h, and there is none

Each such node has a domain of its own, which ONNX does not infer, until the types of its operands are known.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import onnx

from passes.shapes.corrections.proto_nodes import nodes_of, placed, with_nested

OPERATORS = frozenset(("DictVectorizer", "EyeLike", "LabelEncoder", "RegexFullMatch", "TreeEnsemble"))
"""Found by giving each operator of ONNX operands of unknown type."""
_DOMAINS = ("", "ai.onnx", "ai.onnx.ml")
_HIDDEN = "onnx_bridge.untyped/"
"""The start of the domain of a node that is hidden; its own follows."""
_Types = dict[str, onnx.TypeProto]


def infer(model: onnx.ModelProto, run: Callable[[onnx.ModelProto], onnx.ModelProto]) -> onnx.ModelProto:
    """Infer a model that has such operators; those of functions are not inferred.

    Args:
        model: not changed.
        run: ONNX's inference.
    """
    hidden = onnx.ModelProto()
    hidden.CopyFrom(model)
    for node in filter(_crashes, nodes_of(hidden)):
        node.domain = _HIDDEN + node.domain
    for scope in (hidden, *hidden.functions):
        scope.opset_import.extend(onnx.helper.make_opsetid(_HIDDEN + domain, 1) for domain in _DOMAINS)
    while True:
        found = run(hidden)
        typed = [_is_hidden(each.node) and _is_typed(each.node, each.types) for each in placed(found.graph)]
        if not any(typed):
            break
        for each, is_typed in zip(placed(hidden.graph), typed, strict=True):
            if is_typed:
                each.node.domain = each.node.domain.removeprefix(_HIDDEN)
    for scope in (found, *found.functions):
        del scope.opset_import[-len(_DOMAINS) :]
    for node in filter(_is_hidden, nodes_of(found)):
        node.domain = node.domain.removeprefix(_HIDDEN)
    return found


def infer_node(
    node: onnx.NodeProto, types: Mapping[str, onnx.TypeProto], run: Callable[[onnx.NodeProto], _Types]
) -> _Types:
    """Infer the types of the outputs of one node; nothing of one with such operators in its subgraphs.

    Args:
        node: not changed.
        types: those of its operands that are known.
        run: ONNX's inference.
    """
    crashing = list(filter(_crashes, with_nested([node])))
    return run(node) if crashing in ([], [node]) and (not crashing or _is_typed(node, types)) else {}


def _crashes(node: onnx.NodeProto) -> bool:
    return node.op_type in OPERATORS and node.domain in _DOMAINS


def _is_hidden(node: onnx.NodeProto) -> bool:
    return node.domain.startswith(_HIDDEN)


def _is_typed(node: onnx.NodeProto, types: Mapping[str, onnx.TypeProto]) -> bool:
    """Whether the types of all operands are known; of one that is left out, none is."""
    return all(name in types for name in node.input)
