"""What the operators of traditional machine learning have in common: their features, scores and labels.

ONNX Runtime's kernels are the reference where the standard is silent, as it often is: which transforms apply to a
single score, how one score becomes two, which of two equal scores wins.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from passes.core.base import Skip
from passes.core.edit import Edit
from passes.core.graphs import Scope
from passes.core.matching import is_plain
from passes.core.rewrite import Match

DOMAIN = "ai.onnx.ml"
_OLDEST = 11
"""The oldest opset whose operators are enough."""
_NEW = 13
"""The opset that a model imports from now on if it had no standard operators."""
_FEATURES = (ir.DataType.FLOAT, ir.DataType.DOUBLE, ir.DataType.INT32, ir.DataType.INT64)
FLOAT = ir.DataType.FLOAT


@dataclass(frozen=True)
class Features(Match):
    """A node that takes a matrix of features, or one row of them.

    Attributes:
        dtype: of the features.
        shape: of the features, rank 1 at least.
    """

    dtype: ir.DataType
    shape: tuple[int, ...]

    @property
    def rows(self) -> int:
        """How many there are; a vector is one row."""
        return self.shape[0] if len(self.shape) > 1 else 1

    @property
    def columns(self) -> int:
        """How many features a row has, if there are two dimensions at most."""
        return self.shape[-1]


def read(node: ir.Node, scope: Scope, *, rank: int | None = 2) -> Features | Skip | None:
    """What a node of this domain takes.

    Args:
        node: takes features as its first input.
        scope: where it is.
        rank: how many dimensions the features may have; None for any number.
    """
    if not is_plain(node, scope) or not node.inputs or node.inputs[0] is None:
        return None
    if scope.opset_imports.get("", _NEW) < _OLDEST:
        return Skip(f"opset {scope.opset()} is too old: use convert-opset")
    dtype, shape = scope.dtype(node.inputs[0]), scope.shape(node.inputs[0])
    if dtype == ir.DataType.STRING:
        return Skip("it takes strings, which are for the host")
    if dtype not in _FEATURES:
        return Skip(f"its features are of an unknown dtype, or of one that it does not take: {dtype}")
    if shape is None or not shape.is_static():
        return Skip("the shape of its features is unknown: freeze it")
    if not len(shape) or (rank is not None and len(shape) > rank):
        return Skip(f"its features have {len(shape)} dimensions")
    return Features(node, dtype, shape.numpy())


def begin(edit: Edit) -> None:
    """Let a model that has no standard operators import them."""
    imports = edit.scope.graph.opset_imports
    if "" not in imports and "ai.onnx" not in imports:
        imports[""] = _NEW


def cast(value: ir.Value, dtype: ir.DataType, edit: Edit) -> ir.Value:
    """A value as another dtype."""
    return value if edit.scope.dtype(value) == dtype else edit.op("Cast", [value], {"to": dtype.value})


def matrix(found: Features, edit: Edit, dtype: ir.DataType = FLOAT) -> ir.Value:
    """The features, as many rows of so many columns, in a floating-point dtype."""
    value = found.node.inputs[0]
    assert value is not None
    value = cast(value, dtype, edit)
    return edit.op("Unsqueeze", [value, edit.constant(np.array([0]))]) if len(found.shape) == 1 else value


def floats(node: ir.Node, name: str) -> np.ndarray:
    """An attribute of floats, as float32; empty where it is not given."""
    return np.array(node.attributes.get_floats(name, []), np.float32)


def integers(node: ir.Node, name: str) -> np.ndarray:
    """An attribute of integers, as int64; empty where it is not given."""
    return np.array(node.attributes.get_ints(name, []), np.int64)


def is_wanted(value: ir.Value) -> bool:
    """Whether anything takes an output."""
    return bool(value.name) and (bool(value.uses()) or value.is_graph_output())


def string_labels(node: ir.Node, name: str = "classlabels_strings") -> Skip | None:
    """A Skip where a classifier shall give labels that are strings."""
    if node.attributes.get_strings(name, []) and is_wanted(node.outputs[0]):
        return Skip("its labels are strings, which are for the host")
    return None


def pick(labels: Sequence[int] | np.ndarray, index: ir.Value, edit: Edit) -> ir.Value:
    """The labels at some indices."""
    return edit.op("Gather", [edit.constant(np.asarray(labels, np.int64)), index], {"axis": 0})


def choose(condition: ir.Value, yes: int, no: int, edit: Edit) -> ir.Value:
    """One of two labels, for conditions of shape [rows, 1]; shape [rows]."""
    labels = [edit.constant(np.array(each, np.int64)) for each in (yes, no)]
    return edit.op("Squeeze", [edit.op("Where", [condition, *labels]), edit.constant(np.array([1]))])


def number(value: float, like: ir.Value, edit: Edit) -> ir.Value:
    """A constant of one element in the dtype of another value."""
    return edit.constant(np.array(value, (edit.scope.dtype(like) or FLOAT).numpy()))


def transform(scores: ir.Value, kind: str, edit: Edit) -> ir.Value:
    """The post transform of at least two scores a row.

    Args:
        scores: [rows, scores].
        kind: NONE, LOGISTIC, SOFTMAX, SOFTMAX_ZERO or PROBIT.
        edit: where.
    """
    match kind:
        case "LOGISTIC":
            return edit.op("Sigmoid", [scores])
        case "SOFTMAX":
            return edit.op("Softmax", [scores], {"axis": 1})
        case "SOFTMAX_ZERO":
            return _softmax_zero(scores, edit)
        case "PROBIT":
            return probit(scores, edit)
    return scores


def pair(score: ir.Value, edit: Edit, *, positive: bool, kind: str) -> ir.Value:
    """Two scores out of one, for the negative and the positive class.

    Args:
        score: [rows, 1].
        edit: where.
        positive: whether the two shall sum up to one, else to zero.
        kind: the post transform; LOGISTIC makes probabilities of both, and the others do nothing.
    """
    if positive and kind != "LOGISTIC":
        parts = [edit.op("Sub", [number(1, score, edit), score]), score]
    else:
        parts = [edit.op("Neg", [score]), score]
        parts = [edit.op("Sigmoid", [each]) for each in parts] if kind == "LOGISTIC" else parts
    return edit.op("Concat", parts, {"axis": 1})


def probit(value: ir.Value, edit: Edit) -> ir.Value:
    """√2 · erf⁻¹(2x − 1), by Winitzki's approximation, which is what ONNX Runtime computes."""

    def of(each: float) -> ir.Value:
        return number(each, value, edit)

    x = edit.op("Sub", [edit.op("Mul", [value, of(2)]), of(1)])
    log = edit.op("Log", [edit.op("Mul", [edit.op("Sub", [of(1), x]), edit.op("Add", [of(1), x])])])
    half = edit.op("Add", [edit.op("Mul", [log, of(0.5)]), of(2 / (3.14159 * 0.147))])
    under = edit.op("Sub", [edit.op("Mul", [half, half]), edit.op("Mul", [log, of(1 / 0.147)])])
    size = edit.op("Sqrt", [edit.op("Sub", [edit.op("Sqrt", [under]), half])])
    signed = edit.op("Where", [edit.op("Less", [x, of(0)]), edit.op("Neg", [size]), size])
    return edit.op("Mul", [signed, of(1.41421356)])


def _softmax_zero(scores: ir.Value, edit: Edit) -> ir.Value:
    """Softmax among the scores that are not zero; those that are stay it, and count for nothing."""
    top = edit.op("ReduceMax", [scores, edit.constant(np.array([1]))], {"keepdims": 1})
    counts = edit.op("Greater", [edit.op("Abs", [scores]), number(1e-7, scores, edit)])
    power = edit.op("Exp", [edit.op("Sub", [scores, top])])
    kept = edit.op("Where", [counts, power, number(0, scores, edit)])
    whole = edit.op("ReduceSum", [kept, edit.constant(np.array([1]))], {"keepdims": 1})
    rest = edit.op("Mul", [scores, edit.op("Exp", [edit.op("Neg", [top])])])
    return edit.op("Div", [edit.op("Where", [counts, power, rest]), whole])
