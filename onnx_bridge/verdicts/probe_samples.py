"""Inputs for probes: an ordinary sample, and some of edge cases that the specification of the operators allows.

Edge cases are negative indices, zeros, halves, negative and larger numbers, and the other value of a condition. Where
ONNX leaves a result undefined, samples avoid it: the indices of a scatter are distinct.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace

import ml_dtypes
import numpy as np
import onnx_ir as ir

from onnx_bridge.reference.comparison.tolerances import is_float
from onnx_bridge.samples.generated import PIECE, Array
from onnx_bridge.samples.inputs import TensorSpec, generate, specs
from onnx_bridge.samples.roles import Data, IntegerRange, Uniform
from passes.graphs.value_ranges import Range
from passes.operators import operators

_FLOATS = (0.0, 0.5, -0.5, 1.5, -1.5, 2.5, -2.5, 1.0, -1.0, 2.0, -3.0, 0.3, -0.7, 10.0, -10.0, 6.5)
_SPECIAL = (np.inf, -np.inf, np.nan, -0.0, 65519.0, 65520.0, 70000.0, 3.395e38, 3.397e38, -1e39)
"""Values that a cast between floats keeps, or turns into an infinity, and those next to them."""
_NOT_NUMBERS = (np.nan, 1.0, np.inf, -0.0, -np.inf, 0.0, -2.0, 0.5)
"""Values of floats that are no numbers, and numbers beside them."""
_TIES = (1 + 2**-11, 1 + 3 * 2**-11, 1 + 2**-8, 1 + 3 * 2**-8, 1.0625, 1.1875, 1.125, 1.375, 3e-6, 2**-25, 3 * 2**-25)
"""Halfway between two numbers of float16, bfloat16, and floats of 8 bits; subnormal numbers of float16."""
_EXPONENTIAL = frozenset(
    ("Celu", "Elu", "Exp", "LogSoftmax", "Mish", "ReduceLogSumExp", "Selu", "Sigmoid", "Softmax", "Softplus", "Swish")
) | {"Tanh"}
"""Operators with exponentials, which overflow early in a naive implementation."""
_LARGE = (20.0, -20.0, 95.0, -95.0)
_ATTENTION = frozenset(("Attention", "FlexAttention", "GroupQueryAttention", "MultiHeadAttention"))
_PRODUCTS, _EXPONENTIALS = frozenset(("Einsum", "Gemm", "MatMul")), frozenset(("Exp", "LogSoftmax", "Softmax"))
"""Operators with exponentials of products: a product of 60 in 16 bits has an error of 0.03, its exponential of 3 %.

In float32 one of 128 numbers has an error of 5e-5, in the reference, too."""
_WHOLE = (2.0**24 + 2, 2.0**31, -(2.0**33), 1e15, -1e20)
"""Numbers that are whole, to be rounded; those in the range of no integer too."""
_INTEGERS = (0, 1, -1, 2, -2, 3, -5, 7, 100, -100, 2**24 + 1, -(2**24) - 1)
_INDEXING = ("Gather", "GatherElements", "GatherND", "ScatterElements", "ScatterND")
_INDICES = {("OneHot", 0), *((name, 1) for name in _INDEXING)}
"""Inputs that are indices, which may be negative since opset 11."""
_QUANTIZING = operators("quantizes") & operators("integers")
"""Operators whose float inputs are all scales of quantization."""
_SCALE, _SCALE_OF_PRODUCT = Uniform(0.01, 0.1), Uniform(0.5, 1.0)
"""Scales; the larger ones keep most sums of products within the range of 8 bits."""
_QUANTIZED_PRODUCTS = ("QLinearConv", "QLinearMatMul")
_SCATTERS = ("Scatter", "ScatterElements", "ScatterND")
_CASTS = ("Cast", "CastLike")
_DIVISIONS = ("Div", "Mod")
"""Operators whose integer divisors are drawn from a range without zero."""
_MOST = 8
"""The most samples of edge cases."""
_GROWING = ("ReduceLogSumExp", "ReduceSumSquare")
"""Operators whose results overflow for large integers."""
_EXPONENTS = (0.0, 0.5, 1.0, 2.0, 3.0, 8.0, 9.0)
"""Exponents of integers: results go beyond what float32 holds, and not beyond 32 bits for numbers up to 10."""
_PARTIAL = ("Pow", "BitShift", "ReduceProd")
"""Operators whose results for most integers overflow or are undefined."""


def samples(model: ir.Model, ranges: Sequence[Range | None] = (), *, edge_cases: bool = True) -> list[dict[str, Array]]:
    """Return an ordinary sample for a probe, whose inputs are tensors, and those of edge cases; deterministic.

    There are as many of the latter as it takes for every number to occur in small inputs, at most `_MOST`.

    Args:
        ranges: the known ranges of its inputs; such inputs have no edge cases.
        edge_cases: whether samples of edge cases are wanted.
    """
    values = [value for value in model.graph.inputs if value.name not in model.graph.initializers]
    known = [*ranges, *[None] * (len(values) - len(ranges))]
    wanted = []
    for spec, value, bounds in zip(specs(model), values, known, strict=True):
        role = spec.role
        if spec.dtype.kind == "f" and any(node.op_type in _QUANTIZING for node, _ in value.uses()):
            role = _SCALE_OF_PRODUCT if next(_uses(value, _QUANTIZED_PRODUCTS, 6), None) else _SCALE
        if bounds is not None and isinstance(role, Data):
            role = Uniform(*bounds)
        wanted.append(replace(spec, role=role))
    (drawn,) = generate(wanted)
    ordinary = {name: array for name, array in drawn.items() if isinstance(array, np.ndarray)}
    edges: dict[str, list[Array]] = {}
    for place, (spec, value) in enumerate(zip(wanted, values, strict=True)):
        array = ordinary[spec.name]
        for scatter in _uses(value, _SCATTERS, 1):
            array = _distinct(scatter, array)
        ordinary[spec.name] = array
        if edge_cases:
            cases = _edges(value, spec, array, place, model.opset_imports.get("", 1))
            edges[spec.name] = [np.asarray(case) for case in cases]  # arithmetic makes numbers of arrays of rank 0
    if all(array is ordinary[name] for name, arrays in edges.items() for array in arrays):
        return [ordinary]
    turns = range(max(map(len, edges.values())))
    return [ordinary, *({name: arrays[turn % len(arrays)] for name, arrays in edges.items()} for turn in turns)]


def special_sample(model: ir.Model, ordinary: Mapping[str, Array]) -> dict[str, Array] | None:
    """Return a sample of NaN, infinities and −0 among numbers, for a probe of one operator on floats; None for others.

    Args:
        model: the probe.
        ordinary: its ordinary sample.
    """
    nodes = [node for node in model.graph if node.op_type != "Constant"]
    known = operators("exact", "few", "many")
    if len(nodes) != 1 or nodes[0].op_type not in known or not all(map(_is_real, nodes[0].outputs)):
        return None
    values = [value for value in model.graph.inputs if value.name in ordinary]
    numbers = [spec.name for spec, value in zip(specs(model), values, strict=True) if _is_free(spec, value)]
    if not numbers:
        return None
    arrays = {name: _spread(_NOT_NUMBERS, ordinary[name], place)[0] for place, name in enumerate(numbers)}
    return {**ordinary, **arrays}


def _is_free(spec: TensorSpec, value: ir.Value) -> bool:
    return isinstance(spec.role, Data) and _is_real(value)


def _is_real(value: ir.Value) -> bool:
    return value.dtype in (ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.BFLOAT16, ir.DataType.DOUBLE)


def _edges(value: ir.Value, spec: TensorSpec, array: Array, place: int, opset: int) -> list[Array]:
    """Return the edge cases of the input at ``place``, otherwise its ordinary sample ``array``.

    Two inputs have the same numbers in another order, by their places.
    """
    decides = next(_uses(value, ("If",), 0), None) or next(_uses(value, ("Loop",), 1), None)
    if decides and array.dtype == np.bool_:
        return [~array]  # the other branch; a Loop with iterations, or without
    match spec.role:
        case IntegerRange() if _only_used_by(value, _DIVISIONS):
            return _spread([number for number in _integers(array) if number], array, place)
        case IntegerRange():
            for node, index in value.uses():
                extent = _extent(node, index) if (node.op_type, index) in _INDICES and opset >= 11 else None
                if extent is not None:
                    return [(array - extent).astype(array.dtype)]
        case Data() if is_float(array.dtype) and array.dtype != np.dtype(ml_dtypes.float8_e8m0fnu):
            if next((node for node in _uses(value, ("Pow",), 1) if _is_integer(node.inputs[0])), None):
                return _spread(_EXPONENTS, array, place)
            most = (1 if array.dtype.itemsize == 2 else 3) if _takes_exponentials_of_products(value) else 10
            numbers = [number for number in _FLOATS if abs(number) <= most]
            further = () if most == 1 else _further(value)
            return _spread((*numbers[:4], *further, *numbers[4:]), array, place)
        case Data() if array.dtype.kind in "iu" and not next(_uses(value, _PARTIAL), None):
            limits = np.iinfo(array.dtype)
            if next(_uses(value, _QUANTIZED_PRODUCTS), None):  # small sums are right in any precision
                return _spread(range(limits.min, limits.max + 1), array, place)
            # another node may overflow on the ends of a dtype, which leaves its result undefined
            is_last = not any(output.uses() for node, _ in value.uses() for output in node.outputs)
            ends = (limits.min, limits.max) if is_last and _only_used_by(value, _CASTS) else ()
            most = 100 if next(_uses(value, _GROWING), None) else limits.max
            return _spread([*ends, *(integer for integer in _integers(array) if abs(integer) <= most)], array, place)
    return [array]


def _integers(like: Array) -> list[int]:
    """Return the integers among the edge cases that a dtype has."""
    limits = np.iinfo(like.dtype)
    return [number for number in _INTEGERS if limits.min <= number <= limits.max]


def _takes_exponentials_of_products(value: ir.Value) -> bool:
    """Return whether the graph of an input has an attention operator, or the operators that one is made of."""
    names = {node.op_type for node in value.graph.all_nodes()} if isinstance(value.graph, ir.Graph) else set()
    return bool(names & _ATTENTION) or bool(names & _PRODUCTS and names & _EXPONENTIALS)


def _further(value: ir.Value) -> Sequence[float]:
    """Return the numbers besides `_FLOATS` that an operator may take for others."""
    dtypes = [node.outputs[0].dtype if index == 0 and node.op_type in _CASTS else None for node, index in value.uses()]
    if all(dtype is not None and dtype.is_floating_point() for dtype in dtypes):
        return (*_SPECIAL, *_TIES)
    if _only_used_by(value, operators("steps")):
        return _WHOLE
    return _LARGE if next(_uses(value, _EXPONENTIAL), None) else ()


def _only_used_by(value: ir.Value, names: Collection[str]) -> bool:
    return all(node.op_type in names for node, _ in value.uses())


def _spread(numbers: Sequence[float], like: Array, place: int) -> list[Array]:
    """Return arrays in which the numbers occur, in an order that repeats along no axis and depends on ``place``."""
    draw = np.random.default_rng((like.size, place))
    choices = np.asarray(numbers)
    if place:
        draw.shuffle(choices)
    with np.errstate(over="ignore", invalid="ignore"):  # too large for the dtype is infinity, or NaN
        choices = choices.astype(like.dtype)
    arrays = []
    for start in range(0, min(len(choices), max(like.size, 1) * _MOST), max(like.size, 1)):
        array = np.empty(like.size, like.dtype)
        for first in range(0, array.size, PIECE):
            piece = array[first : first + PIECE]
            piece[:] = choices[draw.integers(0, len(choices), piece.size)]
        array[: len(choices) - start] = choices[start : start + array.size]
        arrays.append(array.reshape(like.shape))
    return arrays


def _is_integer(value: ir.Value | None) -> bool:
    return value is not None and value.dtype is not None and value.dtype.is_integer()


def _uses(value: ir.Value, names: Collection[str], index: int | None = None) -> Iterator[ir.Node]:
    for node, place in value.uses():
        if node.op_type in names and index in (None, place):
            yield node


def _dims(value: ir.Value | None) -> tuple[int, ...] | None:
    if value is not None and value.const_value is not None:
        return tuple(value.const_value.shape.numpy())
    shape = value.shape if value is not None else None
    return tuple(shape.numpy()) if shape is not None and shape.is_static() else None


def _extent(node: ir.Node, index: int) -> Array | None:
    """Return the exclusive upper bound of the indices of a node, along the last axis of the indices."""
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
    """Return distinct indices of the same shape; the given ones if there are too few elements."""
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
