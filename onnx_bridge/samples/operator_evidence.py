"""What an operator says of the graph input that reaches one of its inputs: the role, if there is evidence."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import onnx_ir as ir

from onnx_bridge.samples.dimensions import Dim, dims_of
from onnx_bridge.samples.roles import (
    Choice,
    Columns,
    Constant,
    IntegerRange,
    Lengths,
    Mask,
    Parts,
    Positions,
    Role,
    Sizes,
    Uniform,
)
from passes.legalize.ml.tree_ensembles import thresholds as tree_thresholds
from passes.operators import REDUCTIONS


@dataclass(frozen=True)
class Use:
    """A use of a graph input: input ``index`` of ``node`` has the values of the graph input plus ``offset``.

    Attributes:
        direct: no other node lies between.
        aligned: its elements along the last axis are those of the graph input.
        integer: the dtype of the graph input is an integer.
    """

    node: ir.Node
    index: int
    offset: int
    direct: bool
    aligned: bool
    integer: bool


def constant(value: ir.Value | None) -> float | None:
    """Return the value of a constant of one element; None otherwise."""
    if value is None:
        return None
    tensor = value.const_value
    producer = value.producer()
    if tensor is None and producer is not None and producer.op_type == "Constant":
        attribute = producer.attributes.get("value") or producer.attributes.get("value_int")
        if attribute is None or attribute.is_ref():
            return None
        if attribute.name == "value_int":
            return attribute.as_int()
        tensor = attribute.as_tensor()
    if tensor is None or tensor.size != 1 or tensor.dtype.is_string():
        return None
    number = float(tensor.numpy().reshape(-1)[0])
    return number if math.isfinite(number) else None


def _dims(node: ir.Node, index: int) -> tuple[Dim, ...]:
    """Return the dimensions of an input of a node; () if they are unknown."""
    value = node.inputs[index] if index < len(node.inputs) else None
    if value is None:
        return ()
    dims, producer = dims_of(value), value.producer()
    while dims is None and producer is not None and producer.op_type in ("Cast", "Identity", "DequantizeLinear"):
        value = producer.inputs[0]
        dims, producer = (None, None) if value is None else (dims_of(value), value.producer())
    return dims or ()


def _dim(node: ir.Node, index: int, axis: int) -> Dim:
    dims = _dims(node, index)
    return dims[axis] if -len(dims) <= axis < len(dims) else None


def _below(*dims: Dim, use: Use) -> IntegerRange:
    """Return the role of indices into the given dimensions."""
    return IntegerRange(max(0, -use.offset), tuple((dim, -use.offset) for dim in dims or (None,)))


def _along(index: int, attribute: str, default: int) -> Callable[[Use], Role]:
    """Return the role of indices along the axis, given by an attribute, of input ``index``."""
    return lambda use: _below(_dim(use.node, index, use.node.attributes.get_int(attribute, default)), use=use)


def _tuples(use: Use) -> Role:
    """Return the role of index tuples (GatherND, ScatterND), whose last axis counts the axes that they index."""
    dims, depth = _dims(use.node, 0), _dim(use.node, 1, -1)
    start = use.node.attributes.get_int("batch_dims", 0)
    return _below(*(dims[start : start + depth] if isinstance(depth, int) else dims[start:]), use=use)


def _sliced(use: Use) -> Role | None:
    """Return the role of where a Slice begins or ends, along each axis."""
    dims, axes = _dims(use.node, 0), use.node.inputs[3] if len(use.node.inputs) > 3 else None
    axis, count = constant(axes), _dim(use.node, use.index, 0)
    cut = dims[:count] if axes is None and isinstance(count, int) else dims[int(axis or 0) :][:1]
    return IntegerRange(0, tuple((dim, 1) for dim in cut)) if cut and (axes is None or axis is not None) else None


def _length(index: int, axis: int, attribute: str = "axis") -> Callable[[Use], Role]:
    """Return the role of integers from 1 to the size of an axis of input ``index``."""
    return lambda use: IntegerRange(1, ((_dim(use.node, index, use.node.attributes.get_int(attribute, axis)), 1),))


def _sizes(use: Use) -> Role:
    """Return the role of sizes that the first input has already, along all axes or those of an attribute."""
    dims = _dims(use.node, 0)
    axes = use.node.attributes.get_ints("axes", None) or range(len(dims))
    return Sizes(tuple(dims[axis] for axis in axes if -len(dims) <= axis < len(dims)))


def _total_length(use: Use) -> Lengths:
    """Return the role of the total length of a GroupQueryAttention: its cache grows, unless it is declared not to."""
    past = 0 if use.node.inputs[3] is None else _dim(use.node, 3, 2)
    present = [dims_of(value) or () for value in use.node.outputs[1:2]]
    grows = not past or past not in [dims[2] for dims in present if len(dims) == 4]
    return Lengths(1, (past, _dim(use.node, 0, 1)) if grows else (past,), -use.offset)


def _last_positions(use: Use) -> Role:
    """Return the role of the lengths of a GroupQueryAttention's samples, less one."""
    new, totals = _dim(use.node, 0, 1), [constant(value) for value in use.node.inputs[6:7]]
    fixed = [Lengths(1, (int(total),), -use.offset) for total in totals if total is not None]
    role = fixed[0] if fixed else _total_length(use)
    return replace(role, low=new - 1 - use.offset if isinstance(new, int) else 0, offset=role.offset - 1)


def _positions(table: int, domain: str = "com.microsoft") -> Callable[[Use], Role | None]:
    """Return the role of positions, which are rows of an input, for the operator of a domain."""
    return lambda use: Positions(((_dim(use.node, table, 0), 0),)) if use.node.domain == domain else None


def _below_cache(past: int, new: int) -> Callable[[Use], Role]:
    """Return the role of a length of the past that leaves room in the buffer ``past`` for the rows of ``new``."""

    def role(use: Use) -> Role:
        rows = _dim(use.node, new, -2)
        return IntegerRange(0, ((_dim(use.node, past, -2), 1 - rows if isinstance(rows, int) else 0),))

    return role


def _unpooled(use: Use) -> Role:
    """Return the role of the shape that MaxUnpool would choose by itself without padding."""
    dims, kernel = _dims(use.node, 0), use.node.attributes.get_ints("kernel_shape", ())
    strides = use.node.attributes.get_ints("strides", None) or [1] * len(kernel)
    known = zip(dims[2:], kernel, strides, strict=False)
    return Sizes((*dims[:2], *((dim - 1) * step + size for dim, size, step in known if isinstance(dim, int))))


def _mask(use: Use) -> Role | None:
    """Return the role of x in 1 − x, or in x ≠ 0."""
    if use.node.op_type == "Sub":
        return Mask() if constant(use.node.inputs[0]) == 1 else None
    return Mask() if use.node.attributes.get_int("to", 0) == ir.DataType.BOOL else None


def _compared(around: bool) -> Callable[[Use], Role | None]:
    """Return the role of what is compared with a constant: that number, or numbers ``around`` it."""

    def role(use: Use) -> Role | None:
        number = constant(use.node.inputs[1 - use.index])
        if number is None:
            return None
        return Choice((number + 1 - use.offset, number - 1 - use.offset) if around else (number - use.offset,))

    return role


def _beside_thresholds(use: Use) -> Columns | None:
    """Return the role of features that decision trees compare: their thresholds, and numbers between and beyond."""
    columns, thresholds = tree_thresholds(use.node)
    if not use.aligned or use.offset or len(columns) != len(thresholds):
        return None
    numbers = {}
    for column in map(int, np.unique(columns)):
        ends = np.unique(thresholds[(columns == column) & np.isfinite(thresholds)])
        if not ends.size:
            continue
        beyond = (ends[-1] - ends[0]) / 4 or abs(ends[0]) or 1.0
        between = (ends[1:] + ends[:-1]) / 2
        numbers[column] = (*ends.tolist(), *between.tolist(), float(ends[0] - beyond), float(ends[-1] + beyond))
    return Columns(numbers) if numbers else None


def _always(role: Role) -> Callable[[Use], Role]:
    return lambda use: role


_SPLITS = ("Split", "SplitToSequence")
_ZERO = (
    *(("SequenceAt", 1), ("SequenceErase", 1), ("SequenceInsert", 2), ("ExpandDims", 1)),
    *(("ConvTransposeWithDynamicPads", 2), ("BifurcationDetector", 2), ("Slice", 1), ("Range", 0), ("CumSum", 1)),
    *(("CumProd", 1), ("Dropout", 2)),  # of a training, two runs would differ
)
_ONE = (("Slice", 4), ("Expand", 1), ("Resize", 2), ("Upsample", 1), ("Range", 2), ("Loop", 1))
_FIRST = (
    *(("Slice", 3), ("Unsqueeze", 1), ("Pad", 3), *((kind, 1) for kind in REDUCTIONS)),
    *(("MaxRoiPool", 1), ("RoiAlign", 1)),  # regions begin before they end
)
_COUNTS = (
    *(("DFT", 1), ("STFT", 1), ("CropAndResize", 3)),
    *((f"{name}Window", 0) for name in ("Blackman", "Hamming", "Hann")),
)
_ROWS = {
    ("EmbedLayerNormalization", 0): (2, 0),
    ("EmbedLayerNormalization", 1): (4, 0),
    ("QEmbedLayerNormalization", 0): (2, 0),
    ("QEmbedLayerNormalization", 1): (4, 0),
    ("WordConvEmbedding", 0): (3, 0),
    ("NGramRepeatBlock", 0): (1, 1),
    ("ArrayFeatureExtractor", 1): (0, -1),
    ("CropAndResize", 2): (0, 0),
    ("RoiAlign", 2): (0, 0),
    ("MaxUnpool", 1): (0, -1),
    ("SoftmaxCrossEntropyLoss", 1): (0, 1),
    ("NegativeLogLikelihoodLoss", 1): (0, 1),
}
"""Operands that are indices along an axis of another one."""
EVIDENCE: dict[tuple[str, int], Callable[[Use], Role | None]] = {
    **{(op, 1): _along(0, "axis", 0) for op in ("Gather", "GatherElements", "ScatterElements", "Scatter")},
    **{(op, 1): _tuples for op in ("GatherND", "ScatterND")},
    ("GatherBlockQuantized", 1): _along(0, "gather_axis", 0),
    **{place: _along(table, "", axis) for place, (table, axis) in _ROWS.items()},
    ("EmbedLayerNormalization", 8): _positions(3),
    ("OneHot", 0): lambda use: _below(None if (n := constant(use.node.inputs[1])) is None else int(n), use=use),
    ("OneHot", 1): _always(IntegerRange(2, ((8, 1),))),
    ("Cast", 0): _mask,
    ("Sub", 1): _mask,
    ("Slice", 2): lambda use: IntegerRange(1, tuple((dim, 1) for dim in _dims(use.node, 0) or (None,))),
    ("Squeeze", 1): lambda use: Sizes(tuple(axis for axis, dim in enumerate(_dims(use.node, 0)) if dim == 1)),
    ("Reshape", 1): lambda use: Constant(1, first=-1 if use.direct else None),
    ("Tile", 1): _always(IntegerRange(1, ((3, 0),))),
    ("ConstantOfShape", 0): _always(IntegerRange(1, ((5, 0),))),
    ("Pad", 1): _always(IntegerRange(0, ((3, 0),))),
    **dict.fromkeys((("Resize", 3), ("CenterCropPad", 1)), _sizes),
    ("AffineGrid", 1): lambda use: Sizes((_dim(use.node, 0, 0), 3, 3, 3)),
    ("MaxUnpool", 2): _unpooled,
    **{(op, 1): lambda use: Parts(_dim(use.node, 0, use.node.attributes.get_int("axis", 0))) for op in _SPLITS},
    **dict.fromkeys(_ZERO, _always(Constant(0))),
    **dict.fromkeys(_ONE, _always(Constant(1))),
    **dict.fromkeys(_FIRST, _always(Positions())),
    ("CropAndResize", 1): _always(Uniform(0.0, 1.0)),
    ("Bernoulli", 0): _always(Uniform(0.0, 1.0)),
    ("GroupQueryAttention", 5): _last_positions,
    ("GroupQueryAttention", 6): _total_length,
    ("GroupQueryAttention", 9): _positions(7),
    ("RotaryEmbedding", 1): _positions(2),
    ("RotaryEmbedding", 3): _positions(1, ""),
    ("MultiHeadAttention", 8): _below_cache(6, 1),
    ("DecoderMaskedMultiHeadAttention", 7): _below_cache(5, 1),
    ("TensorScatter", 2): _below_cache(0, 1),
    ("Attention", 6): _length(1, -2, ""),
    ("DFT", 2): _always(Constant(-2)),
    ("STFT", 3): _length(0, 1, ""),
    **dict.fromkeys(_COUNTS, _always(IntegerRange(2, ((9, 0),)))),
    **{("MelWeightMatrix", index): _always(Constant(value)) for index, value in enumerate((4, 16, 8000, 0, 4000))},
    ("TopK", 1): _length(0, -1),
    **dict.fromkeys((("Range", 1), ("NonMaxSuppression", 2)), _always(IntegerRange(1, ((9, 0),)))),
    ("Loop", 0): _always(IntegerRange(1, ((4, 0),))),
    **{(op, 1): lambda use: IntegerRange(1, ((8, 0),)) if use.integer else None for op in ("Div", "Mod")},
    **{(op, 4): _length(0, 0, "") for op in ("LSTM", "GRU", "RNN", "DynamicQuantizeLSTM")},
    ("ReverseSequence", 1): _length(0, 0, "time_axis"),
    **{("NonMaxSuppression", index): _always(Uniform(0.0, 1.0)) for index in (3, 4)},
    ("BatchNormalization", 4): _always(Uniform(0.5, 1.5)),  # a variance
    **{(op, 1): _always(Uniform(0.01, 0.1)) for op in ("QuantizeLinear", "DequantizeLinear")},  # a scale
    **{(op, 0): _always(Uniform(0.1, 2.0)) for op in ("Log", "Sqrt")},
    **{(f"TreeEnsemble{kind}", 0): _beside_thresholds for kind in ("", "Classifier", "Regressor")},
    **{(op, 0): _always(Uniform(-0.9, 0.9)) for op in ("Acos", "Asin", "Atanh")},
    ("Acosh", 0): _always(Uniform(1.1, 3.0)),
    **{("Equal", index): _compared(around=False) for index in (0, 1)},
    **{
        (op, index): _compared(around=True)
        for op in ("Greater", "GreaterOrEqual", "Less", "LessOrEqual")
        for index in (0, 1)
    },
}
"""The role of a graph input that reaches this input of an operator, if that is evidence."""
CUT = {("Slice", 1): _sliced, ("Slice", 2): _sliced, ("TopK", 1): EVIDENCE["TopK", 1]}
"""The roles of places or lengths: those beyond an axis, or from its end, are others if it is padded."""
