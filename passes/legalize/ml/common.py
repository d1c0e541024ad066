"""Features, scores and labels, shared by the operators of ai.onnx.ml.

ONNX Runtime's kernels are the reference where the standard is silent, as it often is: which transforms apply to a
single score, how one score becomes two, which of two equal scores wins.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from passes.builders.operands import is_output_used
from passes.graphs.scopes import Scope
from passes.rewriting.base import Skip
from passes.rewriting.edit import Edit
from passes.rewriting.rewrite import Match

DOMAIN = "ai.onnx.ml"
_OLDEST = 11
"""The oldest opset of the standard operators, if a rule does not say otherwise."""
_DEFAULT = 13
"""The opset to import into a model that imports no standard operators."""
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
        """The number of rows; a vector is one row."""
        return self.shape[0] if len(self.shape) > 1 else 1

    @property
    def columns(self) -> int:
        """The number of features in a row, for at most two dimensions."""
        return self.shape[-1]


def read(node: ir.Node, scope: Scope, *, rank: int | None = 2, oldest: int = _OLDEST) -> Features | Skip | None:
    """The features that a node takes as its first input.

    Args:
        node: an operator of ai.onnx.ml.
        scope: where it is.
        rank: the maximum rank of the features; None for any rank.
        oldest: the oldest opset of the standard operators that the rule can write.
    """
    if not node.inputs or node.inputs[0] is None:
        return None
    if opset(scope) < oldest:
        return Skip(f"opset {opset(scope)} is too old: use convert-opset")
    dtype, shape = scope.dtype(node.inputs[0]), scope.shape(node.inputs[0])
    if dtype == ir.DataType.STRING:
        return Skip("it takes strings, which run on the host")
    if dtype not in _FEATURES:
        return Skip(f"its features have an unknown or unsupported dtype: {dtype}")
    if shape is None or not shape.is_static():
        return Skip("the shape of its features is unknown: freeze it")
    if not len(shape) or (rank is not None and len(shape) > rank):
        return Skip(f"its features have {len(shape)} dimensions")
    return Features(node, dtype, shape.numpy())


def opset(scope: Scope) -> int:
    """The version of the standard operators that a rule writes."""
    return scope.opset_imports.get("", _DEFAULT)


def begin(edit: Edit) -> None:
    """Import the standard operators into a model that has none."""
    imports = edit.scope.graph.opset_imports
    if "" not in imports and "ai.onnx" not in imports:
        imports[""] = _DEFAULT


def cast(value: ir.Value, dtype: ir.DataType, edit: Edit) -> ir.Value:
    """``value`` cast to ``dtype``; itself where it has that dtype."""
    return value if edit.scope.dtype(value) == dtype else edit.op("Cast", [value], {"to": dtype.value})


def matrix(found: Features, edit: Edit, dtype: ir.DataType = FLOAT) -> ir.Value:
    """The features as a matrix [rows, columns] of a floating-point dtype."""
    value = found.node.inputs[0]
    assert value is not None
    value = cast(value, dtype, edit)
    return edit.op("Unsqueeze", [value, edit.constant(np.array([0]))]) if len(found.shape) == 1 else value


def floats(node: ir.Node, name: str) -> np.ndarray:
    """A float list attribute as float32; empty where it is missing."""
    return np.array(node.attributes.get_floats(name, []), np.float32)


def integers(node: ir.Node, name: str) -> np.ndarray:
    """An integer list attribute as int64; empty where it is missing."""
    return np.array(node.attributes.get_ints(name, []), np.int64)


def string_labels(node: ir.Node) -> Skip | None:
    """A Skip where the labels of a classifier are strings and used."""
    if node.attributes.get_strings("classlabels_strings", []) and is_output_used(node, 0):
        return Skip("its labels are strings, which run on the host")
    return None


def pick(labels: Sequence[int] | np.ndarray, index: ir.Value, edit: Edit) -> ir.Value:
    """The labels at some indices."""
    return edit.op("Gather", [edit.constant(np.asarray(labels, np.int64)), index], {"axis": 0})


def choose(condition: ir.Value, yes: int, no: int, edit: Edit) -> ir.Value:
    """One of two labels by a condition of shape [rows, 1]; the result has shape [rows]."""
    labels = [edit.constant(np.array(each, np.int64)) for each in (yes, no)]
    return edit.op("Squeeze", [edit.op("Where", [condition, *labels]), edit.constant(np.array([1]))])


def number(value: float, like: ir.Value, edit: Edit) -> ir.Value:
    """A scalar constant in the dtype of ``like``."""
    return edit.constant(np.array(value, (edit.scope.dtype(like) or FLOAT).numpy()))


def transform(scores: ir.Value, kind: str, edit: Edit) -> ir.Value:
    """The post transform of at least two scores per row.

    Args:
        scores: [rows, scores].
        kind: NONE, LOGISTIC, SOFTMAX, SOFTMAX_ZERO or PROBIT.
        edit: receives the new nodes.
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
    """The scores of the negative and the positive class, [rows, 2], from one score.

    Args:
        score: [rows, 1].
        edit: receives the new nodes.
        positive: whether the two sum to one, rather than to zero.
        kind: the post transform; only LOGISTIC has an effect, on both.
    """
    if positive and kind != "LOGISTIC":
        parts = [edit.op("Sub", [number(1, score, edit), score]), score]
    else:
        parts = [edit.op("Neg", [score]), score]
        parts = [edit.op("Sigmoid", [each]) for each in parts] if kind == "LOGISTIC" else parts
    return edit.op("Concat", parts, {"axis": 1})


def probit(value: ir.Value, edit: Edit) -> ir.Value:
    """√2 · erf⁻¹(2x − 1), by Winitzki's approximation, as in ONNX Runtime."""

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
    """Softmax over the scores that are not zero; zeros stay zero."""
    top = edit.op("ReduceMax", [scores, edit.constant(np.array([1]))], {"keepdims": 1})
    counts = edit.op("Greater", [edit.op("Abs", [scores]), number(1e-7, scores, edit)])
    power = edit.op("Exp", [edit.op("Sub", [scores, top])])
    kept = edit.op("Where", [counts, power, number(0, scores, edit)])
    whole = edit.op("ReduceSum", [kept, edit.constant(np.array([1]))], {"keepdims": 1})
    rest = edit.op("Mul", [scores, edit.op("Exp", [edit.op("Neg", [top])])])
    return edit.op("Div", [edit.op("Where", [counts, power, rest]), whole])
