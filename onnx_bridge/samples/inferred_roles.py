"""Infer the roles of a model's inputs from the graph.

A role comes from the nodes that an input reaches through operators that only move values (Cast, Reshape, Concat, …): an
input that reaches the indices of an embedding is a token id below the number of rows of its table. If the graph gives
no evidence, the name is used (masks, positions, lengths). Calls of model-local functions are not followed.
"""

from __future__ import annotations

import functools
import re
from collections import deque
from collections.abc import Iterator, Mapping, Sequence

import onnx_ir as ir

from onnx_bridge.samples.dimensions import Dim, dims_of
from onnx_bridge.samples.operator_evidence import CUT, EVIDENCE, Use, constant
from onnx_bridge.samples.roles import (
    Choice,
    Columns,
    Constant,
    Data,
    IntegerRange,
    Lengths,
    Mask,
    Parts,
    Positions,
    Role,
    Sizes,
    Uniform,
)
from passes.graphs.traversal import subgraphs
from passes.operators import operators

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
        role = EVIDENCE[key](use) if key in _INDEXING | _COUNTING else None
        if padded and key in CUT:
            role = CUT[key](use)
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
    known = [(use, EVIDENCE.get((use.node.op_type, use.index))) for use in _uses(value)]
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


def _moves(node: ir.Node, index: int) -> bool:
    """Return whether the outputs of a node consist of values of its input ``index``, or of several like it."""
    if node.op_type in ("Concat", "Where"):
        return node.op_type == "Concat" or index > 0
    return index == 0 and node.op_type in operators("moves")


def _uses(value: ir.Value, *, everything: bool = False) -> Iterator[Use]:
    """Yield the uses that the values reach, nearest first; if ``everything``, only those that all of them reach."""
    integer = value.dtype is not None and value.dtype.is_integer()
    queue, seen = deque([(value, 0, 0, True)]), {value}
    while queue:
        current, offset, steps, aligned = queue.popleft()
        for node, index in current.uses():
            if node.domain not in ("", "ai.onnx", "ai.onnx.ml", "com.microsoft"):
                continue
            yield Use(node, index, offset, steps == 0, aligned, integer)
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
    number = constant(node.inputs[1 - index])
    if number is None or number != int(number):
        return None
    return int(number) if node.op_type == "Add" else -int(number)
