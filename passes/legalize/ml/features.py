"""Write the numeric feature preprocessing of ai.onnx.ml as arithmetic.

    ArrayFeatureExtractor(x, i)  →  Gather(x, i), along the last axis
    Binarizer(x)                 →  Cast(x > threshold)
    Imputer(x)                   →  Where(x = missing, imputed, x)
    Normalizer(x)                →  x / max(x), x / Σ|x|, x / √Σx²; x where the divisor is zero
    OneHotEncoder(x)             →  Cast(x = categories)
    Scaler(x)                    →  (x − offset) · scale

Skips: strings, and parameters that are neither single nor one per column.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from passes.legalize.ml import common as ml
from passes.legalize.ml.common import DOMAIN, FLOAT, Features
from passes.rewriting.base import Exactness, Skip
from passes.rewriting.edit import Edit
from passes.rewriting.rewrite import NodeContext, NodeRewrite


class ArrayFeatureExtractor(NodeRewrite[Features]):
    """Write an ArrayFeatureExtractor as Gather."""

    name = "array-feature-extractor"
    operators = frozenset({(DOMAIN, "ArrayFeatureExtractor")})

    def match(self, node: ir.Node, context: NodeContext) -> Features | Skip | None:
        return ml.read(node, context.scope, rank=None)

    def rewrite(self, match: Features, edit: Edit) -> Sequence[ir.Value | None]:
        """Gather the columns; those of a vector are one row."""
        ml.begin(edit)
        value, where = match.node.inputs[:2]
        flat = edit.op("Reshape", [where, edit.constant(np.array([-1]))])
        made = edit.op("Gather", [value, flat], {"axis": len(match.shape) - 1})
        return [edit.op("Unsqueeze", [made, edit.constant(np.array([0]))]) if len(match.shape) == 1 else made]


class Binarizer(NodeRewrite[Features]):
    """Write a Binarizer as a comparison."""

    name = "binarizer"
    operators = frozenset({(DOMAIN, "Binarizer")})

    def match(self, node: ir.Node, context: NodeContext) -> Features | Skip | None:
        """Match numeric features whose dtype can represent the threshold."""
        found = ml.read(node, context.scope, rank=None)
        if isinstance(found, Features) and found.dtype.is_integer():
            least = float(np.iinfo(found.dtype.numpy()).min)
            if not abs(node.attributes.get_float("threshold", 0.0) or 0.0) <= -least:
                return Skip(f"its threshold is out of range of {found.dtype}")
        return found

    def rewrite(self, match: Features, edit: Edit) -> Sequence[ir.Value | None]:
        """1 where an element exceeds the threshold, which is rounded down for integers."""
        ml.begin(edit)
        value, threshold = match.node.inputs[0], match.node.attributes.get_float("threshold", 0.0) or 0.0
        if match.dtype.is_integer():
            threshold = min(math.floor(threshold), np.iinfo(match.dtype.numpy()).max)
        limit = np.array(threshold, match.dtype.numpy())
        return [edit.op("Cast", [edit.op("Greater", [value, edit.constant(limit)])], {"to": match.dtype.value})]


class Imputer(NodeRewrite[Features]):
    """Write an Imputer as Where."""

    name = "imputer"
    operators = frozenset({(DOMAIN, "Imputer")})

    def match(self, node: ir.Node, context: NodeContext) -> Features | Skip | None:
        """Match imputed values of the features' kind."""
        found = ml.read(node, context.scope, rank=None)
        if not isinstance(found, Features):
            return found
        kind = "float" if found.dtype.is_floating_point() else "int64"
        count = len(node.attributes.get(f"imputed_value_{kind}s", ir.AttrInt64s("", [])).value)
        if not count or f"imputed_value_{'int64' if kind == 'float' else 'float'}s" in node.attributes:
            return Skip(f"imputed_value_{kind}s is missing, or not the only list of imputed values")
        return found if _along_columns(count, found) or count != _period(found) else _misfit(count, found)

    def rewrite(self, match: Features, edit: Edit) -> Sequence[ir.Value | None]:
        """Replace missing elements by the single imputed value, or that of their column."""
        ml.begin(edit)
        node, value, dtype = match.node, match.node.inputs[0], match.dtype.numpy()
        if match.dtype.is_floating_point():
            imputed, missing = (
                ml.floats(node, "imputed_value_floats"),
                node.attributes.get_float("replaced_value_float", 0.0),
            )
        else:
            imputed, missing = (
                ml.integers(node, "imputed_value_int64s"),
                node.attributes.get_int("replaced_value_int64", 0),
            )
        imputed = imputed.astype(dtype) if _along_columns(len(imputed), match) else imputed[:1].astype(dtype)
        if missing != missing:  # NaN
            is_missing = edit.op("IsNaN", [value])
        else:
            is_missing = edit.op("Equal", [value, edit.constant(np.array(missing, dtype))])
        return [edit.op("Where", [is_missing, edit.constant(imputed), value])]


class Normalizer(NodeRewrite[Features]):
    """Write a Normalizer as a division by the norm of each row."""

    name = "normalizer"
    exactness = Exactness.ROUNDING
    operators = frozenset({(DOMAIN, "Normalizer")})

    def match(self, node: ir.Node, context: NodeContext) -> Features | Skip | None:
        found = ml.read(node, context.scope)
        kind = node.attributes.get_string("norm", "MAX")
        return Skip(f"its norm {kind} is unknown") if found is not None and kind not in ("MAX", "L1", "L2") else found

    def rewrite(self, match: Features, edit: Edit) -> Sequence[ir.Value | None]:
        """Divide each row; MAX is the maximum of the values, not of their magnitudes."""
        ml.begin(edit)
        assert match.node.inputs[0] is not None
        x, axes = ml.cast(match.node.inputs[0], FLOAT, edit), edit.constant(np.array([len(match.shape) - 1]))
        zero = ml.number(0, x, edit)
        match match.node.attributes.get_string("norm", "MAX"):
            case "MAX":
                norm = edit.op("ReduceMax", [x, axes], {"keepdims": 1})
                made = edit.op("Div", [x, norm])
            case "L1":
                norm = edit.op("ReduceSum", [edit.op("Abs", [x]), axes], {"keepdims": 1})
                made = edit.op("Div", [x, norm])
            case _:
                squares = edit.op("Mul", [x, x])
                norm = edit.op("ReduceSum", [squares, axes], {"keepdims": 1})
                made = edit.op("Sqrt", [edit.op("Div", [squares, norm])])
                made = edit.op("Where", [edit.op("Less", [x, zero]), edit.op("Neg", [made]), made])
        return [edit.op("Where", [edit.op("Equal", [norm, zero]), x, made])]


class OneHotEncoder(NodeRewrite[Features]):
    """Write a OneHotEncoder as a comparison with its categories."""

    name = "one-hot-encoder"
    operators = frozenset({(DOMAIN, "OneHotEncoder")})

    def match(self, node: ir.Node, context: NodeContext) -> Features | Skip | None:
        found = ml.read(node, context.scope, rank=None)
        if isinstance(found, Features) and not len(ml.integers(node, "cats_int64s")):
            return Skip("its categories are strings, which run on the host")
        return found

    def rewrite(self, match: Features, edit: Edit) -> Sequence[ir.Value | None]:
        """Compare the elements, truncated to integers, with the categories along a new last axis."""
        ml.begin(edit)
        assert match.node.inputs[0] is not None
        number = ml.cast(match.node.inputs[0], ir.DataType.INT64, edit)
        column = edit.op("Unsqueeze", [number, edit.constant(np.array([len(match.shape)]))])
        equal = edit.op("Equal", [column, edit.constant(ml.integers(match.node, "cats_int64s"))])
        return [edit.op("Cast", [equal], {"to": FLOAT.value})]


class Scaler(NodeRewrite[Features]):
    """Write a Scaler as a subtraction and a multiplication."""

    name = "scaler"
    operators = frozenset({(DOMAIN, "Scaler")})
    exactness = Exactness.ROUNDING

    def match(self, node: ir.Node, context: NodeContext) -> Features | Skip | None:
        """Match single parameters, or one per column."""
        found = ml.read(node, context.scope, rank=None)
        if not isinstance(found, Features):
            return found
        offset, scale = (len(ml.floats(node, name)) for name in ("offset", "scale"))
        if offset != scale or not offset:
            return Skip(f"it has {offset} offsets and {scale} scales")
        return found if offset == 1 or _along_columns(offset, found) else _misfit(offset, found)

    def rewrite(self, match: Features, edit: Edit) -> Sequence[ir.Value | None]:
        """Compute in the precision of the features; the result is float32."""
        ml.begin(edit)
        assert match.node.inputs[0] is not None
        dtype = match.dtype if match.dtype.is_floating_point() else FLOAT
        x = ml.cast(match.node.inputs[0], dtype, edit)
        offset, scale = (
            edit.constant(ml.floats(match.node, name).astype(dtype.numpy())) for name in ("offset", "scale")
        )
        return [ml.cast(edit.op("Mul", [edit.op("Sub", [x, offset]), scale]), FLOAT, edit)]


def _period(found: Features) -> int:
    """The period of the parameters: the size of the second dimension, even where there are more."""
    return found.shape[1] if len(found.shape) > 1 else found.shape[0]


def _along_columns(count: int, found: Features) -> bool:
    return count == _period(found) == found.columns


def _misfit(count: int, found: Features) -> Skip:
    return Skip(f"it has {count} parameters for features of shape {list(found.shape)}")


RULES: tuple[NodeRewrite[Any], ...] = (
    ArrayFeatureExtractor(),
    Binarizer(),
    Imputer(),
    Normalizer(),
    OneHotEncoder(),
    Scaler(),
)
