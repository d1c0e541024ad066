"""Write com.microsoft's MoE and QMoE as products of all experts, weighted by the routing.

    p      = softmax(router)
    w[t,e] = p[t,e], over their sum if normalized, if e is one of the k most probable experts of token t, else 0
    y[t]   = Σ w[t,e] · (act(x[t] · W1[e]ᵀ + b1[e]) · W2[e]ᵀ + b2[e])

Experts whose weight is 0 are computed as well, since which they are is known only at run time. Packed weights of QMoE
become integers of one byte, which DequantizeLinear scales per block. ``swiglu`` takes gates from even and factors from
odd columns, clamped to the limit: gate · sigmoid(alpha · gate) · (factor + beta). The weights of QMoE
are normalized in any case, as ONNX Runtime does. Source: its ContribOperators.md and CPU kernels.

Skips: what those kernels do not compute (a third product, gates that are not interleaved); sparse mixers; weights for
aggregation alone; quantized weights that are not constant or of other than 2, 4 or 8 bits of an integer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir

from passes.builders.arithmetic import Arithmetic, wide
from passes.builders.operands import given
from passes.graphs.scopes import Scope
from passes.legalize.contrib.quantized_weights import unpack
from passes.rewriting.base import Exactness, Skip
from passes.rewriting.edit import Edit
from passes.rewriting.rewrite import Match, NodeContext, NodeRewrite

_CONTRIB = "com.microsoft"
_ACTIVATIONS = ("relu", "gelu", "silu", "identity", "swiglu")


@dataclass(frozen=True)
class _Layer:
    """The inputs of one product, by their index; None for what it has not."""

    weights: int
    bias: int
    scales: int | None = None
    zeros: int | None = None


_LAYERS = {"MoE": (_Layer(2, 3), _Layer(4, 5)), "QMoE": (_Layer(2, 4, 3, 11), _Layer(5, 7, 6, 12))}
_REST = {"MoE": (6, 7), "QMoE": (8, 9, 10, 13, *range(14, 21))}
"""Inputs of a third product, and others that the kernels of the reference do not take."""


@dataclass(frozen=True)
class _Found(Match):
    """The static facts: the number of tokens and of experts, the size of a token, and its dtype."""

    shape: tuple[int, ...]
    experts: int
    dtype: ir.DataType

    @property
    def tokens(self) -> int:
        return int(np.prod(self.shape[:-1]))


class DecomposeMixtureOfExperts(NodeRewrite[_Found]):
    """Write com.microsoft's MoE and QMoE as products of all experts."""

    name = "decompose-mixture-of-experts"
    exactness = Exactness.ROUNDING
    operators = frozenset({(_CONTRIB, "MoE"), (_CONTRIB, "QMoE")})
    needs_shape = (0, 1)
    needs_dtype = (0,)

    def match(self, node: ir.Node, context: NodeContext) -> _Found | Skip | None:
        """Match what the reference computes."""
        attributes, activation = node.attributes, node.attributes.get_string("activation_type", "relu")
        if any(given(node, index) is not None for index in _REST[node.op_type]):
            return Skip("it has a third product, weights for aggregation alone, or scales of another kind")
        if attributes.get_int("use_sparse_mixer", 0):
            return Skip("it is a sparse mixer")
        if activation not in _ACTIVATIONS or (activation == "swiglu" and attributes.get_int("swiglu_fusion", 0) != 1):
            return Skip("its activation is unknown, or its gates are not interleaved with what they multiply")
        if node.op_type == "QMoE" and (reason := _unknown_weights(node, context.scope)) is not None:
            return Skip(reason)
        return _Found(node, context.shape(node), context.shape(node, 1)[1], context.dtype(node))

    def rewrite(self, match: _Found, edit: Edit) -> Sequence[ir.Value | None]:
        """Compute all experts, and add them up."""
        node, size = match.node, match.shape[-1]
        a = Arithmetic(edit, wide(match.dtype))
        first, second = _LAYERS[node.op_type]
        tokens, router = node.inputs[:2]
        assert tokens is not None
        assert router is not None
        x = a.reshape(a.cast(tokens), [1, match.tokens, size])
        x = _activated(a, node, _product(a, match, x, first))
        x = _product(a, match, x, second)
        weights = a("Transpose", _routing(a, match, a.cast(router)), perm=[1, 0])
        y = a.reduce("Sum", a("Mul", x, a.reshape(weights, [match.experts, match.tokens, 1])), [0], keepdims=False)
        return [a.reshape(a.cast(y, match.dtype), match.shape)]


def _routing(a: Arithmetic, match: _Found, router: ir.Value) -> ir.Value:
    """The weight of each expert for each token: (tokens, experts)."""
    attributes = match.node.attributes
    k = attributes.get_int("k", 1)
    probable = a("Softmax", router, axis=-1)
    best, places = a.edit.node("TopK", [probable, a.index([k])], {"axis": -1}, outputs=2).outputs
    if attributes.get_int("normalize_routing_weights", 0) or match.node.op_type == "QMoE":
        best = a("Div", best, a.reduce("Sum", best, [-1]))
    chosen = a("Equal", a.reshape(places, [match.tokens, k, 1]), a.index(np.arange(match.experts)))
    return a.reduce("Sum", a("Where", chosen, a.reshape(best, [match.tokens, k, 1]), 0.0), [1], keepdims=False)


def _product(a: Arithmetic, match: _Found, x: ir.Value, layer: _Layer) -> ir.Value:
    """The results of all experts: (experts, tokens, columns)."""
    node, scope = match.node, a.edit.scope
    weights, bias = node.inputs[layer.weights], given(node, layer.bias)
    assert weights is not None
    matrix = a.cast(weights) if layer.scales is None else _dequantized(a, match, layer)
    product = a("MatMul", x, a("Transpose", matrix, perm=[0, 2, 1]))
    shape = scope.static_shape(bias)
    if bias is None or shape is None:
        return product
    return a("Add", product, a.reshape(a.cast(bias), [shape[0], 1, shape[1]]))


def _activated(a: Arithmetic, node: ir.Node, x: ir.Value) -> ir.Value:
    attributes = node.attributes
    match attributes.get_string("activation_type", "relu"):
        case "relu":
            return a("Max", x, 0.0)
        case "silu":
            return a("Mul", x, a("Sigmoid", x))
        case "gelu":
            inner = a("Mul", a("Add", x, a("Mul", a("Mul", a("Mul", x, x), x), 0.044715)), float(np.sqrt(2 / np.pi)))
            return a("Mul", a("Mul", x, 0.5), a("Add", a("Tanh", inner), 1.0))
        case "swiglu":
            shape = a.edit.scope.static_shape(x)
            assert shape is not None
            pairs = a.reshape(x, [*shape[:-1], shape[-1] // 2, 2])
            gate, factor = (a.reshape(a.slice(pairs, 3, i, i + 1), [*shape[:-1], shape[-1] // 2]) for i in range(2))
            if "swiglu_limit" in attributes:
                limit = attributes.get_float("swiglu_limit")
                gate, factor = a("Min", gate, limit), a("Max", a("Min", factor, limit), -limit)
            alpha, beta = (attributes.get_float(f"activation_{name}", value) for name, value in _SWIGLU)
            return a("Mul", a("Mul", gate, a("Sigmoid", a("Mul", gate, alpha))), a("Add", factor, beta))
    return x


_SWIGLU = (("alpha", 1.0), ("beta", 0.0))


def _unknown_weights(node: ir.Node, scope: Scope) -> str | None:
    """Why quantized weights cannot be read; None if they can."""
    attributes = node.attributes
    if attributes.get_string("quant_type", "int") != "int":
        return "its weights are not integers"
    if attributes.get_int("weights_prepacked", -1) == 1:
        return "its weights are prepacked for a specific device"
    for layer in _LAYERS["QMoE"]:
        indices = (layer.weights, layer.scales, layer.zeros)
        values = [given(node, index) for index in indices if index is not None]
        if any(value is not None and scope.constant(value) is None for value in values) or values[1] is None:
            return "its weights are not constant"
    return None


def _dequantized(a: Arithmetic, match: _Found, layer: _Layer) -> ir.Value:
    """The weights of a layer: (experts, columns, rows)."""
    node, scope = match.node, a.edit.scope
    assert layer.scales is not None
    assert layer.zeros is not None
    tensors = [scope.constant(given(node, index)) for index in (layer.weights, layer.scales, layer.zeros)]
    packed, scales, zeros = (None if tensor is None else tensor.numpy() for tensor in tensors)
    assert packed is not None
    assert scales is not None
    bits = _bits(node, layer)
    experts, columns, rows = packed.shape[0], packed.shape[1], packed.shape[2] * 8 // bits
    blocks = scales.shape[2] if scales.ndim == 3 else 1
    numbers = unpack(packed.reshape(experts * columns, -1), bits, rows).reshape(-1, rows // blocks)
    middle = np.full(len(numbers), 2 ** (bits - 1), np.uint8)
    if zeros is not None:
        each = blocks if scales.ndim == 3 else columns
        middle = unpack(zeros.reshape(-1, zeros.shape[-1]), bits, each).ravel()
    factors = a.edit.constant(scales.astype(a.dtype.numpy()).ravel())
    matrix = a("DequantizeLinear", a.edit.constant(numbers), factors, a.edit.constant(middle), axis=0)
    return a.reshape(matrix, [experts, columns, rows])


def _bits(node: ir.Node, layer: _Layer) -> int:
    """How many bits a weight of a layer has."""
    own = "fc1_expert_weight_bits" if layer.weights == 2 else "fc2_expert_weight_bits"
    return node.attributes.get_int(own, node.attributes.get_int("expert_weight_bits", 4))


RULES: tuple[NodeRewrite[Any], ...] = (DecomposeMixtureOfExperts(),)
