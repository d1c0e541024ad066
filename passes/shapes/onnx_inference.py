"""ONNX's shape inference, which nothing else calls: with what it gets wrong corrected, and in limits of memory."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from typing import Any

import onnx

from passes.isolation import limits, value_messages, worker
from passes.isolation.failure import NativeFailure
from passes.isolation.messages import Array, Message
from passes.isolation.process import Reason
from passes.shapes.corrections import apply
from passes.shapes.corrections.nodes import Surroundings, subgraphs, with_nested
from passes.shapes.fatal import FATAL, refuse_fatal

_STANDARD = ("", "ai.onnx")
_SECONDS = 300.0
"""The time limit of an isolated inference, if the user gives none."""
_PROPAGATED = 2 << 30
"""The most bytes that propagating values of shapes may take: what exceeds it are lists that are no shapes."""
MAX_LIST = 2**16
"""With longer lists than this, ONNX must not propagate the values of shapes."""
_MOST_ELEMENTS = 2**20
"""The most elements of all lists together that are propagated in a process without limits."""


FAILURES = (onnx.shape_inference.InferenceError, onnx.checker.ValidationError)
"""The errors that ONNX's inference raises for a model that it rejects."""


class UnknownLists(Exception):
    """Raised if only propagation tells how long the lists become that it propagates."""


def infer_shapes(
    model: onnx.ModelProto, *, data_prop: bool = False, limited: bool = True, **options: bool
) -> onnx.ModelProto:
    """Run `onnx.shape_inference.infer_shapes`, with values of shapes propagated only if it helps, in short lists.

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
    nodes = list(Surroundings(model.graph, apply.opset_of(model)).nodes())
    present = [{(node.message.domain, node.message.op_type) for node in nodes}]
    present += [{(node.domain, node.op_type) for node in with_nested(function.node)} for function in model.functions]
    operators = {op_type for operators in present for _, op_type in operators}
    if not operators.isdisjoint(FATAL):
        refuse_fatal(model)
    model = _with_imports(model, [{domain for domain, _ in operators} for operators in present])

    def infer(propagate: bool) -> onnx.ModelProto:
        def run(model: onnx.ModelProto) -> onnx.ModelProto:
            with _as_failures():
                return onnx.shape_inference.infer_shapes(model, data_prop=propagate, **options)

        if operators.isdisjoint(apply.OPERATORS):
            return run(model)
        return apply.infer(model, nodes, run, propagates=propagate)

    inferred = infer(False)
    if not data_prop or longest_list(model) > MAX_LIST:
        return inferred
    sizes = {dim.dim_param for value in model.graph.input for dim in value.type.tensor_type.shape.dim if dim.dim_param}
    shapes = list(_shapes(inferred.graph, sizes))
    if all(shape is not None and None not in shape for shape in shapes):
        return inferred
    if any(_is_long(kind) for kind in _types(inferred.graph)):
        return inferred
    lengths = [shape[0] for shape in shapes if shape is not None and len(shape) == 1]
    known = [length for length in lengths if length is not None]
    unknown = None in shapes or None in lengths or bool(model.functions)
    if not limited and (unknown or sum(known) > _MOST_ELEMENTS):
        raise UnknownLists
    return infer(True)


def infer_limited(model: onnx.ModelProto, propagate: bool, *, isolated: bool) -> onnx.ModelProto:
    """Infer a model with limits of time and memory, unless it is known to need little of both.

    Where propagation exceeds that of memory, or crashes, nothing is propagated: ONNX does not check every allocation.

    Args:
        model: not changed.
        propagate: whether to propagate the values of shapes.
        isolated: whether it may take long.

    Raises:
        InferenceError: the model is not valid, or inference crashes.
        NativeFailure: a limit of time or memory was exceeded.
    """
    try:
        return _isolated(model, propagate) if isolated else infer_shapes(model, data_prop=propagate, limited=False)
    except UnknownLists:
        return _isolated(model, propagate)


def _isolated(model: onnx.ModelProto, propagate: bool) -> onnx.ModelProto:
    arrays = {"model": value_messages.from_bytes(model.SerializeToString())}
    bounds = limits.current(_SECONDS)
    if propagate:
        bounds = bounds.growing_at_most(_PROPAGATED)
    try:
        (reply, results), _ = worker.shared().call(
            __name__, {"propagate": propagate}, arrays, limits=bounds, library="ONNX's inference"
        )
    except NativeFailure as failure:
        if propagate and failure.reason is not Reason.TIMEOUT:
            return _isolated(model, propagate=False)
        if failure.reason is not Reason.DIED:
            raise
        raise onnx.shape_inference.InferenceError(failure.what) from None
    if "error" in reply:
        raise onnx.shape_inference.InferenceError(reply["error"])
    inferred = onnx.ModelProto()
    inferred.ParseFromString(results["model"].tobytes())
    return inferred


def answer(request: dict[str, Any], arrays: dict[str, Array]) -> Message:
    """Return the model with inferred types and shapes, or why it is not valid, for `passes.isolation.worker`."""
    model = onnx.ModelProto.FromString(arrays["model"].tobytes())
    try:
        result = infer_shapes(model, data_prop=request["propagate"])
    except FAILURES as error:
        return {"error": str(error)}, {}
    return {}, {"model": value_messages.from_bytes(result.SerializeToString())}


def _with_imports(model: onnx.ModelProto, domains: Sequence[Set[str]]) -> onnx.ModelProto:
    """Return a model whose main graph and functions import ``domains``; without them ONNX infers nothing."""
    scopes = (model, *model.functions)
    missing = [
        {domain for domain in used if domain not in _STANDARD}.difference(entry.domain for entry in scope.opset_import)
        for scope, used in zip(scopes, domains, strict=True)
    ]
    if not any(missing):
        return model
    completed = onnx.ModelProto()
    completed.CopyFrom(model)
    for scope, names in zip((completed, *completed.functions), missing, strict=True):
        scope.opset_import.extend(onnx.helper.make_opsetid(name, 1) for name in sorted(names))
    return completed


def _types(graph: onnx.GraphProto) -> Iterator[onnx.TypeProto]:
    """Yield the types of all values that are known, with those of subgraphs."""
    for info in (*graph.input, *graph.value_info, *graph.output):
        yield info.type
    for node in graph.node:
        for inner in subgraphs(node):
            yield from _types(inner)


def _is_long(kind: onnx.TypeProto) -> bool:
    """Return whether a value is a list whose elements ONNX must not propagate."""
    dims = kind.tensor_type.shape.dim
    return len(dims) == 1 and dims[0].dim_value > MAX_LIST


def _shapes(graph: onnx.GraphProto, sizes: Set[str]) -> Iterator[list[int | None] | None]:
    """Yield the known shapes of the results of all inferred nodes, also in subgraphs; the open ``sizes`` count as 0."""

    def size(dim: onnx.TensorShapeProto.Dimension) -> int | None:
        return int(dim.dim_value) if dim.HasField("dim_value") else 0 if dim.dim_param in sizes else None

    infos = {info.name: info.type for info in (*graph.value_info, *graph.output)}
    for node in graph.node:
        for name in filter(None, node.output):
            kind = infos.get(name, onnx.TypeProto())
            if kind.WhichOneof("value") in (None, "tensor_type"):  # others are not propagated
                yield list(map(size, kind.tensor_type.shape.dim)) if kind.tensor_type.HasField("shape") else None
        for inner in subgraphs(node):
            yield from _shapes(inner, sizes)


def infer_node_outputs(
    node: onnx.NodeProto,
    types: dict[str, onnx.TypeProto],
    data: dict[str, onnx.TensorProto],
    *,
    opsets: Mapping[str, int],
    ir_version: int,
    corrected: bool = True,
) -> dict[str, onnx.TypeProto]:
    """Run `onnx.shape_inference.infer_node_outputs`, by the versions of domains; raises like `infer_shapes`."""
    refuse_fatal(onnx.ModelProto(graph=onnx.GraphProto(node=[node])))

    def run(node: onnx.NodeProto, opset: int) -> dict[str, onnx.TypeProto]:
        versions = {**opsets, "": opset}
        schema = onnx.defs.get_schema(node.op_type, versions[node.domain], node.domain)
        imports = [onnx.helper.make_opsetid(*version) for version in versions.items()]
        with _as_failures():
            return onnx.shape_inference.infer_node_outputs(
                schema, node, types, data, opset_imports=imports, ir_version=ir_version
            )

    return apply.infer_node(node, types, data, opsets.get("", 1), run, corrected=corrected)


@contextmanager
def _as_failures() -> Iterator[None]:
    """Raise what ONNX's code raises for a model that it rejects as `FAILURES`: errors of containers have other types,
    and if a message quotes bytes that are not UTF-8, it is that of their decoder."""
    try:
        yield
    except FAILURES:
        raise
    except (RuntimeError, ValueError, IndexError, OverflowError) as error:
        raise onnx.shape_inference.InferenceError(str(error)) from error


_PROPAGATES = frozenset(
    ("Abs", "Add", "Cast", "Ceil", "Concat", "Div", "Floor", "Gather", "Identity", "Max", "Min", "Mod", "Mul", "Neg")
) | {"Reshape", "Slice", "Squeeze", "Sub", "Unsqueeze", "Where"}
"""Operators whose results have values that are propagated, if all inputs have."""
_AXES = 64
"""More than any tensor has."""
_Key = tuple[str, str, str]


def longest_list(model: onnx.ModelProto) -> int:
    """Return an upper bound of the elements of the lists that are propagated; ``model`` has no recursive functions.

    ONNX's inference holds each element as a message: thirty Concats, each of the one before with itself, make 2³⁰.
    """
    functions = {(function.domain, function.name, function.overload): function for function in model.functions}
    return _Lists(functions, {}).of_graph(model.graph, {})


class _Lists:
    """The bounds of all lists, by the names of values; a value without data has none.

    ``factors``: how many times longer than the longest input a list of a function may be, if known.
    """

    def __init__(self, functions: Mapping[_Key, onnx.FunctionProto], factors: dict[_Key, int]) -> None:
        self._functions, self._factors = functions, factors

    def of_graph(self, graph: onnx.GraphProto, outer: Mapping[str, int]) -> int:
        """Return the longest list of a graph and its subgraphs."""
        given = {tensor.name: max(1, *tensor.dims) if tensor.dims else 1 for tensor in graph.initializer}
        return self._longest(graph.node, {**outer, **given})

    def _longest(self, nodes: Iterable[onnx.NodeProto], sizes: dict[str, int]) -> int:
        longest = max(sizes.values(), default=0)
        for node in nodes:
            size = self._size(node, sizes)
            for attribute in node.attribute:
                for graph in (*([attribute.g] if attribute.HasField("g") else []), *attribute.graphs):
                    longest = max(longest, self.of_graph(graph, sizes))
            if size:
                sizes |= dict.fromkeys(node.output, size)
                longest = max(longest, size)
        return longest

    def _size(self, node: onnx.NodeProto, sizes: Mapping[str, int]) -> int:
        inputs = [sizes.get(name, 0) for name in node.input if name]
        key = (node.domain, node.op_type, node.overload)
        if key in self._functions:
            return max(1, *inputs, 1) * self._factor(key)
        if node.op_type == "Constant":
            tensors = [
                max(1, *attribute.t.dims) if attribute.t.dims else 1
                for attribute in node.attribute
                if attribute.HasField("t")
            ]
            return max(1, *tensors, *(len(attribute.ints) for attribute in node.attribute), 1)
        if node.op_type in ("Shape", "Size"):
            return _AXES
        if node.op_type not in _PROPAGATES or not inputs or not all(inputs):
            return 0
        return sum(inputs) if node.op_type == "Concat" else max(inputs)

    def _factor(self, key: _Key) -> int:
        if key not in self._factors:
            function = self._functions[key]
            self._factors[key] = self._longest(function.node, dict.fromkeys(function.input, 1))
        return self._factors[key]
