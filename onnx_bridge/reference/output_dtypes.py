"""Outputs of bfloat16, float8 and sub-byte integers as outputs of wider dtypes.

ONNX Runtime's Python API returns them only as OrtValues, which it cannot do for strings and sequences. In a model that
has both kinds, the former are cast in the model to a dtype that holds each of their values, and back afterwards,
without loss.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx_ir as ir

from onnx_bridge.core.values import Value


def widen_outputs(model: ir.Model, dtypes: Mapping[str, ir.DataType]) -> ir.Model:
    """Return a copy of a model, with the outputs in ``dtypes`` cast to wider dtypes.

    Its outputs are in the same order; those that are cast have other names.
    """
    copy = model.clone()
    graph = copy.graph
    taken = {value.name for node in graph.all_nodes() for value in node.outputs} | {*graph.initializers}
    for index, value in enumerate(graph.outputs):
        dtype = dtypes.get(str(value.name))
        if dtype is None:
            continue
        name = str(value.name)
        cast = ir.node("Cast", [value], {"to": int(_wide(dtype))}, name=f"{name}/widened")
        (result,) = cast.outputs
        result.type, result.shape = ir.TensorType(_wide(dtype)), value.shape
        result.name = f"{name}/widened"
        while result.name in taken:
            result.name += "_"
        taken.add(result.name)
        graph.outputs[index] = result
        graph.append(cast)
    return copy


def narrow(value: Value, dtype: ir.DataType | None) -> Value:
    """Return an output of a widened model in its dtype in the original model, if one is given."""
    return value.astype(dtype.numpy()) if dtype is not None and isinstance(value, np.ndarray) else value


def _wide(dtype: ir.DataType) -> ir.DataType:
    if not dtype.is_integer():
        return ir.DataType.FLOAT
    return ir.DataType.INT8 if dtype.is_signed() else ir.DataType.UINT8
