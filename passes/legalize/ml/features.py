"""Write the numeric feature preprocessing of ai.onnx.ml as arithmetic.

    ArrayFeatureExtractor(x, i)  →  Gather(x, i), along the last axis
    Binarizer(x)                 →  Cast(x > threshold)
    Imputer(x)                   →  Where(x = missing, imputed, x)
    Normalizer(x)                →  x / max(x), x / Σ|x|, x / √Σx²; x if the divisor is zero
    OneHotEncoder(x)             →  Cast(x = categories)
    Scaler(x)                    →  (x − offset) · scale

Skips: strings, and parameters that are neither single nor one per column.
"""

from __future__ import annotations

import math

import numpy as np
import onnx_ir as ir

from passes.builders.arithmetic import Arithmetic
from passes.legalize.ml import common as ml
from passes.legalize.ml.common import FLOAT, Features
from passes.rewriting.base import Exactness, Skip
from passes.rewriting.edit import Edit
from passes.rewriting.rewrite import Replacement, rewrite


@rewrite("ai.onnx.ml.ArrayFeatureExtractor", since_opset=11, needs_shape=(0,), needs_dtype=(0,))
def gather_array_features(node: ir.Node, edit: Edit) -> Replacement:
    """Write an ArrayFeatureExtractor as Gather; the columns of a vector are one row."""
    rank = len(ml.read(node, edit, rank=None).shape)
    flat = edit.reshape(edit.input(node, 1), [-1])
    columns = edit.op("Gather", [node.inputs[0], flat], {"axis": rank - 1})
    return edit.unsqueeze(columns, [0]) if rank == 1 else columns


@rewrite("ai.onnx.ml.Binarizer", since_opset=11, needs_shape=(0,), needs_dtype=(0,))
def decompose_binarizer(node: ir.Node, edit: Edit) -> Replacement:
    """Write a Binarizer as a comparison with the threshold, which is rounded down for integers."""
    features, threshold = ml.read(node, edit, rank=None), node.attributes.get_float("threshold", 0.0) or 0.0
    if features.dtype.is_integer():
        limits = np.iinfo(features.dtype.numpy())
        if not abs(threshold) <= -float(limits.min):
            return Skip(f"the threshold is out of range of {features.dtype}")
        threshold = min(math.floor(threshold), limits.max)
    a = Arithmetic(edit, features.dtype)
    return a.cast(a("Greater", features.value, np.array(threshold, features.dtype.numpy())))


@rewrite("ai.onnx.ml.Imputer", since_opset=11, needs_shape=(0,), needs_dtype=(0,))
def decompose_imputer(node: ir.Node, edit: Edit) -> Replacement:
    """Write an Imputer as Where, which replaces missing elements by one value or that of their column."""
    features, missing = ml.read(node, edit, rank=None), 0.0
    if features.dtype.is_floating_point():
        kind, other, imputed = "float", "int64", ml.floats(node, "imputed_value_floats")
        missing = node.attributes.get_float("replaced_value_float", 0.0)
    else:
        kind, other, imputed = "int64", "float", ml.integers(node, "imputed_value_int64s")
        missing = node.attributes.get_int("replaced_value_int64", 0)
    count = len(imputed)
    if not count or f"imputed_value_{other}s" in node.attributes:
        return Skip(f"imputed_value_{kind}s is missing, or not the only list of imputed values")
    if not _is_along_columns(count, features):
        if count == _period(features):
            raise features.misfit(count)
        imputed = imputed[:1]
    a = Arithmetic(edit, features.dtype)
    is_missing = a("IsNaN", features.value) if math.isnan(missing) else a("Equal", features.value, missing)
    return a("Where", is_missing, imputed, features.value)


@rewrite("ai.onnx.ml.Normalizer", exactness=Exactness.ROUNDING, since_opset=11, needs_shape=(0,), needs_dtype=(0,))
def decompose_normalizer(node: ir.Node, edit: Edit) -> Replacement:
    """Write a Normalizer as a division by the norm of each row."""
    features, kind = ml.read(node, edit), node.attributes.get_string("norm", "MAX")
    a, axes = Arithmetic(edit, FLOAT), [len(features.shape) - 1]
    x = a.cast(features.value)
    match kind:
        case "MAX":  # of the values, not of their magnitudes
            norm = a.reduce("Max", x, axes)
            y = a("Div", x, norm)
        case "L1":
            norm = a.reduce("Sum", a("Abs", x), axes)
            y = a("Div", x, norm)
        case "L2":
            squares = a("Mul", x, x)
            norm = a.reduce("Sum", squares, axes)
            size = a("Sqrt", a("Div", squares, norm))
            y = a("Where", a("Less", x, 0), a("Neg", size), size)
        case _:
            return Skip(f"the norm {kind} is unknown")
    return a("Where", a("Equal", norm, 0), x, y)


@rewrite("ai.onnx.ml.OneHotEncoder", since_opset=11, needs_shape=(0,), needs_dtype=(0,))
def decompose_one_hot_encoder(node: ir.Node, edit: Edit) -> Replacement:
    """Write a OneHotEncoder as a comparison of elements, truncated to integers, with its categories."""
    features, categories = ml.read(node, edit, rank=None), ml.integers(node, "cats_int64s")
    if not len(categories):
        return Skip("the categories are strings, which run on the host")
    column = edit.unsqueeze(edit.cast(features.value, ir.DataType.INT64), [len(features.shape)])
    return edit.cast(edit.op("Equal", [column, edit.constant(categories)]), FLOAT)


@rewrite("ai.onnx.ml.Scaler", exactness=Exactness.ROUNDING, since_opset=11, needs_shape=(0,), needs_dtype=(0,))
def decompose_scaler(node: ir.Node, edit: Edit) -> Replacement:
    """Write a Scaler as a subtraction and a multiplication in the precision of the features."""
    features, offset, scale = ml.read(node, edit, rank=None), ml.floats(node, "offset"), ml.floats(node, "scale")
    if len(offset) != len(scale) or not len(offset):
        return Skip(f"there are {len(offset)} offsets and {len(scale)} scales")
    if len(offset) > 1 and not _is_along_columns(len(offset), features):
        raise features.misfit(len(offset))
    a = Arithmetic(edit, features.dtype if features.dtype.is_floating_point() else FLOAT)
    return a.cast(a("Mul", a("Sub", a.cast(features.value), offset), scale), FLOAT)


def _period(features: Features) -> int:
    """Return the period of the parameters: the size of the second dimension, even if there are more."""
    return features.shape[1] if len(features.shape) > 1 else features.shape[0]


def _is_along_columns(count: int, features: Features) -> bool:
    return count == _period(features) == features.columns
