"""ONNX's shape inference, which nothing else calls: models that it never returns from are refused before.

It runs where it is called: `passes.shapes.inference` gives models of many nodes to a process with limits.

Known are three cases, of onnx 1.23. An Einsum of whose equation a term has other than letters, spaces and one ellipsis
is not valid, and the parser of its inference stays at that character, holding the interpreter's lock. A Split into
another number of parts than it has outputs aborts the process, or takes memory for all of them; a GatherND with a
negative number of batch dimensions, and a LayerNormalization along an axis of more than 32 bits, read what is not
there. In functions, each may be an attribute of their callers. What ONNX infers wrongly of some operators is corrected,
each in a module of its own (`_MISTAKEN`).
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Sequence, Set
from contextlib import contextmanager
from functools import partial
from typing import Any

import onnx

from passes.graphs.limits import MAX_RANK
from passes.shapes.corrections import cast_inference, corrected_sizes, if_inference, slice_inference, untyped_inference
from passes.shapes.corrections.proto_nodes import subgraphs, with_nested
from passes.shapes.corrections.shape_data import longest_list

_TERMS = re.compile(rb"[a-zA-Z ]*(\.\.\.[a-zA-Z ]*)?(,[a-zA-Z ]*(\.\.\.[a-zA-Z ]*)?)*(->.*)?", re.DOTALL)
_Function = tuple[str, str, str]
_Source = bytes | int | tuple[_Function, str]
"""A string or number, or the attribute of a function that holds it."""
_FATAL = {"Einsum": "equation", "GatherND": "batch_dims", "LayerNormalization": "axis", "Split": "num_outputs"}
"""The attribute by which an operator is fatal to ONNX's inference."""
_MAIN: _Function = ("", "", "")
_STANDARD = ("", "ai.onnx")
_MISTAKEN = (cast_inference, untyped_inference, slice_inference, corrected_sizes, if_inference)
"""What corrects ONNX's inference of some operators; the later are given what the earlier infer."""
MAX_LIST = 2**16
"""With longer lists than this, ONNX must not propagate the values of shapes."""
_MOST_ELEMENTS = 2**20
"""The most elements of all lists together that are propagated in a process without limits."""


FAILURES = (onnx.shape_inference.InferenceError, onnx.checker.ValidationError)
"""What is raised for a model that ONNX's inference rejects."""


class UnknownLists(Exception):
    """Only propagation tells how long the lists become that it propagates."""


class FatalInference(onnx.shape_inference.InferenceError):
    """ONNX's inference would never return, or abort the process."""


class EndlessInference(FatalInference):
    """ONNX's inference would never return.

    Attributes:
        equation: that of the Einsum in question.
    """

    def __init__(self, equation: str) -> None:
        super().__init__(
            f"the equation {equation!r} of an Einsum is not valid: a term has letters and one ellipsis at most"
        )
        self.equation = equation


def infer_shapes(
    model: onnx.ModelProto, *, data_prop: bool = False, limited: bool = True, **options: bool
) -> onnx.ModelProto:
    """`onnx.shape_inference.infer_shapes`, with values of shapes propagated only where it helps, in short lists.

    Args:
        model: not changed.
        data_prop: whether to propagate the values of shapes.
        limited: whether the process has limits of memory, so that lists of unknown lengths may be propagated.
        options: the others of ONNX's function.

    Raises:
        InferenceError: the model is not valid; `FatalInference` where ONNX would not say so.
        ValidationError: likewise.
        UnknownLists: without limits, lists may need too much memory.
    """
    scopes = (model.graph.node, *(each.node for each in model.functions))
    present = [{(node.domain, node.op_type) for node in with_nested(nodes)} for nodes in scopes]
    operators = {op_type for each in present for _, op_type in each}
    if not operators.isdisjoint(_FATAL):
        refuse_fatal(model)
    model = _with_imports(model, [{domain for domain, _ in each} for each in present])
    mistaken = [each for each in _MISTAKEN if not each.OPERATORS.isdisjoint(operators)]

    def infer(propagate: bool) -> onnx.ModelProto:
        def run(model: onnx.ModelProto) -> onnx.ModelProto:
            with _as_failures():
                return onnx.shape_inference.infer_shapes(model, data_prop=propagate, **options)

        for each in mistaken:
            if propagate or each is not cast_inference:
                run = partial(each.infer, run=run)
        return run(model)

    found = infer(False)
    if not data_prop or longest_list(model) > MAX_LIST:
        return found
    sizes = {dim.dim_param for each in model.graph.input for dim in each.type.tensor_type.shape.dim if dim.dim_param}
    shapes = list(_shapes(found.graph, sizes))
    if all(shape is not None and None not in shape for shape in shapes):
        return found
    lengths = [shape[0] for shape in shapes if shape is not None and len(shape) == 1]
    known = [length for length in lengths if length is not None]
    if max(known, default=0) > MAX_LIST:
        return found
    unknown = None in shapes or None in lengths or bool(model.functions)
    if not limited and (unknown or sum(known) > _MOST_ELEMENTS):
        raise UnknownLists
    return infer(True)


def _with_imports(model: onnx.ModelProto, domains: Sequence[Set[str]]) -> onnx.ModelProto:
    """A model with imports of the domains of all nodes, without which ONNX infers nothing, and ONNX Runtime runs it.

    Args:
        model: not changed.
        domains: those of the nodes of the main graph, and of each function.
    """
    scopes = (model, *model.functions)
    missing = [
        {domain for domain in used if domain not in _STANDARD}.difference(each.domain for each in scope.opset_import)
        for scope, used in zip(scopes, domains, strict=True)
    ]
    if not any(missing):
        return model
    completed = onnx.ModelProto()
    completed.CopyFrom(model)
    for scope, names in zip((completed, *completed.functions), missing, strict=True):
        scope.opset_import.extend(onnx.helper.make_opsetid(name, 1) for name in sorted(names))
    return completed


def _shapes(graph: onnx.GraphProto, sizes: Set[str]) -> Iterator[list[int | None] | None]:
    """The shapes of the results of all nodes, with those of subgraphs, as far as known.

    Args:
        graph: after inference.
        sizes: names of sizes that are open; they count as 0.
    """

    def size(dim: onnx.TensorShapeProto.Dimension) -> int | None:
        return int(dim.dim_value) if dim.HasField("dim_value") else 0 if dim.dim_param in sizes else None

    infos = {each.name: each.type for each in (*graph.value_info, *graph.output)}
    for node in graph.node:
        for name in filter(None, node.output):
            kind = infos.get(name, onnx.TypeProto())
            if kind.WhichOneof("value") in (None, "tensor_type"):  # others are not propagated
                yield list(map(size, kind.tensor_type.shape.dim)) if kind.tensor_type.HasField("shape") else None
        for inner in subgraphs(node):
            yield from _shapes(inner, sizes)


def infer_node_outputs(
    schema: onnx.defs.OpSchema,
    node: onnx.NodeProto,
    types: dict[str, onnx.TypeProto],
    data: dict[str, onnx.TensorProto],
    *,
    opset: int,
    **options: Any,
) -> dict[str, onnx.TypeProto]:
    """`onnx.shape_inference.infer_node_outputs` in an opset of ONNX; raises like `infer_shapes`."""
    refuse_fatal(onnx.ModelProto(graph=onnx.GraphProto(node=[node])))

    def by(schema: onnx.defs.OpSchema, node: onnx.NodeProto) -> dict[str, onnx.TypeProto]:
        def run(each: onnx.NodeProto) -> dict[str, onnx.TypeProto]:
            with _as_failures():
                return onnx.shape_inference.infer_node_outputs(schema, each, types, data, **options)

        return untyped_inference.infer_node(node, types, run)

    def sized(node: onnx.NodeProto) -> dict[str, onnx.TypeProto]:
        return corrected_sizes.infer_node(
            node, types, data, lambda each: slice_inference.infer_node(each, schema, opset, by)
        )

    return if_inference.infer_node(node, opset, sized)


@contextmanager
def _as_failures() -> Iterator[None]:
    """Raise what ONNX's code raises for a model that it rejects as `FAILURES`: errors of containers have other types,
    and where a message quotes bytes that are not UTF-8, it is that of their decoder."""
    try:
        yield
    except FAILURES:
        raise
    except (RuntimeError, ValueError, IndexError, OverflowError) as error:
        raise onnx.shape_inference.InferenceError(str(error)) from error


def refuse_fatal(model: onnx.ModelProto) -> None:
    """Check a model that ONNX is given to infer or to convert.

    Raises:
        FatalInference: ONNX would not return.
    """
    for value, operator, outputs in _fatal_values(model):
        if operator == "Split" and value != outputs:
            raise FatalInference(f"a Split has {outputs} outputs, and its num_outputs is {value!r}")
        if operator == "GatherND" and isinstance(value, int) and value < 0:
            raise FatalInference(f"the batch_dims of a GatherND are {value}")
        if operator == "LayerNormalization" and isinstance(value, int) and not -MAX_RANK <= value <= MAX_RANK:
            raise FatalInference(f"the axis of a LayerNormalization is {value}")
        if operator == "Einsum" and isinstance(value, bytes) and not _TERMS.fullmatch(value):
            raise EndlessInference(value.decode(errors="replace"))


def _fatal_values(model: onnx.ModelProto) -> Iterator[tuple[bytes | int, str, int]]:
    """The values of the attributes that may be fatal, with the operators and numbers of outputs of their nodes.

    Those that are attributes of functions have the values of any of their calls.
    """
    functions = {(each.domain, each.name, each.overload): each for each in model.functions}
    given: defaultdict[_Source, list[_Source]] = defaultdict(list)
    pending: list[tuple[_Source, str, int]] = []
    for scope, nodes in ((_MAIN, model.graph.node), *((key, each.node) for key, each in functions.items())):
        for node in with_nested(nodes):
            called = (node.domain, node.op_type, node.overload)
            for attribute in node.attribute if node.op_type in _FATAL or called in functions else ():
                source = (scope, attribute.ref_attr_name) if attribute.ref_attr_name else _value(attribute)
                given[called, attribute.name].append(source)
                if _FATAL.get(node.op_type) == attribute.name and node.domain in _STANDARD:
                    pending.append((source, node.op_type, len(node.output)))
    for key, function in functions.items():
        for attribute in function.attribute_proto:
            given[key, attribute.name].append(_value(attribute))
    seen: set[tuple[_Source, str, int]] = set()
    while pending:
        source, operator, outputs = each = pending.pop()
        if each in seen:
            continue
        seen.add(each)
        if isinstance(source, tuple):
            pending += [(value, operator, outputs) for value in given[source]]
        else:
            yield source, operator, outputs


def _value(attribute: onnx.AttributeProto) -> bytes | int:
    return int(attribute.i) if attribute.type == onnx.AttributeProto.INT else bytes(attribute.s)
