"""The roles of a model's inputs: what values make sense for them, inferred from the graph.

A role comes from the nodes that an input reaches through operators that only move values (Cast, Reshape, Concat, …): an
input that reaches the indices of an embedding is a token id below the number of rows of its table. If the graph gives
no evidence, the name is used (masks, positions, lengths). Calls of model-local functions are not followed.
"""

from __future__ import annotations

import functools
import math
import re
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import onnx_ir as ir

from onnx_bridge.samples.dimensions import Dim, dims_of
from passes.graphs.traversal import subgraphs
from passes.legalize.ml.tree_ensembles import thresholds as tree_thresholds
from passes.operators import REDUCTIONS, operators

Bound = tuple[Dim, int]
"""A dimension, and an offset to add to it."""

_KEEPING = frozenset(("Cast", "Concat", "Flatten", "Identity", "Reshape", "Squeeze", "Transpose", "Unsqueeze"))
"""Operators whose output has every element of the input."""
_INDEXING = frozenset(
    (operator, 1) for operator in ("Gather", "GatherElements", "GatherND", "Scatter", "ScatterElements", "ScatterND")
) | {("GatherBlockQuantized", 1)}
"""Inputs with indices, which may be negative: they count from the end."""
_COUNTING = frozenset((("LSTM", 4), ("GRU", 4), ("RNN", 4), ("ReverseSequence", 1), ("EmbedLayerNormalization", 0)))
"""Inputs with lengths from 0 to a size, or with indices that may not be negative."""
_MAX_STEPS = 12
"""The most moving operators that are followed; exporters put about five between token ids and their embedding."""


@dataclass(frozen=True)
class Data:
    """Values without constraints."""


@dataclass(frozen=True)
class Columns(Data):
    """Values of which each column, along the last axis, is any of some numbers: those that decide something."""

    numbers: Mapping[int, tuple[float, ...]]


@dataclass(frozen=True)
class IntegerRange:
    """Integers from ``low`` to the smallest of ``highs``, exclusive; only ``low`` if that range is empty."""

    low: int
    highs: tuple[Bound, ...]

    def narrowed(self, other: IntegerRange) -> IntegerRange:
        """Return the intersection, or this range alone if the intersection is empty for known sizes."""
        low, highs = max(self.low, other.low), self.highs + other.highs
        known = [dim + more for dim, more in highs if isinstance(dim, int)]
        return IntegerRange(low, highs) if not known or min(known) > low else self


@dataclass(frozen=True)
class Positions:
    """0, 1, 2, … along the last axis, modulo the smallest of ``highs``."""

    highs: tuple[Bound, ...] = ()


@dataclass(frozen=True)
class Mask:
    """Ones, at least ``least``, then zeros along the last axis; their number is random for each entry of the first."""

    least: Dim = 1


@dataclass(frozen=True)
class Uniform:
    """Floats in [``low``, ``high``)."""

    low: float
    high: float


@dataclass(frozen=True)
class Constant:
    """One value, except that the first element may be a different one."""

    value: int
    first: int | None = None


@dataclass(frozen=True)
class Choice:
    """One of some numbers: that of the seed and the sample, in turn."""

    numbers: tuple[float, ...]


@dataclass(frozen=True)
class Sizes:
    """The given sizes, in order."""

    sizes: tuple[Dim, ...]


@dataclass(frozen=True)
class Parts:
    """Sizes of equal parts of ``whole``; the last one also has the rest."""

    whole: Dim


@dataclass(frozen=True)
class Lengths:
    """Integers from ``low`` to the sum of ``terms`` and ``offset``, inclusive; the first is the largest."""

    low: int
    terms: tuple[Dim, ...]
    offset: int = 0


Role = Data | IntegerRange | Positions | Mask | Uniform | Constant | Choice | Sizes | Parts | Lengths


def roles(inputs: Sequence[ir.Value]) -> list[Role]:
    """Return the roles of the inputs of a graph, which are tensors of known dtype, in order."""
    return [_role(value, inputs) for value in inputs]


def index_bounds(value: ir.Value, sizes: Mapping[Dim, int], *, padded: bool = False) -> tuple[tuple[int, int], ...]:
    """Return the least and the largest integer that an input may have as indices or lengths; () without bounds.

    There are several pairs, for the elements along the last axis, if these are indices along different axes.

    Args:
        value: the input; only uses are considered to which every element gets.
        sizes: those of dimensions that have symbols.
        padded: also bounds of what is real: those of uses that may not be executed, and of what is cut to fit.
    """
    rows: list[list[tuple[int, int]]] = []
    for use in _uses(value, everything=True):
        key = (use.node.op_type, use.index)
        role = _EVIDENCE[key](use) if key in _INDEXING | _COUNTING else None
        if padded and key in _CUT:
            role = _CUT[key](use)
        if isinstance(role, IntegerRange) and (padded or use.node.graph is value.graph) and use.integer:
            dims = [sizes.get(dim, dim) for dim, _ in role.highs]
            ends = [dim + more for dim, (_, more) in zip(dims, role.highs, strict=True) if isinstance(dim, int)]
            if len(ends) == len(dims):
                ends = ends if use.aligned else [max(ends)]
                rows.append([(-end - 2 * use.offset if key in _INDEXING else -use.offset, end - 1) for end in ends])
    count = max(map(len, rows), default=0)
    columns = zip(*(row * (count // len(row)) for row in rows if len(row) in (1, count)), strict=True)
    return tuple((max(low for low, _ in column), min(high for _, high in column)) for column in columns)


def _role(value: ir.Value, inputs: Sequence[ir.Value]) -> Role:
    name = (value.name or "").lower()
    dtype = value.dtype or ir.DataType.UNDEFINED
    known = [(use, _EVIDENCE.get((use.node.op_type, use.index))) for use in _uses(value)]
    evidence = [role for use, role_of in known if role_of is not None and (role := role_of(use))]
    integer = dtype.is_integer()
    decided = Constant | Positions | Sizes | Parts | Lengths | Columns
    fixed: list[Role] = [role for role in evidence if isinstance(role, decided)]
    betweens = [role for role in evidence if isinstance(role, IntegerRange)]
    between = functools.reduce(IntegerRange.narrowed, betweens) if betweens else None
    if fixed:
        return fixed[0]
    if integer and "position" in name:
        return Positions(between.highs if between else ())
    if "mask" in name and not dtype.is_string():
        return _mask_of(value, inputs)
    if between:
        return between
    if integer and any(isinstance(role, Mask) for role in evidence):
        return _mask_of(value, inputs)
    ranges = [role for role in evidence if isinstance(role, Uniform)]
    if ranges and dtype.is_floating_point():
        return ranges[0]
    if integer and re.search(r"(^|_)len(gth)?s?($|_)", name) and len(dims_of(value) or ()) <= 1:
        return IntegerRange(1, ((_tokens(value, inputs), 1),))
    compared = [number for role in evidence if isinstance(role, Choice) for number in role.numbers]
    if compared and all(dim == 1 for dim in dims_of(value) or ()):
        return Choice(tuple(dict.fromkeys((*compared, max(compared) + 1))))
    return Data()


def _mask_of(value: ir.Value, inputs: Sequence[ir.Value]) -> Mask:
    """Return the role of a mask; a GroupQueryAttention that takes the number of its ones counts the new tokens, too."""
    sums = [use.node.outputs[0] for use in _uses(value) if (use.node.op_type, use.index) == ("ReduceSum", 0)]
    counts = {(use.node.op_type, use.index) for total in sums for use in _uses(total)}
    return Mask(_tokens(value, inputs)) if ("GroupQueryAttention", 5) in counts else Mask()


def _tokens(value: ir.Value, inputs: Sequence[ir.Value]) -> Dim:
    """Return the number of tokens, as the first other input with two axes or more has them; 1 without such an input."""
    others = [dims for other in inputs if other is not value and len(dims := dims_of(other) or ()) >= 2]
    return others[0][1] if others else 1


@dataclass(frozen=True)
class _Use:
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


def _moves(node: ir.Node, index: int) -> bool:
    """Return whether the outputs of a node consist of values of its input ``index``, or of several like it."""
    if node.op_type in ("Concat", "Where"):
        return node.op_type == "Concat" or index > 0
    return index == 0 and node.op_type in operators("moves")


def _uses(value: ir.Value, *, everything: bool = False) -> Iterator[_Use]:
    """Yield the uses that the values reach, nearest first; if ``everything``, only those that all of them reach."""
    integer = value.dtype is not None and value.dtype.is_integer()
    queue, seen = deque([(value, 0, 0, True)]), {value}
    while queue:
        current, offset, steps, aligned = queue.popleft()
        for node, index in current.uses():
            if node.domain not in ("", "ai.onnx", "ai.onnx.ml", "com.microsoft"):
                continue
            yield _Use(node, index, offset, steps == 0, aligned, integer)
            moves = node.op_type in _KEEPING and (index == 0 or node.op_type == "Concat")
            bodies = list(subgraphs(node)) if node.op_type == "Scan" or (node.op_type == "Loop" and index > 1) else []
            # counted from the end: before opset 9 Scan has an input more, first, which its body has not
            places = [(body, index - len(node.inputs) + len(body.inputs)) for body in bodies]
            targets = [body.inputs[place] for body, place in places if place >= 0] if bodies else node.outputs
            more = 0 if bodies or (moves if everything else _moves(node, index)) else _shift(node, index)
            if more is None or steps == _MAX_STEPS:
                continue
            fresh = [target for target in targets if target not in seen]
            seen.update(fresh)
            straight = aligned and (node.op_type in ("Cast", "Identity") or not moves)
            queue.extend((target, offset + more, steps + 1, straight) for target in fresh)


def _shift(node: ir.Node, index: int) -> int | None:
    """Return the constant integer that a node adds to its input ``index``; None otherwise."""
    if (node.op_type, index) not in (("Add", 0), ("Add", 1), ("Sub", 0)):
        return None
    number = _constant(node.inputs[1 - index])
    if number is None or number != int(number):
        return None
    return int(number) if node.op_type == "Add" else -int(number)


def _constant(value: ir.Value | None) -> float | None:
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


def _below(*dims: Dim, use: _Use) -> IntegerRange:
    """Return the role of indices into the given dimensions."""
    return IntegerRange(max(0, -use.offset), tuple((dim, -use.offset) for dim in dims or (None,)))


def _along(index: int, attribute: str, default: int) -> Callable[[_Use], Role]:
    """Return the role of indices along the axis, given by an attribute, of input ``index``."""
    return lambda use: _below(_dim(use.node, index, use.node.attributes.get_int(attribute, default)), use=use)


def _tuples(use: _Use) -> Role:
    """Return the role of index tuples (GatherND, ScatterND), whose last axis counts the axes that they index."""
    dims, depth = _dims(use.node, 0), _dim(use.node, 1, -1)
    start = use.node.attributes.get_int("batch_dims", 0)
    return _below(*(dims[start : start + depth] if isinstance(depth, int) else dims[start:]), use=use)


def _sliced(use: _Use) -> Role | None:
    """Return the role of where a Slice begins or ends, along each axis."""
    dims, axes = _dims(use.node, 0), use.node.inputs[3] if len(use.node.inputs) > 3 else None
    axis, count = _constant(axes), _dim(use.node, use.index, 0)
    cut = dims[:count] if axes is None and isinstance(count, int) else dims[int(axis or 0) :][:1]
    return IntegerRange(0, tuple((dim, 1) for dim in cut)) if cut and (axes is None or axis is not None) else None


def _length(index: int, axis: int, attribute: str = "axis") -> Callable[[_Use], Role]:
    """Return the role of integers from 1 to the size of an axis of input ``index``."""
    return lambda use: IntegerRange(1, ((_dim(use.node, index, use.node.attributes.get_int(attribute, axis)), 1),))


def _sizes(use: _Use) -> Role:
    """Return the role of sizes that the first input has already, along all axes or those of an attribute."""
    dims = _dims(use.node, 0)
    axes = use.node.attributes.get_ints("axes", None) or range(len(dims))
    return Sizes(tuple(dims[axis] for axis in axes if -len(dims) <= axis < len(dims)))


def _total_length(use: _Use) -> Lengths:
    """Return the role of the total length of a GroupQueryAttention: its cache grows, unless it is declared not to."""
    past = 0 if use.node.inputs[3] is None else _dim(use.node, 3, 2)
    present = [dims_of(value) or () for value in use.node.outputs[1:2]]
    grows = not past or past not in [dims[2] for dims in present if len(dims) == 4]
    return Lengths(1, (past, _dim(use.node, 0, 1)) if grows else (past,), -use.offset)


def _last_positions(use: _Use) -> Role:
    """Return the role of the lengths of a GroupQueryAttention's samples, less one."""
    new, totals = _dim(use.node, 0, 1), [_constant(value) for value in use.node.inputs[6:7]]
    constant = [Lengths(1, (int(total),), -use.offset) for total in totals if total is not None]
    role = constant[0] if constant else _total_length(use)
    return replace(role, low=new - 1 - use.offset if isinstance(new, int) else 0, offset=role.offset - 1)


def _positions(table: int, domain: str = "com.microsoft") -> Callable[[_Use], Role | None]:
    """Return the role of positions, which are rows of an input, for the operator of a domain."""
    return lambda use: Positions(((_dim(use.node, table, 0), 0),)) if use.node.domain == domain else None


def _below_cache(past: int, new: int) -> Callable[[_Use], Role]:
    """Return the role of a length of the past that leaves room in the buffer ``past`` for the rows of ``new``."""

    def role(use: _Use) -> Role:
        rows = _dim(use.node, new, -2)
        return IntegerRange(0, ((_dim(use.node, past, -2), 1 - rows if isinstance(rows, int) else 0),))

    return role


def _unpooled(use: _Use) -> Role:
    """Return the role of the shape that MaxUnpool would choose by itself without padding."""
    dims, kernel = _dims(use.node, 0), use.node.attributes.get_ints("kernel_shape", ())
    strides = use.node.attributes.get_ints("strides", None) or [1] * len(kernel)
    known = zip(dims[2:], kernel, strides, strict=False)
    return Sizes((*dims[:2], *((dim - 1) * step + size for dim, size, step in known if isinstance(dim, int))))


def _mask(use: _Use) -> Role | None:
    """Return the role of x in 1 − x, or in x ≠ 0."""
    if use.node.op_type == "Sub":
        return Mask() if _constant(use.node.inputs[0]) == 1 else None
    return Mask() if use.node.attributes.get_int("to", 0) == ir.DataType.BOOL else None


def _compared(around: bool) -> Callable[[_Use], Role | None]:
    """Return the role of what is compared with a constant: that number, or numbers ``around`` it."""

    def role(use: _Use) -> Role | None:
        number = _constant(use.node.inputs[1 - use.index])
        if number is None:
            return None
        return Choice((number + 1 - use.offset, number - 1 - use.offset) if around else (number - use.offset,))

    return role


def _beside_thresholds(use: _Use) -> Columns | None:
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


def _always(role: Role) -> Callable[[_Use], Role]:
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
_EVIDENCE: dict[tuple[str, int], Callable[[_Use], Role | None]] = {
    **{(op, 1): _along(0, "axis", 0) for op in ("Gather", "GatherElements", "ScatterElements", "Scatter")},
    **{(op, 1): _tuples for op in ("GatherND", "ScatterND")},
    ("GatherBlockQuantized", 1): _along(0, "gather_axis", 0),
    **{place: _along(table, "", axis) for place, (table, axis) in _ROWS.items()},
    ("EmbedLayerNormalization", 8): _positions(3),
    ("OneHot", 0): lambda use: _below(None if (n := _constant(use.node.inputs[1])) is None else int(n), use=use),
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
_CUT = {("Slice", 1): _sliced, ("Slice", 2): _sliced, ("TopK", 1): _EVIDENCE["TopK", 1]}
"""The roles of places or lengths: those beyond an axis, or from its end, are others if it is padded."""
