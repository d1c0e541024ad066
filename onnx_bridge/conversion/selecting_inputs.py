"""Inputs that select one of two branches with results of different shapes, as ``use_cache_branch`` of merged decoders.

MIGraphX needs one shape for a value, so that such an If would run on the host with its branches. For each value of the
input, the branch is constant, and the model one program. These are buckets of the input: ``convert`` makes them, and a
call picks one by its value.
"""

from __future__ import annotations

from collections.abc import Iterable

import onnx_ir as ir

from onnx_bridge.conversion.cleaning import rewrite
from onnx_bridge.core.errors import InputError, PassError
from onnx_bridge.requests.conversion import CleanRequest, ConvertRequest, DoctorRequest
from passes.graphs.scopes import Scope

VALUES = (0, 1)
"""The buckets of such an input: false and true."""
_MOST = 2
"""The number of such inputs up to which there is a program for each combination of their values."""


def selecting_inputs(model: ir.Model, request: ConvertRequest | DoctorRequest) -> list[str]:
    """Return the names of these inputs of an original, of one boolean each; empty if there are too many."""
    if not any(True for _ in _selections(model)):
        return []
    buckets = request.buckets if isinstance(request, ConvertRequest) else {}
    dims = {**request.dims, **{name: max(sizes, default=1) for name, sizes in buckets.items()}}
    cleaning = CleanRequest("infer-shapes", dims=dims, shapes=request.shapes, freeze=request.freeze, default_dim=1)
    try:
        sized = rewrite(model.clone(), cleaning).model
    except (InputError, PassError):  # which the conversion reports
        return []
    names = selecting(sized)
    return names if len(names) <= _MOST else []


def selecting(model: ir.Model) -> list[str]:
    """Return the names of these inputs of a model with inferred shapes."""
    names = [
        str(value.name)
        for node, value in _selections(model)
        if value.shape is not None and all(dim == 1 for dim in value.shape) and _branches_differ(node)
    ]
    return list(dict.fromkeys(names))


def _selections(model: ir.Model) -> Iterable[tuple[ir.Node, ir.Value]]:
    """Yield the Ifs of the main graph whose condition depends on one boolean input alone, with this input."""
    scope = Scope(model, model.graph)
    for node in model.graph:
        if (node.domain, node.op_type) == ("", "If"):
            leaves = _leaves(node.inputs[0], scope)
            if len(leaves) == 1 and (value := leaves.pop()).dtype == ir.DataType.BOOL:
                yield node, value


def _leaves(condition: ir.Value | None, scope: Scope) -> set[ir.Value]:
    """Return the inputs of the model that a value is computed from, without constants."""
    inputs: set[ir.Value] = set()
    seen, pending = set(), [condition]
    while pending:
        value = pending.pop()
        if value is None or value in seen:
            continue
        seen.add(value)
        if (node := value.producer()) is not None:
            pending += node.inputs
        elif scope.constant(value) is None:
            inputs.add(value)
    return inputs


def _branches_differ(node: ir.Node) -> bool:
    """Return whether a result of an If does not have the same dtype and known shape in both branches."""
    then, otherwise = (node.attributes[name].as_graph().outputs for name in ("then_branch", "else_branch"))
    return any(
        first.dtype != second.dtype or first.shape is None or not first.shape.is_static() or first.shape != second.shape
        for first, second in zip(then, otherwise, strict=True)
    )
