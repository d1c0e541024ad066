"""ONNX's shape inference, which nothing else calls: models that it never returns from are refused before.

It runs where it is called: `passes.core.inference` gives models of many nodes to a process with limits.

Known is one case. An Einsum of whose equation a term has anything but letters, spaces and one ellipsis is not valid,
and the parser of its inference stays at that character, holding the interpreter's lock (onnx 1.23). In functions, the
equation may be an attribute of their callers. What ONNX infers wrongly of old Ifs is corrected
(`passes.core.if_inference`).
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import Any

import onnx

from passes.core import if_inference
from passes.core.shape_data import longest_list

_TERMS = re.compile(rb"[a-zA-Z ]*(\.\.\.[a-zA-Z ]*)?(,[a-zA-Z ]*(\.\.\.[a-zA-Z ]*)?)*(->.*)?", re.DOTALL)
_Function = tuple[str, str, str]
_Source = bytes | tuple[_Function, str]
"""A string, or the attribute of a function that holds it."""
_MAIN: _Function = ("", "", "")
MAX_LIST = 2**16
"""With longer lists than this, ONNX must not propagate the values of shapes."""
_MAKE_LISTS = {"ConstantOfShape", "Expand", "OneHot", "Pad", "Range", "Resize", "Tile"}
"""Operators that make long lists of short ones."""


class EndlessInference(onnx.shape_inference.InferenceError):
    """ONNX's inference would never return.

    Attributes:
        equation: that of the Einsum in question.
    """

    def __init__(self, equation: str) -> None:
        super().__init__(
            f"the equation {equation!r} of an Einsum is not valid: a term has letters and one ellipsis at most"
        )
        self.equation = equation


def infer_shapes(model: onnx.ModelProto, **options: bool) -> onnx.ModelProto:
    """`onnx.shape_inference.infer_shapes`, with its options; values of shapes are propagated only in short lists.

    Raises:
        InferenceError: the model is not valid; `EndlessInference` where ONNX would not say so.
        ValidationError: likewise.
    """
    refuse_endless(model)

    def run(model: onnx.ModelProto) -> onnx.ModelProto:
        return onnx.shape_inference.infer_shapes(model, **options)

    def infer() -> onnx.ModelProto:
        return if_inference.infer(model, run) if if_inference.has_old_if(model) else run(model)

    propagate = options.pop("data_prop", False) and longest_list(model) <= MAX_LIST
    if propagate and _makes_lists(model.graph):  # how long they are is found without propagation
        found = infer()
        if _longest_value(found.graph) > MAX_LIST:
            return found
    options["data_prop"] = propagate
    return infer()


def _makes_lists(graph: onnx.GraphProto) -> bool:
    return any(node.op_type in _MAKE_LISTS or any(map(_makes_lists, _subgraphs(node))) for node in graph.node)


def _longest_value(graph: onnx.GraphProto) -> int:
    """The length of the longest value of one dimension, of a graph and its subgraphs."""
    shapes = [each.type.tensor_type.shape.dim for each in (*graph.value_info, *graph.output)]
    own = [shape[0].dim_value for shape in shapes if len(shape) == 1]
    return max([*own, *(_longest_value(inner) for node in graph.node for inner in _subgraphs(node))], default=0)


def _subgraphs(node: onnx.NodeProto) -> Iterator[onnx.GraphProto]:
    for attribute in node.attribute:
        yield from [attribute.g] if attribute.HasField("g") else attribute.graphs


def infer_node_outputs(
    schema: onnx.defs.OpSchema, node: onnx.NodeProto, *facts: Any, opset: int, **options: Any
) -> dict[str, onnx.TypeProto]:
    """`onnx.shape_inference.infer_node_outputs` in an opset of ONNX; raises like `infer_shapes`."""
    refuse_endless(onnx.ModelProto(graph=onnx.GraphProto(node=[node])))

    def run(node: onnx.NodeProto) -> dict[str, onnx.TypeProto]:
        return onnx.shape_inference.infer_node_outputs(schema, node, *facts, **options)

    return if_inference.infer_node(node, opset, run)


def refuse_endless(model: onnx.ModelProto) -> None:
    """Check a model that ONNX is given to infer or to convert.

    Raises:
        EndlessInference: it would not return.
    """
    for equation in _equations(model):
        if not _TERMS.fullmatch(equation):
            raise EndlessInference(equation.decode(errors="replace"))


def _equations(model: onnx.ModelProto) -> Iterator[bytes]:
    """The equations of all Einsums, with those that are attributes of functions, in any of their calls."""
    functions = {(each.domain, each.name, each.overload): each for each in model.functions}
    given: defaultdict[_Source, list[_Source]] = defaultdict(list)
    pending: list[_Source] = []
    for scope, nodes in ((_MAIN, model.graph.node), *((key, each.node) for key, each in functions.items())):
        for node in _with_nested(nodes):
            called = (node.domain, node.op_type, node.overload)
            for attribute in node.attribute if node.op_type == "Einsum" or called in functions else ():
                source: _Source = (scope, attribute.ref_attr_name) if attribute.ref_attr_name else attribute.s
                given[called, attribute.name].append(source)
                if (node.op_type, attribute.name) == ("Einsum", "equation"):
                    pending.append(source)
    for key, function in functions.items():
        for attribute in function.attribute_proto:
            given[key, attribute.name].append(attribute.s)
    seen: set[_Source] = set()
    while pending:
        source = pending.pop()
        if source in seen:
            continue
        seen.add(source)
        if isinstance(source, bytes):
            yield source
        else:
            pending += given[source]


def _with_nested(nodes: Iterable[onnx.NodeProto]) -> Iterator[onnx.NodeProto]:
    """Nodes, and those of their subgraphs."""
    pending = [nodes]
    while pending:
        for node in pending.pop():
            yield node
            for attribute in node.attribute:
                if attribute.type == onnx.AttributeProto.GRAPH:
                    pending.append(attribute.g.node)
                elif attribute.type == onnx.AttributeProto.GRAPHS:
                    pending += [graph.node for graph in attribute.graphs]
