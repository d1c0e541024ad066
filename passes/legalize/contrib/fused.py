"""Decompose ONNX Runtime's fused operators: products with transposes and factors, activations with biases.

    FusedMatMul<transA, transB, transBatchA, transBatchB, alpha>(A, B)  →  alpha · A' · B'      (also TransposeMatMul)
    FusedGemm<…, activation>(A, B, C)                                   →  activation(Gemm(A, B, C))
    FusedConv<…, activation>(X, W, B, Z)                                →  activation(Conv(X, W, B) + Z)
    Gelu(x), BiasGelu(x, b)                                             →  x · ½ · (1 + Erf(x / √2))
    FastGelu(x, b)                                                      →  x · ½ · (1 + Tanh(√(2/π)·(x + 0.044715 x³)))
    QuickGelu<alpha>(x)                                                 →  x · Sigmoid(alpha · x)
    BiasSplitGelu, BiasAdd, GemmFastGelu                                →  parts of the same
    BiasSoftmax<axis>(x, b)                                             →  Softmax(x + b), over all axes from axis on

Skips: unknown ranks and dtypes, and unknown activations.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import onnx_ir as ir

from passes.builders.arithmetic import Arithmetic
from passes.builders.operands import given
from passes.graphs.scopes import Scope
from passes.rewriting.base import Exactness, Skip
from passes.rewriting.edit import Edit
from passes.rewriting.expressions import Attribute
from passes.rewriting.rewrite import UNKNOWN_DTYPE, UNKNOWN_SHAPE, Match, NodeContext, NodeRewrite

_DOMAIN = "com.microsoft"
ACTIVATIONS: Mapping[str, tuple[str, ...]] = {
    "Relu": (),
    "Sigmoid": (),
    "Tanh": (),
    "LeakyRelu": ("alpha",),
    "HardSigmoid": ("alpha", "beta"),
    "Elu": ("alpha",),
    "ThresholdedRelu": ("alpha",),
    "Softplus": (),
    "Softsign": (),
    "Clip": ("min", "max"),
}
"""The activations that ONNX Runtime fuses, with their parameters."""


@dataclass(frozen=True)
class _Found(Match):
    dtype: ir.DataType


def common_dtype(node: ir.Node, scope: Scope) -> ir.DataType | None:
    """The dtype of a node whose inputs all have the same one: that of the first input whose dtype is known."""
    known = (scope.dtype(value) for value in node.inputs if value is not None)
    return next((dtype for dtype in known if dtype is not None), None)


def activate(a: Arithmetic, name: str, x: ir.Value, parameters: Sequence[float]) -> ir.Value:
    """An activation by ONNX Runtime's name, with the given parameters; ``x`` itself for an empty name."""
    if name == "Clip":
        return a("Clip", x, *parameters)
    attributes: dict[str, Attribute] = dict(zip(ACTIVATIONS[name] if name else (), parameters, strict=False))
    return a(name, x, **attributes) if name else x


def own_attributes(node: ir.Node) -> dict[str, Attribute]:
    """The attributes of a node except those of its activation and empty lists."""
    return {
        name: each.value
        for name, each in node.attributes.items()
        if not name.startswith("activation") and not (isinstance(each.value, (list, tuple)) and not each.value)
    }


def gelu(a: Arithmetic, x: ir.Value, *, tanh: bool = False) -> ir.Value:
    """GELU, exact or with the tanh approximation."""
    if a.edit.scope.opset() >= 20:
        return a("Gelu", x, approximate="tanh" if tanh else "none")
    if tanh:
        cubic = a("Add", x, a("Mul", a("Mul", a("Mul", x, x), x), 0.044715))
        inner = a("Tanh", a("Mul", cubic, math.sqrt(2 / math.pi)))
    else:
        inner = a("Erf", a("Mul", x, math.sqrt(0.5)))
    return a("Mul", a("Mul", x, 0.5), a("Add", inner, 1.0))


@dataclass(frozen=True)
class _Product(_Found):
    ranks: tuple[int, int]


class DecomposeFusedMatMul(NodeRewrite[_Product]):
    """Write FusedMatMul and TransposeMatMul as transposes, a product and a factor."""

    name = "decompose-fused-mat-mul"
    exactness = Exactness.ROUNDING
    operators = frozenset({(_DOMAIN, "FusedMatMul"), (_DOMAIN, "TransposeMatMul")})
    needs_dtype = (0,)

    def match(self, node: ir.Node, context: NodeContext) -> _Product | Skip | None:
        """Match operands of known rank."""
        one, other = (context.scope.shape(value) for value in node.inputs[:2])
        if one is None or other is None:
            return Skip(UNKNOWN_SHAPE)
        return _Product(node, context.dtype(node), (len(one), len(other)))

    def rewrite(self, match: _Product, edit: Edit) -> Sequence[ir.Value | None]:
        """Transpose the operands, multiply, and scale."""
        a, attributes = Arithmetic(edit, match.dtype), match.node.attributes
        operands = [
            self._transposed(
                a, value, rank, *(bool(attributes.get_int(f"trans{kind}{side}", 0)) for kind in ("", "Batch"))
            )
            for value, rank, side in zip(match.node.inputs, match.ranks, "AB", strict=False)
            if value is not None
        ]
        product, alpha = a("MatMul", *operands), attributes.get_float("alpha", 1.0)
        return [product if alpha == 1.0 else a("Mul", product, alpha)]

    @staticmethod
    def _transposed(a: Arithmetic, x: ir.Value, rank: int, matrix: bool, batch: bool) -> ir.Value:
        """Move the first axis after the batch axes (``batch``), then swap the last two (``matrix``)."""
        order = list(range(rank))
        if rank < 2:
            return x
        if batch:
            order = [*order[1:-1], 0, order[-1]]
        if matrix:
            order[-2:] = order[:-3:-1]
        return x if order == list(range(rank)) else a("Transpose", x, perm=order)


class DecomposeFusedActivation(NodeRewrite[_Found]):
    """Write FusedGemm and FusedConv as a product and an activation."""

    name = "decompose-fused-activation"
    exactness = Exactness.ROUNDING
    operators = frozenset({(_DOMAIN, "FusedGemm"), (_DOMAIN, "FusedConv")})

    def match(self, node: ir.Node, context: NodeContext) -> _Found | Skip | None:
        activation = node.attributes.get_string("activation", "")
        if activation and activation not in ACTIVATIONS:
            return Skip(f"its activation {activation} is unknown")
        dtype = common_dtype(node, context.scope)
        return Skip(UNKNOWN_DTYPE) if dtype is None else _Found(node, dtype)

    def rewrite(self, match: _Found, edit: Edit) -> Sequence[ir.Value | None]:
        """The product with its own attributes, then the sum and the activation."""
        node, a = match.node, Arithmetic(edit, match.dtype)
        given_names = ("alpha", "beta", "gamma")
        parameters = [
            node.attributes.get_float(f"activation_{name}", 0.0)
            for name in given_names
            if f"activation_{name}" in node.attributes
        ] or list(node.attributes.get_floats("activation_params", []))
        inputs = list(node.inputs[:3])
        while inputs[-1] is None:
            inputs.pop()
        result = edit.op(node.op_type.removeprefix("Fused"), inputs, own_attributes(node))
        if given(node, 3) is not None:
            result = a("Add", result, given(node, 3))
        return [activate(a, node.attributes.get_string("activation", ""), result, parameters)]


class DecomposeContribGelu(NodeRewrite[_Found]):
    """Write com.microsoft's forms of GELU with standard operators."""

    name = "decompose-contrib-gelu"
    exactness = Exactness.ROUNDING
    operators = frozenset(
        (_DOMAIN, name)
        for name in ("Gelu", "BiasGelu", "FastGelu", "QuickGelu", "BiasSplitGelu", "BiasAdd", "GemmFastGelu")
    )

    def match(self, node: ir.Node, context: NodeContext) -> _Found | Skip | None:
        """Match a known dtype; BiasSplitGelu also needs the width of its input."""
        dtype = common_dtype(node, context.scope)
        if dtype is None:
            return Skip(UNKNOWN_DTYPE)
        if node.op_type == "BiasSplitGelu" and context.scope.static_shape(node.inputs[0]) is None:
            return Skip(UNKNOWN_SHAPE)
        return _Found(node, dtype)

    def rewrite(self, match: _Found, edit: Edit) -> Sequence[ir.Value | None]:
        """The product, the bias, then GELU."""
        node, a = match.node, Arithmetic(edit, match.dtype)
        x, rest = node.inputs[0], node.inputs[1:]
        assert x is not None
        if node.op_type == "GemmFastGelu":
            x, rest = a("MatMul", x, rest[0]), rest[1:]
        for other in rest:
            x = x if other is None else a("Add", x, other)
        match node.op_type:
            case "BiasAdd":
                return [x]
            case "QuickGelu":
                return [a("Mul", x, a("Sigmoid", a("Mul", x, node.attributes.get_float("alpha", 1.702))))]
            case "BiasSplitGelu":
                width = (edit.scope.static_shape(node.inputs[0]) or (0,))[-1]
                left, right = a.slice(x, -1, 0, width // 2), a.slice(x, -1, width // 2, width)
                return [a("Mul", left, gelu(a, right))]
            case _:
                return [gelu(a, x, tanh=node.op_type in ("FastGelu", "GemmFastGelu"))]


@dataclass(frozen=True)
class _Shaped(_Found):
    shape: tuple[int, ...]


class DecomposeBiasSoftmax(NodeRewrite[_Shaped]):
    """Write BiasSoftmax as a sum and a softmax."""

    name = "decompose-bias-softmax"
    exactness = Exactness.ROUNDING
    operators = frozenset({(_DOMAIN, "BiasSoftmax")})
    needs_shape = needs_dtype = (0,)

    def match(self, node: ir.Node, context: NodeContext) -> _Shaped | Skip | None:
        """Match every node whose shape is known."""
        return _Shaped(node, context.dtype(node), context.shape(node))

    def rewrite(self, match: _Shaped, edit: Edit) -> Sequence[ir.Value | None]:
        """Softmax over the flattened axes."""
        a, shape = Arithmetic(edit, match.dtype), match.shape
        axis = match.node.attributes.get_int("axis", 1) % len(shape)
        total = a("Add", *match.node.inputs)
        if axis == len(shape) - 1:
            return [a("Softmax", total, axis=axis)]
        flat = a.reshape(total, [math.prod(shape[:axis]), math.prod(shape[axis:])])
        return [a.reshape(a("Softmax", flat, axis=1), shape)]


RULES: tuple[NodeRewrite[Any], ...] = (
    DecomposeBiasSoftmax(),
    DecomposeFusedMatMul(),
    DecomposeFusedActivation(),
    DecomposeContribGelu(),
)
