"""Types and shapes by ONNX's own inference, without copying weights.

`onnx.shape_inference` takes a serialized model, so a model is first reduced to its skeleton: structure, types, and
those constants that are small enough to be shapes, axes and the like.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Set
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count

import onnx
import onnx_ir as ir

from passes.graphs import loops
from passes.graphs.limits import inlined_nodes
from passes.graphs.replacement import merge_shapes
from passes.graphs.scopes import DISPUTED, Scope, values_of
from passes.graphs.tensors import constant_of, tensor_proto, write_info
from passes.graphs.traversal import operands_of
from passes.isolation import limits, value_messages, worker
from passes.isolation.failure import NativeFailure
from passes.isolation.process import Reason
from passes.shapes import onnx_inference
from passes.shapes.corrections import misread_operands
from passes.shapes.corrections.proto_nodes import DETACHED

SMALL = 1024
"""The most bytes of a constant that inference may read."""
_MOST_HERE = 2**12
"""The most nodes after inlining functions, which may stand for many more than a file holds, that inference processes in
the caller, where it has no limits."""
_SECONDS = 300.0
"""The time limit beyond, where the user gives none."""
_PROPAGATED = 2 << 30
"""The most bytes that propagating values of shapes may take: what exceeds it are lists that are no shapes."""
FAILURES = (*onnx_inference.FAILURES, ir.serde.SerdeError)
"""What `run` raises for a model that ONNX's inference rejects, or that `onnx_ir` cannot write: sparse attributes."""

Known = tuple[ir.TypeProtocol | None, ir.Shape | None]
"""A type and a shape, as far as they are known."""


@dataclass
class Inferred:
    """What `infer` found.

    Attributes:
        learned: values whose types or shapes are known better than before.
        error: why inference failed; empty if it did not.
    """

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

    What is declared is kept: `passes.shapes.declarations.settle` corrects it, which is needed once for a model.

    Args:
        model: its values' types and shapes are changed in place.
        commit: called once, before the first change; if it returns False, nothing changes.
        propagate: whether ONNX may propagate the values of shapes. It then processes every list of numbers element
            by element, so it is disabled if there are long lists.
        known: what inference finds, where it has run already (`passes.rewriting.base.Context`).
    """
    result = Inferred()
    if not any(_is_open(value) for node in Scope(model, model.graph).nodes() for value in node.outputs):
        return result
    updates: dict[ir.Value, Known] = {}
    try:
        if known is None:
            propagate = propagate and not any(is_long(value.shape) for value in values_of(model))
            inferred = run(model, declared=True, propagate=propagate)
            known = {value: read(info) for value, info in inferred if _is_open(value)}
        for value, found in known.items():
            update = _update(value, *found) if _is_open(value) else None
            if update is not None:
                updates[value] = update
    except FAILURES as error:
        return Inferred(error=first_line(error))
    if updates and commit():
        for value, (kind, shape) in updates.items():
            value.type, value.shape = kind, shape
        result.learned = list(updates)
    return result


def infer_node(node: ir.Node, scope: Scope) -> None:
    """Infer the outputs of one node, which need not be in a graph; its values must have names."""
    try:
        schema = onnx.defs.get_schema(node.op_type, scope.opset(node.domain), node.domain)
    except onnx.defs.SchemaError:
        return
    types, data = {}, {}
    for value in operands_of(node):
        types[str(value.name)] = ir.serde.serialize_value(value).type
        tensor = scope.constant(value)
        if tensor is None and value.producer() is None and not value.is_graph_input():
            tensor = value.const_value  # a constant of a proposal, which is in no graph yet
        if tensor is not None and tensor.nbytes <= SMALL:
            data[str(value.name)] = tensor_proto(tensor, str(value.name))
    imports = [onnx.helper.make_opsetid(domain, version) for domain, version in scope.opset_imports.items()]
    proto = ir.serde.serialize_node(node)
    misread_operands.write(node, proto, scope)
    if proto.op_type != node.op_type:
        return
    try:
        inferred = onnx_inference.infer_node_outputs(
            schema,
            proto,
            types,
            data,
            opset=scope.opset(),
            opset_imports=imports,
            ir_version=scope.model.ir_version,
        )
    except FAILURES:  # also where the types of inputs are unknown
        return
    for value in node.outputs:
        info = onnx.ValueInfoProto(name=value.name or "", type=inferred.get(value.name or ""))
        value.type, value.shape = _update(value, *read(info)) or (value.type, value.shape)


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


def first_line(error: Exception) -> str:
    """The first line of an exception's message."""
    return str(error).strip().partition("\n")[0]


DOMAINS = ("", "ai.onnx.ml")
"""The domains whose operators ONNX infers; of others, what is declared is taken."""
Found = onnx.ValueInfoProto | ir.TensorProtocol
"""What inference says of a value; the tensor itself of a constant. See `read`."""


def run(model: ir.Model, *, declared: bool, propagate: bool) -> Iterator[tuple[ir.Value, Found]]:
    """Run inference; yields the values of the model with their inferred types and shapes.

    Args:
        model: not changed.
        declared: whether to build on the types and shapes that values have, besides those of inputs.
        propagate: whether ONNX propagates the values of shapes.
    """
    proto = onnx.ModelProto(ir_version=max(model.ir_version, 4))  # so that initializers need not be inputs
    proto.opset_import.extend(
        onnx.helper.make_opsetid(*each) for each in Scope(model, model.graph).opset_imports.items()
    )
    for function in model.functions.values():
        ir.serde.serialize_function_into(proto.functions.add(), function)
    with _distinct_names(model) as shared:
        variable = shared | overridable(model)
        skeleton = Skeleton(declared, variable, model.functions.keys(), Scope(model, model.graph))
        skeleton.write(model.graph, proto.graph)
        multiplied = bool(model.functions) and inlined_nodes(model) > _MOST_HERE
        inferred = _infer_isolated(proto, propagate) if multiplied else _infer(proto, propagate)
        pairs = list(_pairs(model.graph, inferred.graph))
    yield from pairs


def _infer(model: onnx.ModelProto, propagate: bool) -> onnx.ModelProto:
    """`passes.shapes.onnx_inference.infer_shapes` in the caller, if it is known to need little memory."""
    try:
        return onnx_inference.infer_shapes(model, data_prop=propagate, limited=False)
    except onnx_inference.UnknownLists:
        return _infer_isolated(model, propagate)


def _infer_isolated(model: onnx.ModelProto, propagate: bool) -> onnx.ModelProto:
    """`passes.shapes.onnx_inference.infer_shapes` in a process with limits.

    Where propagation exceeds that of memory, or crashes, nothing is propagated: ONNX does not check every allocation.

    Raises:
        InferenceError: the model is not valid, or inference crashes.
        NativeFailure: a limit of time or memory was exceeded.
    """
    arrays = {"model": value_messages.from_bytes(model.SerializeToString())}
    request, bounds = {"propagate": propagate}, limits.current(_SECONDS)
    if propagate:
        bounds = bounds.growing_at_most(_PROPAGATED)
    try:
        (answer, found), _ = worker.shared().call(
            "passes.shapes.inference_server", request, arrays, limits=bounds, library="ONNX's inference"
        )
    except NativeFailure as failure:
        if propagate and failure.reason is not Reason.TIMEOUT:
            return _infer_isolated(model, propagate=False)
        if failure.reason is not Reason.DIED:
            raise
        raise onnx.shape_inference.InferenceError(failure.what) from None
    if "error" in answer:
        raise onnx.shape_inference.InferenceError(answer["error"])
    inferred = onnx.ModelProto()
    inferred.ParseFromString(found["model"].tobytes())
    return inferred


@contextmanager
def _distinct_names(model: ir.Model) -> Iterator[set[str]]:
    """Give values of subgraphs that have the names of others their own: ONNX knows one type, and one list of elements,
    for each name. Yields those names that only initializers share, which keep them."""
    taken: set[str | None] = set()
    shared: set[str] = set()
    again: dict[ir.Value, str] = {}
    for value in values_of(model):
        if value.name and value.name in taken:
            if value.is_initializer():
                shared.add(value.name)
            else:
                again[value] = value.name
        taken.add(value.name)
    for value in values_of(model) if shared else ():
        if value.name in shared and not value.is_initializer():
            again[value] = str(value.name)
    numbers = count()
    for value, name in again.items():
        value.name = next(new for number in numbers if (new := f"{name} {number}") not in taken)
    try:
        yield shared
    finally:
        for value, name in again.items():
            value.name = name


def overridable(model: ir.Model) -> set[str]:
    """The names of initializers that callers may replace, whose elements are no constants."""
    scope = Scope(model, model.graph)
    return {str(each.name) for each in model.graph.inputs if each.is_initializer() and not scope.is_parameter(each)}


@dataclass(frozen=True)
class Skeleton:
    """How a model is written for inference: its structure, types, and small constants; of other constants, the type.

    Attributes:
        declared: include known types and shapes of results.
        variable: names of initializers of which only the type is written (`overridable`).
        functions: those of the model, through which ONNX infers.
        scope: of the main graph, if it is ONNX that infers: what it would misread is written otherwise.
    """

    declared: bool
    variable: Set[str]
    functions: Collection[ir.OperatorIdentifier] = ()
    scope: Scope | None = None

    def write(self, graph: ir.Graph, proto: onnx.GraphProto) -> None:
        """Write a graph with its subgraphs."""
        proto.name = graph.name or "graph"
        for value in graph.inputs:
            write_info(value, proto.input.add())
        for value in graph.initializers.values():
            if value.const_value is None or (value.is_graph_input() and value.name in self.variable):
                continue
            _constant(value, value.const_value, proto, most=-1 if value.name in self.variable else SMALL)
        for node in graph:
            tensor = constant_of(node)
            if tensor is not None:
                _constant(node.outputs[0], tensor, proto)
                continue
            self._write_node(node, proto.node.add())
            for value in node.outputs:
                known = value.name and value.type is not None and not value.is_graph_output() and _is_undisputed(value)
                if known and (self.declared or self._is_beyond_onnx(value, node)):
                    ir.serde.serialize_value_into(proto.value_info.add(), value)
        for value in graph.outputs:
            info = proto.output.add()
            write_info(value, info)
            producer = value.producer()
            tensor = value.const_value or (constant_of(producer) if producer is not None else None)
            if tensor is not None and not value.is_graph_input():
                info.type.CopyFrom(onnx.helper.make_tensor_type_proto(tensor.dtype.value, tensor.shape.numpy()))
                continue
            known = self.declared or value.is_graph_input()  # which ONNX would take for what its output says
            known |= producer is not None and producer.graph is graph and self._is_beyond_onnx(value, producer)
            if info.type.HasField("tensor_type") and not (known and _is_undisputed(value)):
                info.type.tensor_type.ClearField("shape")

    def _is_beyond_onnx(self, value: ir.Value, node: ir.Node) -> bool:
        """Whether ONNX does not infer its shape: after foreign operators, and of what a loop carries."""
        foreign = node.domain not in DOMAINS and node.op_identifier() not in self.functions
        return foreign or value in loops.carried_outputs(node)

    def _write_node(self, node: ir.Node, proto: onnx.NodeProto) -> None:
        proto.op_type, proto.domain, proto.overload = node.op_type, node.domain, node.overload
        if node.domain == "com.microsoft" and node.op_type in ("QuantizeLinear", "DequantizeLinear"):
            proto.domain = ""  # inference is the same as for ONNX's, and ONNX does not have these
        proto.input.extend("" if value is None else str(value.name) for value in node.inputs)
        proto.output.extend(value.name or "" for value in node.outputs)
        for attribute in node.attributes.values():
            if attribute.type == ir.AttributeType.GRAPH and not attribute.is_ref():
                graph = proto.attribute.add(name=attribute.name, type=onnx.AttributeProto.GRAPH).g
                self.write(attribute.as_graph(), graph)
            else:
                proto.attribute.append(ir.serde.serialize_attribute(attribute))
        if self.scope is not None:
            misread_operands.write(node, proto, self.scope)
            for index, value in enumerate(loops.carried_outputs(node)):
                if value.name and not isinstance(value.type, ir.TensorType | None):
                    proto.output[index] += DETACHED  # ONNX says that the elements of sequences stay as they enter


def _is_undisputed(value: ir.Value) -> bool:
    return DISPUTED not in value.meta


def _constant(value: ir.Value, tensor: ir.TensorProtocol, proto: onnx.GraphProto, *, most: int = SMALL) -> None:
    """Add a constant: with its elements if these are at most so many bytes, else by its type."""
    if tensor.nbytes <= most:
        proto.initializer.append(tensor_proto(tensor, value.name or ""))
    else:
        kind = onnx.helper.make_tensor_type_proto(tensor.dtype.value, tensor.shape.numpy())
        proto.value_info.add(name=value.name or "", type=kind)


def _pairs(graph: ir.Graph, proto: onnx.GraphProto) -> Iterator[tuple[ir.Value, Found]]:
    """The values of a graph and of its subgraphs, each with what was inferred."""
    found = {info.name: info for info in (*proto.value_info, *proto.output)}
    protos = iter(proto.node)
    for node in graph:
        tensor = constant_of(node)
        if tensor is not None:
            yield node.outputs[0], tensor
            continue
        inner = next(protos)
        for value in node.outputs:
            if value.name in found:
                yield value, found[value.name]
        for attribute in inner.attribute:
            if attribute.type == onnx.AttributeProto.GRAPH:
                yield from _pairs(node.attributes[attribute.name].as_graph(), attribute.g)


def read(info: Found) -> Known:
    """The type and the shape that inference found; None for what it did not find."""
    if not isinstance(info, onnx.ValueInfoProto):
        return ir.TensorType(info.dtype), ir.Shape(info.shape.numpy())
    if info.type.WhichOneof("value") == "tensor_type":  # written out: onnx_ir's own way takes three times as long
        tensor, denotation = info.type.tensor_type, info.type.denotation or None
        kind = ir.TensorType(ir.DataType(tensor.elem_type), denotation=denotation) if tensor.elem_type else None
        return kind, ir.Shape(map(_dim, tensor.shape.dim)) if tensor.HasField("shape") else None
    other, shape = (
        ir.serde.deserialize_type_proto_for_type(info.type),
        ir.serde.deserialize_type_proto_for_shape(info.type),
    )
    if shape is not None:
        shape = ir.Shape([dim if isinstance(dim, int) or not _is_generated(dim.value) else None for dim in shape])
    return None if other is None or other.dtype == ir.DataType.UNDEFINED else other, shape


def _dim(dim: onnx.TensorShapeProto.Dimension) -> int | str | None:
    """A size, its name, or None."""
    if dim.HasField("dim_value"):
        return int(dim.dim_value)
    return str(dim.dim_param) if dim.HasField("dim_param") and not _is_generated(dim.dim_param) else None


def _is_generated(name: str | None) -> bool:
    """Whether inference made up the name of a size: it has no meaning, and differs from run to run."""
    return (name or "").startswith("unk__")


def _is_known(value: ir.Value) -> bool:
    return value.type is not None and value.shape is not None and value.shape.is_static()


def _is_open(value: ir.Value) -> bool:
    """Whether inference may say more of a value."""
    return bool(value.name) and not _is_known(value) and _is_undisputed(value)


def is_long(shape: ir.Shape | None) -> bool:
    """Whether it is that of a list whose elements ONNX must not propagate."""
    return shape is not None and len(shape) == 1 and isinstance(shape[0], int) and shape[0] > onnx_inference.MAX_LIST


def _update(value: ir.Value, kind: ir.TypeProtocol | None, shape: ir.Shape | None) -> Known | None:
    """The merged type and shape of a value; None if what was inferred adds nothing."""
    if _is_known(value):
        return None
    merged = merge_shapes(value.shape, shape) if shape is not None else value.shape
    kind = value.type if value.type is not None else kind
    return (kind, merged) if kind is not value.type or merged != value.shape else None
