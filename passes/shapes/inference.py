"""Types and shapes, inferred by ONNX and ONNX Runtime, without copying weights: the face of the package.

What a model declares is kept; `passes.shapes.declarations` corrects it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

import onnx
import onnx_ir as ir

from passes.core.text import first_line
from passes.graphs.limits import inlined_nodes
from passes.graphs.replacement import merge_shapes
from passes.graphs.scopes import Scope
from passes.graphs.tensors import tensor_proto
from passes.graphs.traversal import operands_of
from passes.shapes import onnx_inference
from passes.shapes.runtime_inference import ask
from passes.shapes.skeleton import (
    SMALL,
    Known,
    Skeleton,
    distinct_names,
    inferred,
    is_undisputed,
    message,
    overridable,
    read,
)

_MOST_HERE = 2**12
"""The most nodes after inlining functions, which may stand for many more than a file holds, that inference processes in
the caller, without limits."""
FAILURES = (*onnx_inference.FAILURES, ir.serde.SerdeError)
"""The errors that `run` raises for a model that ONNX rejects or `onnx_ir` cannot write (sparse attributes)."""


@dataclass
class Inferred:
    """The result of an inference: the values of which more is known than before, and why it failed, if it did."""

    learned: list[ir.Value] = field(default_factory=list)
    error: str = ""


def infer(
    model: ir.Model,
    *,
    commit: Callable[[], bool] = lambda: True,
    propagate: bool = True,
    known: Mapping[ir.Value, Known] | None = None,
) -> Inferred:
    """Merge inferred types and shapes into the values of the main graph and its subgraphs.

    Args:
        model: its values' types and shapes are changed in place.
        commit: called once, before the first change; if it returns False, nothing changes.
        propagate: whether ONNX may propagate the values of shapes.
        known: the result of an inference that has run already (`passes.rewriting.base.Context`).
    """
    if not any(_is_open(value) for node in Scope(model, model.graph).nodes() for value in node.outputs):
        return Inferred()
    try:
        known = run(model, declared=True, propagate=propagate, wanted=_is_open) if known is None else known
    except FAILURES as error:
        return Inferred(error=first_line(error))
    return Inferred(_learn({value: more for value, more in known.items() if _is_open(value)}, commit))


def infer_foreign(model: ir.Model) -> list[ir.Value]:
    """Complete types and shapes of values of the main graph by what ONNX Runtime infers.

    Returns:
        The changed values; none if there is no foreign operator, or ONNX Runtime rejects the model.
    """
    unknown = [value for node in model.graph for value in node.outputs if value.name and not _is_known(value)]
    return _learn(ask(model, unknown))


def infer_node(node: ir.Node, scope: Scope) -> None:
    """Infer the outputs of one node, which need not be in a graph; its values must have names."""
    if not onnx.defs.has(node.op_type, scope.opset(node.domain), node.domain):
        return
    try:
        kinds = ask_node(node, scope)
    except FAILURES:  # also if the types of inputs are unknown
        return
    for value in node.outputs:
        info = onnx.ValueInfoProto(name=value.name or "", type=kinds.get(value.name or ""))
        value.type, value.shape = _update(value, *read(info)) or (value.type, value.shape)


def ask_node(node: ir.Node, scope: Scope, *, sized: bool = True, corrected: bool = True) -> dict[str, onnx.TypeProto]:
    """Return the types of the outputs of one node by name; raises `FAILURES`.

    Args:
        node: its operator is defined in the scope's opset, and its values have names.
        sized: whether the sizes of its inputs are considered, besides those of constants, lists and strings.
        corrected: whether a node that ONNX gets wrong is inferred at all (`passes.shapes.corrections`).
    """
    types, data = {}, {}
    for value in operands_of(node):
        kind = types[str(value.name)] = ir.serde.serialize_value(value).type
        tensor = scope.constant(value)
        if tensor is None and value.producer() is None and not value.is_graph_input():
            tensor = value.const_value  # a constant of a proposal, which is in no graph yet
        if tensor is not None and tensor.nbytes <= SMALL:
            data[str(value.name)] = tensor_proto(tensor, str(value.name))
        dims = kind.tensor_type.shape.dim
        for dim in dims if tensor is None and not sized and len(dims) > 1 and value.dtype != ir.DataType.STRING else ():
            dim.Clear()
    proto, ir_version = ir.serde.serialize_node(node), scope.model.ir_version
    return onnx_inference.infer_node_outputs(
        proto, types, data, opsets=scope.opset_imports, ir_version=ir_version, corrected=corrected
    )


def infer_after(values: Iterable[ir.Value], scope: Scope) -> None:
    """Infer unknown types and shapes after ``values``, whose own have become known."""
    work = deque(use.node for value in values for use in value.uses())
    while work:
        node = work.popleft()
        unknown = [value for value in node.outputs if _is_open(value)]
        if not unknown:
            continue
        before = [(value.type, value.shape) for value in node.outputs]
        infer_node(node, scope)
        for value, (kind, shape) in zip(node.outputs, before, strict=True):
            if value not in unknown:
                value.type, value.shape = kind, shape
            elif (value.type, value.shape) != (kind, shape):
                work.extend(use.node for use in value.uses())


def run(
    model: ir.Model, *, declared: bool, propagate: bool, wanted: Callable[[ir.Value], bool] = lambda _: True
) -> dict[ir.Value, Known]:
    """Run ONNX's inference; return the values of the model with their inferred types and shapes.

    Args:
        model: not changed.
        declared: whether to build on the types and shapes that values have, besides those of inputs.
        propagate: whether ONNX propagates the values of shapes, if that takes little memory.
        wanted: tells of a value whether its type and shape are read.

    Raises:
        FAILURES: the model is not valid.
        NativeFailure: a limit of time or memory was exceeded.
    """
    proto = message(model)
    with distinct_names(model) as shared:
        skeleton = Skeleton(declared, shared | overridable(model), model.functions.keys(), for_onnx=True)
        skeleton.write(model.graph, proto.graph)
        isolated = bool(model.functions) and inlined_nodes(model) > _MOST_HERE
        result = onnx_inference.infer_limited(proto, propagate, isolated=isolated)
        return {value: read(info) for value, info in inferred(model.graph, result.graph) if wanted(value)}


def _is_known(value: ir.Value) -> bool:
    return value.type is not None and value.shape is not None and value.shape.is_static()


def _is_open(value: ir.Value) -> bool:
    return bool(value.name) and not _is_known(value) and is_undisputed(value)


def _update(value: ir.Value, kind: ir.TypeProtocol | None, shape: ir.Shape | None) -> Known | None:
    """Return the merged type and shape of a value; None if what was inferred adds nothing."""
    if _is_known(value):
        return None
    merged = merge_shapes(value.shape, shape) if shape is not None else value.shape
    kind = value.type if value.type is not None else kind
    return (kind, merged) if kind is not value.type or merged != value.shape else None


def _learn(known: Mapping[ir.Value, Known], commit: Callable[[], bool] = lambda: True) -> list[ir.Value]:
    """Merge what is known of values into them; return the changed ones, none if ``commit`` returns False."""
    updates = {value: update for value, more in known.items() if (update := _update(value, *more))}
    if not updates or not commit():
        return []
    for value, (kind, shape) in updates.items():
        value.type, value.shape = kind, shape
    return list(updates)
