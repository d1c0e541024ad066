"""Replace an operator by the function body that the ONNX standard defines for it.

    y = Op<a=2>(x)        with the standard's body  Op<a>(x) = g(x, beta=@a)        →  y = g(x, beta=2)

The schemas of many operators contain a function body, or build one from a node's attributes and input types. The body
is prepared in a separate model of that node: attributes and their defaults are substituted, the body is converted to
the model's opset if it was written for another, and shape arithmetic and small constants are folded. Equal nodes share
that work. Operators of com.microsoft that the standard has taken over have the body of the standard's.

Skips: bodies that contradict the definition; nodes in functions, whose types are unreliable; inputs of unknown type if
the body depends on types; subgraphs that capture outer values; bodies that cannot be converted to the model's opset.
"""

from __future__ import annotations

import functools
from typing import Any, cast

import onnx
import onnx_ir as ir

from passes.cleanup.fold_constants import FoldConstants
from passes.cleanup.infer_shapes import InferShapes
from passes.cleanup.inline_constant_if import InlineConstantIf
from passes.cleanup.inline_functions import InlineFunctions
from passes.cleanup.remove_dead import RemoveDead
from passes.cleanup.remove_identity import remove_identity
from passes.core.doubts import cached
from passes.core.errors import InputError
from passes.core.schemas import schema_of
from passes.core.text import first_line
from passes.graphs.byte_strings import from_proto
from passes.graphs.scopes import Scope
from passes.graphs.traversal import captures, subgraphs, with_nested
from passes.rewriting.base import Context, Exactness, Skip
from passes.rewriting.edit import Edit
from passes.rewriting.rewrite import NodeRewrite, Replacement
from passes.shapes.isolated_node import input_name, isolated, output_name
from passes.specialize.convert_opset import ConvertOpset

_BODY = "body"
"""The name of the call and the domain of the body while it is a function of the prepared model."""
_ROUNDS = 4
"""How often constants are folded again after an If was inlined."""


_WRONG = frozenset({("", "Bernoulli")})
"""Operators whose body contradicts their definition: Bernoulli's returns 1 with probability 1 − p."""
_TRUNCATED = frozenset({"ReduceL2", "ReduceLogSum", "ReduceLogSumExp"})
"""Reductions whose result for integers is truncated, so that a rounding error changes it by one."""
_ADOPTED = {("com.microsoft", "CausalConvWithState"): 27, ("com.microsoft", "LinearAttention"): 27}
"""The operators that the standard has taken over, with the opset since which it has them."""
_ZERO = ("channels_last", "input_channel_offset", "input_channels", "state_length", "state_update_capacity")
_NEUTRAL = {"dilation": 1, "ndim": 1, "state_channels_last": -1, "state_window": 0, **dict.fromkeys(_ZERO, 0)}
"""The attributes of these that the standard's lack, with the values for which both are the same."""
_CONTAINERS = (ir.SequenceType, ir.OptionalType)
_Schema = Any
"""onnx.defs.OpSchema, whose type stubs lack function bodies."""


class _Expandable:
    """The (domain, operator) pairs with a body; collected on first use."""

    def __get__(self, instance: object, owner: type) -> frozenset[tuple[str, str]]:
        return _expandable()


@functools.cache
def _expandable() -> frozenset[tuple[str, str]]:
    schemas = onnx.defs.get_all_schemas_with_history()
    return frozenset((schema.domain, schema.name) for schema in schemas if _has_body(schema)) - _WRONG | _ADOPTED.keys()


def _has_body(schema: _Schema) -> bool:
    return bool(schema.has_function or schema.has_context_dependent_function)


class ExpandFunctions(NodeRewrite):
    """Replace an operator by the function body that the ONNX standard defines for it."""

    name = "expand-functions"
    exactness = Exactness.ROUNDING
    # not annotated here, so that dataclass does not read the descriptor
    operators = cast("frozenset[tuple[str, str]]", _Expandable())
    tensors_only = False

    def replacement(self, node: ir.Node, edit: Edit) -> Replacement:
        """Copy the nodes of the body, if the operator has one in the model's opset and its input types are known."""
        scope = edit.scope
        adopted = _ADOPTED.get((node.domain, node.op_type))
        version, domain = (scope.opset(node.domain), node.domain) if adopted is None else (adopted, "")
        schema = schema_of(node.op_type, version, domain)
        if schema is None or not _has_body(schema):
            return None
        if scope.function is not None:
            return Skip("types are unknown in a function: run inline-functions first")
        if "" not in scope.opset_imports:
            return Skip("the model does not import the standard operators, which its body consists of")
        if captures(node):
            return Skip("the subgraph captures outer values, which a function body cannot")
        for value in node.inputs:
            if value is not None and scope.dtype(value) is None and not isinstance(value.type, _CONTAINERS):
                return Skip(f"the type of {value.name} is unknown: run infer-shapes first")
        further = {name for name in node.attributes if adopted is not None and name in _NEUTRAL}
        if any(node.attributes.get_int(name) != _NEUTRAL[name] for name in further):
            return Skip(f"the standard's {node.op_type} lacks one of {', '.join(sorted(further))}")
        dtype = scope.dtype(node.inputs[0]) if node.inputs else None
        if node.op_type in _TRUNCATED and dtype is not None and dtype.is_integer():
            return Skip("the results are truncated to integers, which a rounding error changes by one")
        try:
            body = expand(_isolate(node, scope, adopted), scope.opset())
        except InputError as error:
            return Skip(f"the body cannot be used here: {error}")
        if body is None:
            return Skip("the standard defines no body for these attributes and types")
        return _transplant(body, node, edit)


expand_functions = ExpandFunctions()


def _isolate(node: ir.Node, scope: Scope, adopted: int | None) -> bytes:
    """Return a serialized model of the node and its small constants, whose names depend only on positions.

    Args:
        adopted: the opset of the standard's operator to write it as; None for its own.
    """
    model = isolated(node, scope)
    imports = {"": scope.opset(), node.domain: scope.opset(node.domain)}
    if adopted is not None:
        (call,) = model.graph.node
        attributes = [attribute for attribute in call.attribute if attribute.name not in _NEUTRAL]
        call.ClearField("attribute")
        call.attribute.extend(attributes)
        call.domain, imports = "", {"": adopted}
    model.opset_import.extend(onnx.helper.make_opsetid(*pair) for pair in imports.items())
    return bytes(model.SerializeToString(deterministic=True))


@cached(256)
def expand(isolated: bytes, opset: int) -> bytes | None:
    """Return the body of a node for an opset, with constants folded.

    Args:
        isolated: a serialized model of the node, whose initializers are the constant inputs.
        opset: the version of the standard operators to write the body in.

    Returns:
        A GraphProto whose inputs and outputs are named as those of the node; None if the standard defines no body.

    Raises:
        InputError: the body cannot be built, or cannot be converted to the opset.
    """
    source = onnx.ModelProto.FromString(isolated)
    (call,) = source.graph.node
    version = next(opset.version for opset in source.opset_import if opset.domain == call.domain)
    schema = onnx.defs.get_schema(call.op_type, version, call.domain)
    function = _body(call, schema, version, source.graph)
    if function is None:
        return None
    given = {attribute.name for attribute in call.attribute}
    for name, attribute in schema.attributes.items():
        if name not in given and attribute.default_value.name:
            call.attribute.append(attribute.default_value)
    imports = {opset.domain: opset.version for opset in function.opset_import}
    # a body of another domain may lack an import of the standard domain: it uses that of its caller
    imports.setdefault("", opset)
    wanted = [pair for pair in zip(call.output, function.output, strict=False) if pair[0]]
    call.output[:], function.output[:] = zip(*wanted, strict=True)  # a body also lists outputs that it does not compute
    call.name, call.domain, function.domain = _BODY, _BODY, _BODY
    function.ClearField("opset_import")
    function.opset_import.extend(onnx.helper.make_opsetid(*pair) for pair in imports.items())
    source.ClearField("opset_import")
    source.opset_import.extend(onnx.helper.make_opsetid(*pair) for pair in (imports | {_BODY: 1}).items())
    source.functions.append(function)
    model = from_proto(source)
    for step in (InlineFunctions(), InferShapes(), _ResolveCastLike()):
        step.run(model, Context())
    _fold(model)
    if imports[""] != opset:
        ConvertOpset(to=opset).run(model, Context())
        _fold(model)
    return bytes(ir.serde.serialize_graph(model.graph).SerializeToString())


def _fold(model: ir.Model) -> None:
    """Fold constants, inline constant Ifs, and remove what is redundant."""
    for _ in range(_ROUNDS):
        FoldConstants().run(model, Context())
        if not InlineConstantIf().run(model, Context()).modified:
            break
    for step in (remove_identity, RemoveDead(), InferShapes()):
        step.run(model, Context())


class _ResolveCastLike(NodeRewrite):
    """Replace CastLike by Cast, so that constants in bodies can be folded. Not a rule: it is of no use elsewhere."""

    name = "resolve-cast-like"
    operators = frozenset({("", "CastLike")})
    needs_dtype = (1,)

    def replacement(self, node: ir.Node, edit: Edit) -> Replacement:
        return edit.op("Cast", [node.inputs[0]], {**node.attributes, "to": edit.dtype(node, 1).value})


def _body(call: onnx.NodeProto, schema: _Schema, version: int, graph: onnx.GraphProto) -> onnx.FunctionProto | None:
    """Return the schema's body for the nearest opset, preferring lower versions; None if there is none."""
    types = {info.name: info.type for info in graph.input}
    for tensor in graph.initializer:
        types[tensor.name] = onnx.helper.make_tensor_type_proto(tensor.data_type, tensor.dims)
    given = [types.get(name, onnx.TypeProto()).SerializeToString() for name in call.input]
    built, written = schema.context_dependent_function_opset_versions, schema.function_opset_versions
    for opset in sorted({*built, *written}, key=lambda opset: (opset > version, abs(opset - version))):
        if opset in written:
            data = schema.get_function_with_opset_version(opset)
        else:
            try:
                data = schema.get_context_dependent_function_with_opset_version(opset, call.SerializeToString(), given)
            except (RuntimeError, ValueError, onnx.shape_inference.InferenceError) as error:
                raise InputError(f"onnx cannot build it: {first_line(error)}") from error
        function: onnx.FunctionProto = onnx.FunctionProto.FromString(data)
        if function.node:
            return function
    return None


def _transplant(body: bytes, node: ir.Node, edit: Edit) -> list[ir.Value | None]:
    """Move the nodes of a body into an edit and connect them to the inputs of ``node``."""
    graph = ir.serde.deserialize_graph(onnx.GraphProto.FromString(body))
    inside = {value.name: value for value in (*graph.inputs, *graph.initializers.values())}
    new: dict[ir.Value, ir.Value] = {}
    for index, value in enumerate(node.inputs):
        if value is not None and (inner := inside.get(input_name(index))) is not None:
            new[inner] = value
    for inner in graph.initializers.values():
        if inner not in new:
            assert inner.const_value is not None
            new[inner] = edit.constant(inner.const_value, _renamed(inner.name, node))
    for old, value in new.items():
        for use in list(old.uses()):
            use.node.replace_input_with(use.idx, value)
    outputs = {value.name: new.get(value, value) for value in graph.outputs}
    nodes = list(graph)
    graph.outputs.clear()
    graph.remove(nodes)
    for copied in with_nested(nodes):
        copied.name = edit.scope.names.node(_renamed(copied.name, node))
        nested = (value for sub in subgraphs(copied) for value in (*sub.inputs, *sub.initializers.values()))
        for value in (*copied.outputs, *nested):
            if value.name:
                value.name = edit.scope.names.value(_renamed(value.name, node))
    edit.nodes.extend(nodes)
    return [outputs.get(output_name(index)) for index in range(len(node.outputs))]


def _renamed(name: str | None, node: ir.Node) -> str:
    return f"{node.name}/{(name or _BODY).removeprefix(f'{_BODY}/')}"
