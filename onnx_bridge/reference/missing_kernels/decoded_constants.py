"""Constants of dtypes that ONNX Runtime's CPU provider has no kernels for, decoded by ONNX's own evaluator.

    DequantizeLinear(W float4, s)  →  the numbers as float32; equally what casts or moves such a W before that

Weights in blocks of 4-bit floats (MXFP4, NVFP4) are constants, and ONNX alone says what they are: the provider runs
all the rest of the model.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir
from onnx.reference import ReferenceEvaluator

from onnx_bridge.core.values import Array
from passes.cleanup.remove_dead import RemoveDead
from passes.graphs.randomness import is_random
from passes.graphs.scopes import Scope
from passes.graphs.traversal import subgraphs
from passes.rewriting.base import Context

_UNKNOWN = {ir.DataType.FLOAT4E2M1, ir.DataType.FLOAT8E8M0}


def decode_constants(model: ir.Model) -> ir.Model | None:
    """Return a model without constants of these dtypes; None if it computes with them, or has none.

    Args:
        model: may be rewritten in place.
    """
    scope = Scope(model, model.graph)
    if not any(_is_unknown(value, scope) for node in scope.nodes() for value in node.inputs):
        return None
    known: dict[ir.Value, Array] = {}
    coded: set[ir.Value | None] = set()
    for node in list(model.graph):
        if not any(value in coded or _is_unknown(value, scope) for value in node.inputs):
            continue
        results = _computed(node, scope, known)
        if results is None:
            return None
        for value, array in zip(node.outputs, results, strict=True):
            known[value] = array
            if ir.DataType.from_numpy(array.dtype) in _UNKNOWN:
                coded.add(value)
            else:
                name, value.name = str(value.name), scope.names.value(f"{value.name}/coded")
                constant = scope.new_constant(model.graph, ir.tensor(array), name)
                value.replace_all_uses_with(constant, replace_graph_outputs=True)
    return RemoveDead().run(model, Context()).model


def _computed(node: ir.Node, scope: Scope, known: dict[ir.Value, Array]) -> list[Array] | None:
    """Return what a node computes; None if it fails, or unless all operands are constants, or computed from some."""
    if not node.inputs or node.domain not in ("", "ai.onnx") or any(subgraphs(node)) or is_random(node, scope):
        return None
    try:
        operands = [None if value is None else _array(value, scope, known) for value in node.inputs]
        if any(array is None and value is not None for array, value in zip(operands, node.inputs, strict=True)):
            return None
        feeds: dict[str, Any] = {f"i{index}": array for index, array in enumerate(operands) if array is not None}
        proto = ir.to_proto(node)
        proto.input[:] = ["" if array is None else f"i{index}" for index, array in enumerate(operands)]
        return [np.asarray(result) for result in ReferenceEvaluator(proto).run(None, feeds)]
    except MemoryError:
        raise
    except Exception:  # whatever numpy and ONNX's operators raise; a chain that is too long
        return None


def _array(value: ir.Value, scope: Scope, known: dict[ir.Value, Array]) -> Array | None:
    if value not in known:
        if (tensor := scope.constant(value)) is not None:
            known[value] = tensor.numpy()
        elif (producer := value.producer()) is not None and (results := _computed(producer, scope, known)) is not None:
            known |= zip(producer.outputs, results, strict=True)
    return known.get(value)


def _is_unknown(value: ir.Value | None, scope: Scope) -> bool:
    return value is not None and scope.dtype(value) in _UNKNOWN
