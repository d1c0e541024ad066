"""The nodes that ONNX Runtime has no operator for, from the model and from ONNX Runtime's own list of operators.

An opset newer than those that it knows, a name that a known domain does not have (in this opset, or at all), or a
domain whose operators come from a library.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from functools import cache

import onnx
import onnx_ir as ir
from onnxruntime.capi import onnxruntime_pybind11_state

from onnx_bridge.core.errors import nearest
from onnx_bridge.reference.onnxruntime_errors import OnnxRuntimeError, UnknownOperator
from passes.graphs.scopes import scopes


def explained(error: OnnxRuntimeError, model: ir.Model) -> OnnxRuntimeError:
    """Return the refusal of a model with the operator that is unknown: the one that ONNX Runtime names, if any."""
    unknown = list(_unknown_operators(model))
    named = [operator for operator in unknown if error.names(operator.operator, operator.node)]
    return OnnxRuntimeError(error.message, where=error.where, unknown=next(iter(named or unknown), None))


def _unknown_operators(model: ir.Model) -> Iterator[UnknownOperator]:
    """Yield the nodes whose operators are neither ONNX Runtime's own nor functions of the model, in order."""
    functions = {(function.domain, function.name) for function in model.functions.values()}
    for scope in scopes(model):
        for node in scope.nodes():
            domain = "" if node.domain == "ai.onnx" else node.domain
            known, opset = _operators().get(domain), scope.opset(domain)
            if (node.domain, node.op_type) in functions:
                continue
            since = None if known is None else known.get(node.op_type)
            newest = None if known is None else max(known.values())
            if since is None or newest is None or not since <= opset <= newest:
                yield UnknownOperator(
                    str(node.name or node.outputs[0].name),
                    node.op_type,
                    domain or "ai.onnx",
                    opset,
                    newest,
                    since,
                    nearest(node.op_type, known or ()),
                )


@cache
def _operators() -> Mapping[str, Mapping[str, int]]:
    """Return the operators of each domain, and the versions that introduce them."""
    versions: dict[str, dict[str, int]] = defaultdict(dict)
    # builds of ONNX Runtime may lack the list of their own
    listed = getattr(onnxruntime_pybind11_state, "get_all_operator_schema", onnx.defs.get_all_schemas_with_history)
    for schema in listed():
        operators = versions[schema.domain]
        operators[schema.name] = min(schema.since_version, operators.get(schema.name, schema.since_version))
    return versions
