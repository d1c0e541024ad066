"""Models from which ONNX's shape inference does not return, and which are refused before (onnx 1.23).

An Einsum of whose equation a term has other than letters, spaces and one ellipsis is not valid, and the parser of its
inference stays at that character, holding the interpreter's lock. A Split into another number of parts than it has
outputs aborts the process, or takes memory for all of them; a GatherND with a negative number of batch dimensions, and
a LayerNormalization along an axis of more than 32 bits, read what is not there. In functions, each may be an attribute
of their callers.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator

import onnx

from passes.graphs.limits import MAX_RANK
from passes.shapes.corrections.nodes import with_nested

_TERMS = re.compile(rb"[a-zA-Z ]*(\.\.\.[a-zA-Z ]*)?(,[a-zA-Z ]*(\.\.\.[a-zA-Z ]*)?)*(->.*)?", re.DOTALL)
_Function = tuple[str, str, str]
_Source = bytes | int | tuple[_Function, str]
"""A string or number, or the attribute of a function that holds it."""
FATAL = {"Einsum": "equation", "GatherND": "batch_dims", "LayerNormalization": "axis", "Split": "num_outputs"}
"""The attribute by which an operator is fatal to ONNX's inference."""
_MAIN: _Function = ("", "", "")
_STANDARD = ("", "ai.onnx")


class FatalInference(onnx.shape_inference.InferenceError):
    """ONNX's inference would never return, or abort the process."""


def refuse_fatal(model: onnx.ModelProto) -> None:
    """Check a model that ONNX is given to infer or to convert; raises FatalInference if ONNX would not return."""
    for value, operator, outputs in _fatal_values(model):
        if operator == "Split" and value != outputs:
            raise FatalInference(f"a Split has {outputs} outputs, and its num_outputs is {value!r}")
        if operator == "GatherND" and isinstance(value, int) and value < 0:
            raise FatalInference(f"the batch_dims of a GatherND are {value}")
        if operator == "LayerNormalization" and isinstance(value, int) and not -MAX_RANK <= value <= MAX_RANK:
            raise FatalInference(f"the axis of a LayerNormalization is {value}")
        if operator == "Einsum" and isinstance(value, bytes) and not _TERMS.fullmatch(value):
            equation = value.decode(errors="replace")
            what = f"the equation {equation!r} of an Einsum is not valid: a term has letters and one ellipsis at most"
            raise FatalInference(what)


def _fatal_values(model: onnx.ModelProto) -> Iterator[tuple[bytes | int, str, int]]:
    """Yield the values of the attributes that may be fatal, with the operators and numbers of outputs of their nodes.

    Those that are attributes of functions have the values of any of their calls.
    """
    functions = {(function.domain, function.name, function.overload): function for function in model.functions}
    given: defaultdict[_Source, list[_Source]] = defaultdict(list)
    pending: list[tuple[_Source, str, int]] = []
    for scope, nodes in ((_MAIN, model.graph.node), *((key, function.node) for key, function in functions.items())):
        for node in with_nested(nodes):
            called = (node.domain, node.op_type, node.overload)
            for attribute in node.attribute if node.op_type in FATAL or called in functions else ():
                source = (scope, attribute.ref_attr_name) if attribute.ref_attr_name else _value(attribute)
                given[called, attribute.name].append(source)
                if FATAL.get(node.op_type) == attribute.name and node.domain in _STANDARD:
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
