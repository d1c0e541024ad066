"""One node in another opset, as far as possible by ONNX's own version converter.

The converter takes whole models, forgets most of what it does not convert, and rewrites by neighbourhood; so it is
handed one node at a time, with the types of its inputs and those of them that are small constants. It is asked only for
the steps that change something for the node, since it knows no way for many that do not. What it returns is taken only
if it is valid there, and has outputs of the same types and shapes. Equal nodes are converted once.
"""

from __future__ import annotations

from dataclasses import dataclass

import onnx
import onnx.version_converter
import onnx_ir as ir

from passes.core.schemas import type_name
from passes.core.text import first_line
from passes.graphs.replacement import inherit
from passes.graphs.scopes import Scope
from passes.graphs.tensors import constant_of
from passes.rewriting.edit import Proposal
from passes.shapes.fatal import FatalInference, refuse_fatal
from passes.shapes.isolated_node import input_name, isolated, output_name
from passes.shapes.onnx_inference import infer_shapes
from passes.specialize import schemas

_CONTROL = {"If", "Loop", "Scan"}
_SOFTMAX = {"Softmax", "LogSoftmax", "Hardmax"}
_UNTYPED = "the types of its inputs are not known, which infer-shapes might find"
_POOLS = {"AveragePool", "LpPool", "MaxPool"}


class UnconvertibleError(Exception):
    """A node has no equivalent in the other opset, or none is known; the message says why."""


@dataclass(frozen=True)
class Converted:
    """The conversion of a node: the replacement, and the node of it that does the work, or does it last (``main``)."""

    proposal: Proposal
    main: ir.Node

    def commit(self, maker: str) -> None:
        """Replace the node; the main new node keeps its name and metadata."""
        node = self.proposal.node
        for old, new in zip(node.outputs, self.proposal.outputs, strict=True):
            if new is not None:
                inherit(new, old)
        self.proposal.commit(maker)
        self.main.name, self.main.doc_string = node.name, node.doc_string
        self.main.metadata_props.update({**node.metadata_props, **self.main.metadata_props})
        self.main.device_configurations = node.device_configurations


class Converter:
    """Converts nodes of one scope to another version of the standard operators (``target``)."""

    def __init__(self, scope: Scope, target: int) -> None:
        self.scope, self.source, self.target = scope, scope.opset(), target
        self._known: dict[bytes, onnx.GraphProto | None] = {}

    def convert(self, node: ir.Node) -> Converted | None:
        """Return the conversion of a node; None if it is valid unchanged.

        Raises:
            UnconvertibleError: why there is nothing that it could become.
        """
        if not changes(node, self.source, self.target, self.scope.model):
            return None
        if node.op_type in _CONTROL:
            self._check_control(node)
            return None
        if node.op_type == "Constant":
            return self._constant(node)
        model = isolated(node, self.scope)
        key = model.SerializeToString(deterministic=True)
        if key not in self._known:
            self._known[key] = self._travel(model)
        graph = self._known[key]
        return self._build(node, graph) if graph is not None else None

    def _travel(self, model: onnx.ModelProto) -> onnx.GraphProto | None:
        """Convert a node opset by opset, up to the target; None if it is valid unchanged."""
        before = onnx.ModelProto()
        before.CopyFrom(model)
        step = 1 if self.target > self.source else -1
        for version in range(self.source, self.target, step):
            if not all(_stays(node, version, version + step) for node in model.graph.node):
                model = _step(model, version, version + step)
        node = before.graph.node[0]
        changed = len(model.graph.node) > 1 or model.graph.node[0] != node
        self._check(before, model)
        return model.graph if changed else None

    def _check(self, before: onnx.ModelProto, after: onnx.ModelProto) -> None:
        """Check that the result is valid, and has the types and shapes of the source."""
        for node in after.graph.node:
            schema = schemas.schema(node.op_type, self.target)
            if schema is None:
                raise UnconvertibleError(f"opset {self.target} has no {node.op_type}")
            for attribute in node.attribute:
                if attribute.name not in schema.attributes:
                    raise UnconvertibleError(f"its {attribute.name} does not exist in opset {self.target}")
        if not all(info.type.WhichOneof("value") for info in before.graph.input):
            if self.target < self.source:
                raise UnconvertibleError(_UNTYPED)
            return
        try:
            old, new = (_inferred(*pair) for pair in ((before, self.source), (after, self.target)))
        except onnx.shape_inference.InferenceError as error:
            raise UnconvertibleError(f"it would not be valid there: {_clean(error)}") from None
        for one, other in zip(old, new, strict=True):
            if _contradict(one.type, other.type):
                raise UnconvertibleError("its output would have another type or shape there")
        if before.graph.node[0].op_type in _POOLS and old[0].type != new[0].type:
            raise UnconvertibleError("the size of its output is computed otherwise there")

    def _check_control(self, node: ir.Node) -> None:
        """Check the types of control flow, which means the same in all opsets; its bodies are converted separately."""
        if node.op_type == "Scan" and min(self.source, self.target) < 9:
            raise UnconvertibleError("Scan of opset 8 has other inputs than later ones")
        for value in (*node.inputs, *node.outputs):
            if value is not None and value.type is not None and not self._takes(node.op_type, value.type):
                raise UnconvertibleError(f"opset {self.target} has no {node.op_type} of {value.type}")

    def _constant(self, node: ir.Node) -> Converted | None:
        """Return a Constant, whose tensor may be large and is not copied; before opset 12 it must be a tensor."""
        tensor = constant_of(node)
        if tensor is None or not self._takes("Constant", ir.TensorType(tensor.dtype)):
            raise UnconvertibleError(f"opset {self.target} has no such constants")
        if "value" in node.attributes or self.target >= 12:
            return None
        made = ir.Node("", "Constant", [], [ir.AttrTensor("value", tensor)], name=self.scope.names.node(f"{node.name}"))
        made.outputs[0].name = self.scope.names.value(f"{node.name}/Constant_output")
        return Converted(Proposal(self.scope, node, made.outputs, [made]), made)

    def _takes(self, op_type: str, kind: ir.TypeProtocol) -> bool:
        """Return whether an operator has inputs or outputs of a type in the target."""
        schema = schemas.schema(op_type, self.target)
        return schema is not None and any(
            _text(kind) in parameter.types for parameter in (*schema.inputs, *schema.outputs)
        )

    def _build(self, node: ir.Node, graph: onnx.GraphProto) -> Converted:
        names = self.scope.names
        values: dict[str, ir.Value | None] = {"": None}
        values.update((input_name(index), value) for index, value in enumerate(node.inputs))
        constants: list[ir.Value] = []
        for proto in graph.initializer:
            if proto.name not in values:
                tensor = ir.serde.deserialize_tensor(proto)
                kind, shape = ir.TensorType(tensor.dtype), ir.Shape(tensor.shape.numpy())
                name = names.value(f"{node.name}/constant")
                constants.append(ir.Value(name=name, type=kind, shape=shape, const_value=tensor))
                values[proto.name] = constants[-1]
        nodes = []
        for proto_node in graph.node:
            base = f"{node.name}/{proto_node.op_type}"
            outputs = [ir.Value(name=names.value(f"{base}_output") if name else "") for name in proto_node.output]
            values.update(zip(proto_node.output, outputs, strict=True))
            attributes = [ir.serde.deserialize_attribute(attribute) for attribute in proto_node.attribute]
            inputs = [values[name] for name in proto_node.input]
            made = ir.Node("", proto_node.op_type, inputs, attributes, outputs=outputs, name=names.node(base))
            nodes.append(made)
        replaced = [values.get(output_name(index)) for index in range(len(node.outputs))]
        main = next((new for new in nodes if new.op_type == node.op_type), nodes[-1])
        return Converted(Proposal(self.scope, node, replaced, nodes, constants), main)


def changes(node: ir.Node, source: int, target: int, model: ir.Model) -> bool:
    """Return whether an operator is redefined between two opsets.

    Raises UnconvertibleError if it is not defined in one of them.
    """
    op_type = node.op_type
    if node.domain != "" or node.op_identifier() in model.functions or not schemas.versions(op_type):
        return False
    first = schemas.versions(op_type)[0]
    if first > source:
        raise UnconvertibleError(f"opset {source}, which the model imports, has no {op_type}")
    if first > target:
        raise UnconvertibleError(f"there is {op_type} only since opset {first}")
    return schemas.is_redefined(op_type, source, target)


def stays(node: ir.Node, source: int, target: int, model: ir.Model) -> bool:
    """Return whether a node has the same meaning in another opset.

    Raises UnconvertibleError if its operator is not defined in one of the two.
    """
    if not changes(node, source, target, model):
        return True
    proto, step = ir.serde.serialize_node(node), 1 if target > source else -1
    return all(_stays(proto, version, version + step) for version in range(source, target, step))


def _stays(node: onnx.NodeProto, source: int, target: int) -> bool:
    """Return whether a node has the same meaning in the next opset."""
    if not schemas.is_redefined(node.op_type, source, target):
        return True
    return (
        schemas.is_same_definition(node.op_type, source, target)
        and schemas.removable_attributes(node, source, target) == []
    )


def _step(model: onnx.ModelProto, source: int, target: int) -> onnx.ModelProto:
    """Convert a model of a node to the next opset."""
    for node in model.graph.node:
        if node.op_type in _SOFTMAX and max(source, target) == 13:
            _check_axis(node, model.graph, source)
        if node.op_type == "GroupNormalization" and max(source, target) == 21:  # the converter does not change it
            raise UnconvertibleError("before opset 21 its scale and bias are those of groups, not of channels")
        name = schemas.unsupported_value(node, source, target)
        if name is not None:
            raise UnconvertibleError(f"opset {target} does not know the value of its {name}")
    if not all(info.type.WhichOneof("value") for info in model.graph.input):
        return _without(model, source, target, _UNTYPED)
    model.ClearField("opset_import")
    model.opset_import.append(onnx.helper.make_opsetid("", source))
    try:
        refuse_fatal(model)
        result = onnx.version_converter.convert_version(model, target)
    except FatalInference as error:
        raise UnconvertibleError(str(error)) from None
    except (RuntimeError, onnx.version_converter.ConvertError) as error:
        return _without(model, source, target, f"no way is known from opset {source} to {target}: {_clean(error)}")
    for node in result.graph.node:
        if node.op_type == "Resize" and (source, target) == (10, 11):  # the converter loses unnamed inputs
            node.attribute.append(onnx.helper.make_attribute("coordinate_transformation_mode", "asymmetric"))
            node.attribute.append(onnx.helper.make_attribute("nearest_mode", "floor"))
        _drop(node, schemas.default_attributes(node, source, target))  # which the converter leaves
    return infer_shapes(result)


def _without(model: onnx.ModelProto, source: int, target: int, obstacle: str) -> onnx.ModelProto:
    """Remove what the next opset implies; raises ``obstacle``, the error of the converter, if that is not all."""
    for node in model.graph.node:
        if schemas.is_redefined(node.op_type, source, target):
            dropped = schemas.removable_attributes(node, source, target)
            if dropped is None:
                raise UnconvertibleError(obstacle)
            _drop(node, dropped)
    return model


def _drop(node: onnx.NodeProto, names: list[str]) -> None:
    for index in reversed(range(len(node.attribute))):
        if node.attribute[index].name in names:
            del node.attribute[index]


def _check_axis(node: onnx.NodeProto, graph: onnx.GraphProto, source: int) -> None:
    """Raise UnconvertibleError if a softmax covers several axes, which the converter respects only when upgrading."""
    if source == 12 and node.op_type != "Hardmax":
        return
    kind = next((info.type.tensor_type for info in graph.input if info.name == node.input[0]), None)
    given = [attribute.i for attribute in node.attribute if attribute.name == "axis"]
    axis = given[0] if given else 1 if source == 12 else -1
    if axis != -1 and (kind is None or not kind.HasField("shape") or axis != len(kind.shape.dim) - 1):
        raise UnconvertibleError(f"before opset 13 {node.op_type} went over all axes from its own on")


def _inferred(model: onnx.ModelProto, version: int) -> list[onnx.ValueInfoProto]:
    """Return the outputs as inferred from the inputs alone."""
    bare = onnx.ModelProto()
    bare.CopyFrom(model)
    bare.ClearField("opset_import")
    bare.opset_import.append(onnx.helper.make_opsetid("", version))
    bare.graph.ClearField("value_info")
    for info in bare.graph.output:
        info.ClearField("type")
    return list(infer_shapes(bare, check_type=True, strict_mode=True).graph.output)


def _contradict(one: onnx.TypeProto, other: onnx.TypeProto) -> bool:
    if one.WhichOneof("value") != other.WhichOneof("value"):
        return True
    before, after = one.tensor_type, other.tensor_type
    if before.elem_type != after.elem_type:
        return True
    if not before.HasField("shape") or not after.HasField("shape"):
        return False
    pairs = list(zip(before.shape.dim, after.shape.dim, strict=False))
    sized = [(a.dim_value, b.dim_value) for a, b in pairs if a.HasField("dim_value") and b.HasField("dim_value")]
    return len(before.shape.dim) != len(after.shape.dim) or any(a != b for a, b in sized)


def _text(kind: ir.TypeProtocol) -> str:
    """Return a type as in operator schemas."""
    if isinstance(kind, ir.SequenceType):
        return f"seq({_text(kind.elem_type)})"
    if isinstance(kind, ir.OptionalType):
        return f"optional({_text(kind.elem_type)})"
    return type_name(kind.dtype.value)


def _clean(error: Exception) -> str:
    """Return the converter's message without its source locations."""
    return first_line(error).rpartition(" failed: ")[2].rpartition(": Assertion ")[2]
