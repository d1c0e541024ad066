"""What it takes to cut a model, wherever it is cut: what can be handed over there, how much that is, and what it is.

What depends on shapes and constants alone stays a constant where it is cut through, which is what a runtime would have
made of it in the whole.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping

import numpy as np
import onnx_ir as ir

from onnx_bridge.core.values import Value
from onnx_bridge.migraphx.program import type_of

PACKED = ("int4", "uint4")
"""What MIGraphX takes and gives as bytes."""
_QUANTIZERS = ("QuantizeLinear", "DynamicQuantizeLinear")


def is_quantizer(node: ir.Node) -> bool:
    """Whether a node rounds to a grid."""
    return node.op_type in _QUANTIZERS or node.op_type.startswith(("QLinear", "QGemm"))


def can_feed(value: ir.Value) -> bool:
    """Whether MIGraphX takes a value as an input, and gives it as an output, as far as its type tells."""
    if value.type is None:
        return True
    if not isinstance(value.type, ir.TensorType) or value.dtype in (None, ir.DataType.UNDEFINED, ir.DataType.STRING):
        return False
    return _has_type(value.dtype.numpy())


def can_give(value: Value) -> bool:
    """Whether MIGraphX takes what the reference computed."""
    return isinstance(value, np.ndarray) and _has_type(value.dtype)


def size(value: ir.Value) -> int:
    """The bytes that a value takes; unknown sizes count as 1."""
    if value.dtype is None or value.dtype in (ir.DataType.UNDEFINED, ir.DataType.STRING) or value.shape is None:
        return 8
    sizes = [dim if isinstance(dim, int) else 1 for dim in value.shape]
    return math.ceil(math.prod(sizes) * value.dtype.bitwidth / 8)


def fix(model: ir.Model, values: Mapping[str, Value], constant: Collection[str]) -> None:
    """Give the inputs of a part the types and shapes of their arrays, and make constants of some.

    Args:
        model: the part, which is changed.
        values: of all of its inputs; sequences, optionals and strings keep the types that they have.
        constant: the names of those that depend on shapes and constants alone.
    """
    graph = model.graph
    for value in list(graph.inputs):
        name = str(value.name)
        array = values[name]
        if not isinstance(array, np.ndarray) or array.dtype.kind in "OUST":
            continue
        value.type = ir.TensorType(ir.DataType.from_numpy(array.dtype))
        value.shape = ir.Shape(array.shape)
        if name in constant:
            graph.inputs.remove(value)
            value.const_value = ir.Tensor(array, name=name)
            graph.initializers.add(value)


def _has_type(dtype: np.dtype) -> bool:
    return type_of(dtype) is not None or dtype.name in PACKED
