"""Write com.microsoft's MoE and QMoE as products of all experts, weighted by the routing.

    p      = softmax(router)
    w[t,e] = p[t,e], over their sum if normalized, if e is one of the k most probable experts of token t, else 0;
             of equally probable ones, the last
    y[t]   = Σ w[t,e] · (act(x[t] · W1[e]ᵀ + b1[e]) · W2[e]ᵀ + b2[e])

Experts whose weight is 0 are computed as well, since which they are is known only at run time. Packed weights of QMoE
become integers of one byte, which DequantizeLinear scales per block. ``swiglu`` takes gates from even and factors from
odd columns, clamped to the limit: gate · sigmoid(alpha · gate) · (factor + beta). The weights of QMoE
are normalized in any case, as ONNX Runtime does. Source: its ContribOperators.md and CPU kernels.

Skips: what those kernels do not compute (a third product, gates that are not interleaved); sparse mixers; weights for
aggregation alone; quantized weights that are not constant or of other than 2, 4 or 8 bits of an integer.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from passes.builders.arithmetic import Arithmetic, wide
from passes.builders.operands import given
from passes.legalize.contrib.fused import gelu
from passes.legalize.contrib.quantized_weights import unpack
from passes.rewriting.base import Exactness, NotApplicable, Skip
from passes.rewriting.edit import Edit
from passes.rewriting.rewrite import Replacement, rewrite

_ACTIVATIONS = ("relu", "gelu", "silu", "identity", "swiglu")


@dataclass(frozen=True)
class _Layer:
    """The inputs of one product, by their index; None if there is none."""

    weights: int
    bias: int
    scales: int | None = None
    zeros: int | None = None


_LAYERS = {"MoE": (_Layer(2, 3), _Layer(4, 5)), "QMoE": (_Layer(2, 4, 3, 11), _Layer(5, 7, 6, 12))}
_REST = {"MoE": (6, 7), "QMoE": (8, 9, 10, 13, *range(14, 21))}
"""Inputs of a third product, and others that the kernels of the reference do not take."""


@rewrite("com.microsoft.MoE", "com.microsoft.QMoE", exactness=Exactness.ROUNDING, needs_shape=(0, 1), needs_dtype=(0,))
def decompose_mixture_of_experts(node: ir.Node, edit: Edit) -> Replacement:
    """Write com.microsoft's MoE and QMoE as products of all experts."""
    attributes, activation = node.attributes, node.attributes.get_string("activation_type", "relu")
    if any(given(node, index) is not None for index in _REST[node.op_type]):
        return Skip("the node has a third product, weights for aggregation alone, or scales of another kind")
    if attributes.get_int("use_sparse_mixer", 0):
        return Skip("the mixer is sparse")
    if activation not in _ACTIVATIONS or (activation == "swiglu" and attributes.get_int("swiglu_fusion", 0) != 1):
        return Skip("the activation is unknown, or its gates are not interleaved with what they multiply")
    shape, dtype, experts = edit.shape(node), edit.dtype(node), edit.shape(node, 1)[1]
    a, tokens, (first, second) = Arithmetic(edit, wide(dtype)), math.prod(shape[:-1]), _LAYERS[node.op_type]
    x = a.reshape(a.cast(edit.input(node)), [1, tokens, shape[-1]])
    x = _product(a, node, _activate(a, node, _product(a, node, x, first)), second)
    weights = a("Transpose", _route(a, node, tokens, experts), perm=[1, 0])
    y = a.reduce("Sum", a("Mul", x, a.reshape(weights, [experts, tokens, 1])), [0], keepdims=False)
    return a.reshape(a.cast(y, dtype), shape)


def _route(a: Arithmetic, node: ir.Node, tokens: int, experts: int) -> ir.Value:
    """Return the weight of each expert for each token, (tokens, experts)."""
    k = node.attributes.get_int("k", 1)
    backwards = np.arange(experts)[::-1]  # the last of equal experts comes first
    probabilities = a("Softmax", a("Gather", a.cast(a.edit.input(node, 1)), a.index(backwards), axis=1), axis=-1)
    best, places = a.edit.node("TopK", [probabilities, a.index([k])], {"axis": -1}, outputs=2).outputs
    if node.attributes.get_int("normalize_routing_weights", 0) or node.op_type == "QMoE":
        best = a("Div", best, a.reduce("Sum", best, [-1]))
    is_chosen = a("Equal", a.reshape(places, [tokens, k, 1]), a.index(backwards))
    return a.reduce("Sum", a("Where", is_chosen, a.reshape(best, [tokens, k, 1]), 0.0), [1], keepdims=False)


def _product(a: Arithmetic, node: ir.Node, x: ir.Value, layer: _Layer) -> ir.Value:
    """Return the results of all experts, (experts, tokens, columns)."""
    bias = given(node, layer.bias)
    matrix = a.cast(a.edit.input(node, layer.weights)) if layer.scales is None else _dequantize(a, node, layer)
    product = a("MatMul", x, a("Transpose", matrix, perm=[0, 2, 1]))
    shape = a.edit.scope.static_shape(bias)
    if bias is None or shape is None:
        return product
    return a("Add", product, a.reshape(a.cast(bias), [shape[0], 1, shape[1]]))


def _activate(a: Arithmetic, node: ir.Node, x: ir.Value) -> ir.Value:
    attributes = node.attributes
    match attributes.get_string("activation_type", "relu"):
        case "relu":
            return a("Max", x, 0.0)
        case "silu":
            return a("Mul", x, a("Sigmoid", x))
        case "gelu":
            return gelu(a, x, tanh=True)
        case "swiglu":
            assert x.shape is not None
            *before, columns = x.shape.numpy()
            pairs = a.reshape(x, [*before, columns // 2, 2])
            gate, factor = (a.reshape(a.slice(pairs, 3, i, i + 1), [*before, columns // 2]) for i in range(2))
            if "swiglu_limit" in attributes:
                limit = attributes.get_float("swiglu_limit")
                gate, factor = a("Min", gate, limit), a("Max", a("Min", factor, limit), -limit)
            alpha, beta = attributes.get_float("activation_alpha", 1.0), attributes.get_float("activation_beta", 0.0)
            return a("Mul", a("Mul", gate, a("Sigmoid", a("Mul", gate, alpha))), a("Add", factor, beta))
    return x


def _dequantize(a: Arithmetic, node: ir.Node, layer: _Layer) -> ir.Value:
    """Return the weights of a layer, (experts, columns, rows)."""
    attributes, scope = node.attributes, a.edit.scope
    assert layer.scales is not None and layer.zeros is not None
    if attributes.get_string("quant_type", "int") != "int":
        raise NotApplicable("the weights are not integers")
    if attributes.get_int("weights_prepacked", -1) == 1:
        raise NotApplicable("the weights are prepacked for a specific device")
    operands = [given(node, index) for index in (layer.weights, layer.scales, layer.zeros)]
    tensors = [scope.constant(operand) for operand in operands]
    packed, scales, zeros = (None if tensor is None else tensor.numpy() for tensor in tensors)
    if packed is None or scales is None or (zeros is None and operands[2] is not None):
        raise NotApplicable("the weights are not constant")
    which = "fc1_expert_weight_bits" if layer.weights == 2 else "fc2_expert_weight_bits"
    bits = attributes.get_int(which, attributes.get_int("expert_weight_bits", 4))
    experts, columns, rows = packed.shape[0], packed.shape[1], packed.shape[2] * 8 // bits
    blocks = scales.shape[2] if scales.ndim == 3 else 1
    numbers = unpack(packed.reshape(experts * columns, -1), bits, rows).reshape(-1, rows // blocks)
    middle = np.full(len(numbers), 2 ** (bits - 1), np.uint8)
    if zeros is not None:
        middle = unpack(zeros.reshape(-1, zeros.shape[-1]), bits, blocks if scales.ndim == 3 else columns).ravel()
    factors = a.value(scales.ravel())
    matrix = a("DequantizeLinear", a.constant(numbers), factors, a.constant(middle), axis=0)
    return a.reshape(matrix, [experts, columns, rows])
