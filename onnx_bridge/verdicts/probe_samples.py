"""Inputs for probes: an ordinary sample, and one of edge cases that the specification of the operators allows.

Edge cases are negative indices, zeros, halves, negative and larger numbers. Where ONNX leaves a result undefined,
samples avoid it: the indices of a scatter are distinct, and what is cast to an unsigned dtype is not negative.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import ml_dtypes
import numpy as np
import onnx_ir as ir

from onnx_bridge.samples.generated import Array
from onnx_bridge.samples.inputs import TensorSpec, generate, specs
from onnx_bridge.samples.roles import Data, IntegerRange, Uniform

_FLOATS = (0.0, 0.5, -0.5, 1.5, -1.5, 2.5, -2.5, 1.0, -1.0, 2.0, -3.0, 0.3, -0.7, 10.0, -10.0, 6.5)
_SPECIAL = (np.inf, -np.inf, np.nan, 70000.0, -1e39)
"""Values that a cast between floats keeps, or turns into an infinity."""
_EXPONENTIAL = (
    "Celu",
    "Elu",
    "Exp",
    "LogSoftmax",
    "Mish",
    "ReduceLogSumExp",
    "Selu",
    "Sigmoid",
    "Softmax",
    "Softplus",
    "Swish",
    "Tanh",
)
"""Operators with exponentials, which overflow early in a naive implementation."""
_LARGE = (20.0, -20.0, 95.0, -95.0)
_ATTENTION = ("Attention", "FlexAttention", "GroupQueryAttention", "MultiHeadAttention")
"""Operators with exponentials of products: a product of 60 in 16 bits has an error of 0.03, its exponential of 3 %."""
_INTEGERS = (0, 1, -1, 2, -2, 3, -5, 7, 100, -100, 2**24 + 1, -(2**24) - 1)
_INDEXED_SINCE = {
    ("Gather", 1): 11,
    ("GatherElements", 1): 11,
    ("GatherND", 1): 11,
    ("ScatterElements", 1): 11,
    ("ScatterND", 1): 11,
    ("OneHot", 0): 11,
}
"""Inputs that are indices, and the opset since which they may be negative."""
_SCALE = Uniform(0.01, 0.1)
_SCATTERS = ("Scatter", "ScatterElements", "ScatterND")
_PARTIAL = ("Pow", "BitShift", "Cast", "CastLike")
"""Operators whose results for most integers overflow or are undefined."""


def samples(model: ir.Model) -> list[dict[str, Array]]:
    """One or two samples for a probe, whose inputs are tensors; deterministic."""
    values = [value for value in model.graph.inputs if value.name not in model.graph.initializers]
    wanted = [
        replace(spec, role=_SCALE) if spec.dtype.kind == "f" and _is_scale(value) else spec
        for spec, value in zip(specs(model), values, strict=True)
    ]
    (drawn,) = generate(wanted)
    ordinary = {name: array for name, array in drawn.items() if isinstance(array, np.ndarray)}
    edge: dict[str, Array] = {}
    for spec, value in zip(wanted, values, strict=True):
        array = ordinary[spec.name]
        for scatter in _uses(value, _SCATTERS, 1):
            array = _distinct(scatter, array)
        ordinary[spec.name] = array
        edge[spec.name] = _edge(value, spec, array, model.opset_imports.get("", 1))
    if _casts_to_unsigned(model):
        for sample in (ordinary, edge):
            sample |= {name: np.abs(array) for name, array in sample.items() if _is_float(array)}
    same = all(array is ordinary[name] for name, array in edge.items())
    return [ordinary] if same else [ordinary, edge]


def _is_scale(value: ir.Value) -> bool:
    """Whether a float is a scale of quantization: all float inputs of such operators are."""
    return any(node.op_type.startswith(("QLinear", "QGemm")) for node, _ in value.uses())


def _edge(value: ir.Value, spec: TensorSpec, array: Array, opset: int) -> Array:
    match spec.role:
        case IntegerRange():
            for node, index in value.uses():
                since = _INDEXED_SINCE.get((node.op_type, index))
                extent = _extent(node, index) if since is not None and opset >= since else None
                if extent is not None:
                    return (array - extent).astype(array.dtype)
        case Data() if _is_float(array) and array.dtype != np.dtype(ml_dtypes.float8_e8m0fnu):
            if array.dtype.itemsize == 2 and next(_uses(value, _ATTENTION), None):
                return _spread([each for each in _FLOATS if abs(each) <= 1], array)
            more = _SPECIAL if _casts_to_float(value) else _LARGE if next(_uses(value, _EXPONENTIAL), None) else ()
            return _spread((*_FLOATS[:4], *more, *_FLOATS[4:]), array)
        case Data() if array.dtype.kind in "iu" and not next(_uses(value, _PARTIAL), None):
            limits = np.iinfo(array.dtype)
            return _spread([each for each in _INTEGERS if limits.min <= each <= limits.max], array)
    return array


def _spread(numbers: Sequence[float], like: Array) -> Array:
    """An array of the numbers in an order that repeats along no axis."""
    places = np.random.default_rng(like.size).integers(0, len(numbers), like.size)
    places[: len(numbers)] = np.arange(len(numbers))[: like.size]
    with np.errstate(over="ignore"):  # too large for the dtype is infinity
        return np.asarray(numbers)[places].reshape(like.shape).astype(like.dtype)


def _is_float(array: Array) -> bool:
    return array.dtype.kind == "f" or "float" in array.dtype.name


def _uses(value: ir.Value, operators: Sequence[str], index: int | None = None) -> Iterator[ir.Node]:
    for node, place in value.uses():
        if node.op_type in operators and index in (None, place):
            yield node


def _dims(value: ir.Value | None) -> tuple[int, ...] | None:
    if value is not None and value.const_value is not None:
        return tuple(value.const_value.shape.numpy())
    shape = value.shape if value is not None else None
    return tuple(shape.numpy()) if shape is not None and shape.is_static() else None


def _extent(node: ir.Node, index: int) -> Array | None:
    """The exclusive upper bound of the indices of a node, along the last axis of the indices."""
    data, indices = _dims(node.inputs[0]), _dims(node.inputs[1])
    if node.op_type == "OneHot":
        depth = node.inputs[1].const_value if node.inputs[1] is not None else None
        return depth.numpy().reshape(-1)[:1].astype(np.int64) if depth is not None and depth.size == 1 else None
    if data is None or indices is None:
        return None
    if node.op_type in ("GatherND", "ScatterND"):
        start = node.attributes.get_int("batch_dims", 0)
        return np.array(data[start : start + indices[-1]], np.int64)
    return np.array(data[node.attributes.get_int("axis", 0)], np.int64)


def _distinct(scatter: ir.Node, indices: Array) -> Array:
    """Distinct indices of the same shape; the given ones if there are too few elements."""
    data = _dims(scatter.inputs[0])
    if data is None or not indices.size:
        return indices
    draw = np.random.default_rng(indices.size)
    if scatter.op_type == "ScatterND":
        sizes = data[: indices.shape[-1]]
        count, room = indices.size // indices.shape[-1], int(np.prod(sizes))
        if count > room:
            return indices
        rows = np.stack(np.unravel_index(draw.permutation(room)[:count], sizes), axis=-1)
        return rows.reshape(indices.shape).astype(indices.dtype)
    axis = scatter.attributes.get_int("axis", 0) % len(data)
    if indices.shape[axis] > data[axis]:
        return indices
    lanes = np.argsort(draw.random((*indices.shape[:axis], data[axis], *indices.shape[axis + 1 :])), axis=axis)
    return np.take(lanes, np.arange(indices.shape[axis]), axis=axis).astype(indices.dtype)


def _casts_to_float(value: ir.Value) -> bool:
    """Whether all uses of a value are casts to floats."""
    made = [
        node.outputs[0].dtype if index == 0 and node.op_type in ("Cast", "CastLike") else None
        for node, index in value.uses()
    ]
    return all(dtype is not None and dtype.is_floating_point() for dtype in made)


def _casts_to_unsigned(model: ir.Model) -> bool:
    unsigned = {ir.DataType.UINT8, ir.DataType.UINT16, ir.DataType.UINT32, ir.DataType.UINT64, ir.DataType.UINT4}
    return any(
        (node.op_type == "Cast" and node.attributes.get_int("to", 0) in unsigned)
        or (node.op_type == "CastLike" and node.outputs[0].dtype in unsigned)
        for node in model.graph.all_nodes()
    )
