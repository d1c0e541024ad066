"""The requirements of ONNX's operators for the inputs, outputs, attributes and subgraphs of a node.

Nodes of other domains, of functions of the model, and of operators that its opset does not have are not judged here.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from functools import cache

import onnx

from passes.core.schemas import Option, parameter, schema_of
from passes.core.text import counted
from passes.graphs.limits import MAX_ELEMENTS, MAX_RANK, MAX_VERSION

_Attr = onnx.AttributeProto
_DTYPES = ("to", "dtype", "output_dtype", "output_datatype")
"""The attributes of ONNX's operators that are types of elements."""
_ELEMENTS = frozenset(onnx.TensorProto.DataType.values())


@cache
def _required(schema: onnx.defs.OpSchema) -> tuple[str, ...]:
    """Return the names of the attributes that must be given."""
    return tuple(name for name, formal in schema.attributes.items() if formal.required and name != "consumed_inputs")


@cache
def _attribute_types(domain: str, op_type: str, opset: int) -> Mapping[str, frozenset[int]]:
    """Return the types of each attribute of an operator: in an opset, or in any for attributes it lacks there."""
    kinds: dict[str, set[int]] = {}
    version = MAX_VERSION
    while version > 0 and (schema := schema_of(op_type, version, domain)) is not None:
        for name, formal in schema.attributes.items():
            kinds.setdefault(name, set()).add(formal.type.value)  # type: ignore[attr-defined]
        version = schema.since_version - 1
    here = schema_of(op_type, opset, domain)
    for name, formal in here.attributes.items() if here is not None else ():
        kinds[name] = {formal.type.value}  # type: ignore[attr-defined]
    return {name: frozenset(types) for name, types in kinds.items()}


def versions_problem(model: onnx.ModelProto) -> str | None:
    """Return what is wrong with the versions that a model states."""
    stated = [("the IR version", model.ir_version)]
    for imports in (model.opset_import, *(function.opset_import for function in model.functions)):
        stated += [(f"the version of the opset {entry.domain or 'ai.onnx'!r}", entry.version) for entry in imports]
    for what, version in stated:
        if not 0 <= version <= MAX_VERSION:
            return f"{what} is {version}"
    return None


def interface_problem(graph: onnx.GraphProto) -> str | None:
    """Return what is wrong with the inputs and outputs of the main graph."""
    if not graph.output:
        return "the model has no outputs"
    constants = {tensor.name for tensor in graph.initializer}
    for info in graph.input:
        kind = info.type
        while (which := kind.WhichOneof("value")) in ("sequence_type", "optional_type"):
            kind = getattr(kind, which).elem_type
        if which not in ("tensor_type", "sparse_tensor_type") and info.name not in constants:
            return f"the input {info.name!r} has no type"
        if which == "tensor_type" and kind.tensor_type.elem_type == onnx.TensorProto.UNDEFINED:
            return f"the elements of the input {info.name!r} have no type"
        if len(kind.tensor_type.shape.dim) > MAX_RANK:
            return f"the input {info.name!r} has more than {MAX_RANK} dimensions"
        count = math.prod(dim.dim_value for dim in kind.tensor_type.shape.dim if dim.dim_value > 0)
        if count > MAX_ELEMENTS:
            return f"the input {info.name!r} has {count} elements, more than fit into the memory of any machine"
    return None


def node_problem(node: onnx.NodeProto, opsets: Mapping[str, int], functions: Collection[tuple[str, str]]) -> str | None:
    """Return how a node violates the definition of its operator, as the end of a sentence; None if it does not.

    Args:
        node: whose attributes have types.
        opsets: versions by domain, as its graph or function imports them.
        functions: domain and name of each function of the model.
    """
    domain = "" if node.domain == "ai.onnx" else node.domain
    if not node.op_type:
        return "has no operator"
    names = [attribute.name for attribute in node.attribute]
    if problem := _attributes_problem(node, names):
        return problem
    if (domain, node.op_type) in functions:
        return None
    version = opsets.get(domain, 1)
    schema = schema_of(node.op_type, version, domain)
    known = _attribute_types(domain, node.op_type, version)
    for attribute in node.attribute:
        types = known.get(attribute.name)
        if types is not None and attribute.type not in types:
            expected = " or ".join(sorted(map(_type_name, types)))
            return f"has {attribute.name!r} of type {_type_name(attribute.type)}, and it must be {expected}"
        if domain == "" and attribute.name in _DTYPES and attribute.type == _Attr.INT and attribute.i not in _ELEMENTS:
            return f"has {attribute.name!r} = {attribute.i}, which is no type of elements"
    if schema is None:
        return None
    for kind, given, least, most in (
        ("input", node.input, schema.min_input, schema.max_input),
        ("output", node.output, schema.min_output, schema.max_output),
    ):
        if not least <= len(given) <= most:
            bound = f"at least {least}" if len(given) < least else f"at most {most}"
            return f"has {len(given)} {kind}s, and {node.op_type} has {bound}"
    for index, name in enumerate(node.input):
        if not name and (formal := parameter(schema.inputs, index)) is not None and formal.option != Option.Optional:
            return f"lacks its input {index}, which {node.op_type} needs"
    for name in _required(schema):
        if name not in names:
            return f"lacks the attribute {name!r}, which {node.op_type} needs"
    if domain == "" and node.op_type in _CHECKS:
        return _CHECKS[node.op_type](node)
    return _bodies_problem(node, domain, version)


def _split_problem(node: onnx.NodeProto) -> str | None:
    """Return how the parts of a Split differ from its outputs: ONNX's inference makes a list of all parts' sizes."""
    for attribute in node.attribute:
        if attribute.name == "num_outputs" and not attribute.ref_attr_name and attribute.i != len(node.output):
            return f"has {counted(len(node.output), 'output')}, and its num_outputs is {attribute.i}"
    return None


def _attributes_problem(node: onnx.NodeProto, names: list[str]) -> str | None:
    """Return what is wrong with the attributes of a node of any operator."""
    if len(set(names)) < len(names):
        return f"has two attributes {Counter(names).most_common(1)[0][0]!r}"
    for attribute in node.attribute:
        if attribute.ref_attr_name and attribute.type in (_Attr.GRAPH, _Attr.GRAPHS):
            return f"has {attribute.name!r}, a subgraph that is an attribute of a function, which onnx_ir does not read"
    return None


def _type_name(number: int) -> str:
    return _Attr.AttributeType.Name(number) if number in _Attr.AttributeType.values() else f"number {number}"


def _constant_problem(node: onnx.NodeProto) -> str | None:
    types = _attribute_types("", "Constant", MAX_VERSION)
    values = [attribute.name for attribute in node.attribute if attribute.name in types]
    return None if len(values) == 1 else f"has {counted(len(values), 'value')}, and a constant has one"


def _bodies_problem(node: onnx.NodeProto, domain: str, version: int) -> str | None:
    """Return what is wrong with the subgraphs of a node of control flow."""
    check = _BODIES.get((domain, node.op_type))
    for attribute in node.attribute if check is not None else ():
        if attribute.type != _Attr.GRAPH or attribute.ref_attr_name:
            continue
        assert check is not None
        name, inputs, outputs = attribute.name, len(attribute.g.input), len(attribute.g.output)
        right_inputs, least_outputs = check(node, version)
        if inputs != right_inputs:
            return f"has a subgraph {name!r} with {counted(inputs, 'input')}, and it must have {right_inputs}"
        if outputs < least_outputs:
            return f"has a subgraph {name!r} with {counted(outputs, 'output')}, and it must have {least_outputs}"
    return None


_BODIES: dict[tuple[str, str], Callable[[onnx.NodeProto, int], tuple[int, int]]] = {
    ("", "If"): lambda node, _: (0, len(node.output)),
    ("", "Loop"): lambda node, _: (max(2, len(node.input)), max(len(node.output), len(node.input) - 2) + 1),
    ("", "Scan"): lambda node, version: (len(node.input) - (version < 9), len(node.output)),
    ("", "SequenceMap"): lambda node, _: (len(node.input), len(node.output)),
}
"""The number of inputs that a body has, and the least number of its outputs, by operator."""


_CHECKS = {"Constant": _constant_problem, "Split": _split_problem}
