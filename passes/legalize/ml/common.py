"""Features, scores and labels, shared by the operators of ai.onnx.ml.

ONNX Runtime's kernels are the reference when the standard is silent, as it often is: which transforms apply to a
single score, how one score becomes two, which of two equal scores wins.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from passes.builders.arithmetic import Arithmetic
from passes.builders.operands import is_output_used
from passes.rewriting.base import NotApplicable
from passes.rewriting.edit import Edit

FLOAT = ir.DataType.FLOAT
_FEATURES = (ir.DataType.FLOAT, ir.DataType.DOUBLE, ir.DataType.INT32, ir.DataType.INT64)


@dataclass(frozen=True)
class Features:
    """A matrix of features, or one row of them: the first input of a node, of rank 1 or more."""

    value: ir.Value
    dtype: ir.DataType
    shape: tuple[int, ...]

    @property
    def rows(self) -> int:
        return self.shape[0] if len(self.shape) > 1 else 1

    @property
    def columns(self) -> int:
        """The number of features in a row, for at most two dimensions."""
        return self.shape[-1]

    def misfit(self, count: int) -> NotApplicable:
        """Return the error for ``count`` parameters, which are neither one nor one per column."""
        return NotApplicable(f"there are {count} parameters for features of shape {list(self.shape)}")


def read(node: ir.Node, edit: Edit, *, rank: int | None = 2) -> Features:
    """Return the features, of a rank up to the maximum, that a node takes; its rule must need their shape and dtype."""
    dtype, shape = edit.dtype(node), edit.shape(node)
    if dtype == ir.DataType.STRING:
        raise NotApplicable("the features are strings, which run on the host")
    if dtype not in _FEATURES:
        raise NotApplicable(f"the features have the unsupported dtype {dtype}")
    if not shape or (rank is not None and len(shape) > rank):
        raise NotApplicable(f"the features have {len(shape)} dimensions")
    return Features(edit.input(node), dtype, shape)


def matrix(features: Features, edit: Edit, dtype: ir.DataType = FLOAT) -> ir.Value:
    """Return the features as a matrix [rows, columns] of a floating-point dtype."""
    value = edit.cast(features.value, dtype)
    return edit.unsqueeze(value, [0]) if len(features.shape) == 1 else value


def floats(node: ir.Node, name: str) -> np.ndarray:
    """Return a float list attribute as float32; empty if it is missing."""
    return np.array(node.attributes.get_floats(name, []), np.float32)


def integers(node: ir.Node, name: str) -> np.ndarray:
    """Return an integer list attribute as int64; empty if it is missing."""
    return np.array(node.attributes.get_ints(name, []), np.int64)


def post_transform(node: ir.Node) -> str:
    """Return the name of the post transform; NONE if there is none."""
    return node.attributes.get_string("post_transform", "NONE") or "NONE"


def has_string_labels(node: ir.Node) -> bool:
    """Return whether the labels of a classifier are strings, which must be unused."""
    is_string = bool(node.attributes.get_strings("classlabels_strings", []))
    if is_string and is_output_used(node, 0):
        raise NotApplicable("the labels are strings, which run on the host")
    return is_string


def labels(node: ir.Node, name: str = "classlabels_ints") -> Sequence[int]:
    """Return the integer labels of a classifier; the indices of string labels."""
    strings = node.attributes.get_strings("classlabels_strings", [])
    return range(len(strings)) if strings else integers(node, name).tolist()


def pick(table: Sequence[int] | np.ndarray, index: ir.Value, edit: Edit) -> ir.Value:
    """Return the labels at some indices."""
    return edit.op("Gather", [edit.index(np.asarray(table)), index], {"axis": 0})


def choose(condition: ir.Value, yes: int, no: int, edit: Edit) -> ir.Value:
    """Return one of two labels by a condition of shape [rows, 1]; the result has shape [rows]."""
    return edit.squeeze(edit.op("Where", [condition, edit.index(yes), edit.index(no)]), [1])


def number(value: float, like: ir.Value, edit: Edit) -> ir.Value:
    """Return a scalar constant in the dtype of ``like``."""
    return edit.scalar(value, like.dtype or FLOAT)


def transform(scores: ir.Value, kind: str, edit: Edit) -> ir.Value:
    """Return the post transform of at least two scores per row, [rows, scores]."""
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
    """Return the scores of the negative and the positive class, [rows, 2], from one score.

    Args:
        positive: whether the two sum to one, rather than to zero.
        kind: the post transform; only LOGISTIC has an effect, on both.
    """
    if positive and kind != "LOGISTIC":
        parts = [edit.op("Sub", [number(1, score, edit), score]), score]
    else:
        parts = [edit.op("Neg", [score]), score]
    if kind == "LOGISTIC":
        parts = [edit.op("Sigmoid", [part]) for part in parts]
    return edit.concat(parts, 1)


def probit(value: ir.Value, edit: Edit) -> ir.Value:
    """Return √2 · erf⁻¹(2x − 1), by Winitzki's approximation, as in ONNX Runtime."""
    a = Arithmetic(edit, value.dtype or FLOAT)
    x = a("Sub", a("Mul", value, 2), 1)
    log = a("Log", a("Mul", a("Sub", 1, x), a("Add", 1, x)))
    half = a("Add", a("Mul", log, 0.5), 2 / (3.14159 * 0.147))
    under = a("Sub", a("Mul", half, half), a("Mul", log, 1 / 0.147))
    size = a("Sqrt", a("Sub", a("Sqrt", under), half))
    return a("Mul", a("Where", a("Less", x, 0), a("Neg", size), size), 1.41421356)


def _softmax_zero(scores: ir.Value, edit: Edit) -> ir.Value:
    """Return the softmax over the scores that are not zero; zeros stay zero."""
    a = Arithmetic(edit, scores.dtype or FLOAT)
    top = a.reduce("Max", scores, [1])
    counts = a("Greater", a("Abs", scores), 1e-7)
    power = a("Exp", a("Sub", scores, top))
    whole = a.reduce("Sum", a("Where", counts, power, 0), [1])
    rest = a("Mul", scores, a("Exp", a("Neg", top)))
    return a("Div", a("Where", counts, power, rest), whole)
