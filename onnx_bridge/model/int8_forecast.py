"""Forecast of the GPU kernels that a model's convolutions and matrix products will run as.

    kernels = onnx_bridge.forecast("model.onnx")
    print(kernels.summary())

For each Conv, ConvTranspose, Gemm and MatMul: an int8 or fp8 kernel, one with 4-bit weights, or a float kernel, and the
first condition of an 8-bit kernel that it fails (`passes.graphs.int8_kernels`). And for each QuantizeLinear that
MIGraphX will delete together with its DequantizeLinear: whether its saturation is lost, because nothing else bounds its
input.

The conditions are those of MIGraphX 2.14's pass ``simplify_qdq``, and the formats of float8 that a GPU multiplies. The
forecast needs neither a GPU nor MIGraphX. It applies to the model that MIGraphX parses: clean the model first.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Collection
from dataclasses import asdict, dataclass
from typing import Any

import onnx_ir as ir

from onnx_bridge.model.io import loaded
from passes.graphs.int8_kernels import LOOKED_THROUGH, PRODUCTS, Kernel, forecast_kernel
from passes.graphs.matching import is_op, is_plain, origin, takers
from passes.graphs.quantization import Parameters, parameters, plain, same_parameters
from passes.graphs.scopes import Scope, name_nodes
from passes.operators import is_dequantize, is_quantize
from passes.quantization.to_int8.saturate_before_quantize import saturation
from passes.shapes.inference import infer

_WEIGHTS_OF_4_BITS = ("com.microsoft", "MatMulNBits")
_DELETED_BETWEEN = ("Identity", "Pad", "Reshape", "Slice", "Split")
"""Operators that may lie between a DequantizeLinear and the QuantizeLinear that it is deleted with."""


@dataclass(frozen=True)
class Product:
    """One convolution or matrix product.

    Attributes:
        kernel: ``int8``, ``fp8``, ``int4-weight`` or ``float``.
        condition: the name of the first condition of an 8-bit kernel that it fails; empty if it fails none.
        reason: the condition in words, with the operand.
        quantized: whether an operand is dequantized: only then is a float kernel a loss.
        wrong: why its results will be wrong; empty if they will not.
    """

    node: str
    operator: str
    kernel: Kernel
    condition: str = ""
    reason: str = ""
    quantized: bool = False
    wrong: str = ""


@dataclass(frozen=True)
class LostSaturation:
    """A QuantizeLinear that is deleted although it saturates, with the least and the largest number of its integers."""

    node: str
    low: float
    high: float


@dataclass(frozen=True)
class Forecast:
    """The kernels of a model on a GPU.

    Attributes:
        products: all convolutions and matrix products, in the order of the graph.
        lost: the saturations that will be lost.
    """

    products: tuple[Product, ...]
    lost: tuple[LostSaturation, ...]

    def kernels(self) -> dict[str, int]:
        return dict(Counter(product.kernel for product in self.products))

    def summary(self) -> str:
        parts = [f"{count} {kernel}" for kernel, count in sorted(self.kernels().items())]
        text = ", ".join(parts) or "no convolutions or matrix products"
        return f"{text}; saturation lost at {len(self.lost)}" if self.lost else text

    def to_json(self) -> dict[str, Any]:
        return {"summary": self.summary(), "kernels": self.kernels(), **asdict(self)}


def forecast(
    source: ir.Model | str | os.PathLike[str], nodes: Collection[str] | None = None, architecture: str | None = None
) -> Forecast:
    """Forecast the kernels of a model's convolutions and matrix products on a GPU.

    Args:
        source: a model, or the path of one. Types and shapes are inferred in place; nothing else is changed.
        nodes: the names of those that run on MIGraphX; None is all.
        architecture: the GPU's ("gfx942"), which may lack products of float8; None is one that has them.

    Raises:
        InputError: the file does not exist, or is not a model.
    """
    model = loaded(source)
    infer(model)
    scope = name_nodes(Scope(model, model.graph))
    products = [_product(node, scope, architecture) for node in scope.nodes() if _is_product(node, scope)]
    lost = _lost_saturations(scope)
    chosen = {str(node.name) for node in scope.nodes()} if nodes is None else nodes
    return Forecast(
        tuple(product for product in products if product.node in chosen),
        tuple(quantizer for quantizer in lost if quantizer.node in chosen),
    )


def _is_product(node: ir.Node, scope: Scope) -> bool:
    return plain(node, scope, *PRODUCTS) or (node.op_identifier()[:2] == _WEIGHTS_OF_4_BITS and is_plain(node, scope))


def _product(node: ir.Node, scope: Scope, architecture: str | None) -> Product:
    name = node.name or ""
    if node.domain:
        four = node.attributes.get_int("bits", 4) == 4
        return Product(name, node.op_type, "int4-weight" if four else "float", quantized=True)
    forecast = forecast_kernel(node, scope, architecture)
    quantized = node.op_type.endswith("Integer") or any(_is_dequantized(value) for value in node.inputs[:2])
    if forecast.reason is None:
        return Product(name, node.op_type, forecast.kernel, quantized=quantized, wrong=forecast.wrong)
    condition = forecast.reason.condition.name.lower().replace("_", "-")
    return Product(name, node.op_type, forecast.kernel, condition, str(forecast.reason), quantized, forecast.wrong)


def _is_dequantized(value: ir.Value | None) -> bool:
    """Return whether a value comes from DequantizeLinear, possibly through operators that only rearrange it."""
    return is_dequantize(origin(value, lambda node: is_op(node, *_REARRANGING)))


_REARRANGING = {"Cast", "Expand", "Flatten", "Identity", "Pad", "Reshape", "Slice", "Squeeze", "Transpose", "Unsqueeze"}


def _lost_saturations(scope: Scope) -> list[LostSaturation]:
    """Return the saturating QuantizeLinear that are deleted with a DequantizeLinear."""
    lost: dict[ir.Node, LostSaturation] = {}
    for node in scope.nodes():
        if not is_dequantize(node) or not _is_still_used(node, scope):
            continue
        quantize = origin(node.inputs[0], lambda between: plain(between, scope, *_DELETED_BETWEEN))
        if quantize is None or not is_quantize(quantize) or quantize.graph is not node.graph or quantize in lost:
            continue
        if not same_parameters(quantize, node, scope):
            continue
        bounds = saturation(quantize, scope)
        quantization = parameters(quantize, scope)
        if bounds is not None and isinstance(quantization, Parameters):
            low, high = quantization.bounds()
            lost[quantize] = LostSaturation(quantize.name or "", float(low.min()), float(high.max()))
    return list(lost.values())


def _is_still_used(node: ir.Node, scope: Scope) -> bool:
    """Return whether the dequantized values are used by anything but 8-bit kernels, which take the integers."""
    for value, user in takers(node.outputs[0], lambda user: plain(user, scope, *LOOKED_THROUGH)):
        takes = user is not None and plain(user, scope, "Conv", "Gemm", "MatMul") and value in user.inputs[:2]
        if user is None or not takes or forecast_kernel(user, scope).reason is not None:
            return True
    return False
