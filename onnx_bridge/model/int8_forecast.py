"""What a model's convolutions and matrix products will run as on a GPU, said in advance.

    found = onnx_bridge.forecast("model.onnx")
    print(found.summary())

For each Conv, ConvTranspose, Gemm and MatMul: a kernel of int8 or fp8, of weights of 4 bits, or of floats, and the
first condition that a kernel of 8 bits fails, by name (`passes.analysis.int8_kernels`). And for each QuantizeLinear
that
MIGraphX will delete with its DequantizeLinear: whether its saturation is lost, because nothing else keeps its input
within bounds.

The conditions are those of MIGraphX 2.14's pass ``simplify_qdq``. The forecast needs neither a GPU nor MIGraphX;
`onnx_bridge.migraphx.install.gpu_view` lets MIGraphX itself decide. It is about the model as it is handed to MIGraphX:
clean it first.
"""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import asdict, dataclass
from typing import Any

import onnx_ir as ir

from passes.analysis.int8_kernels import PRODUCTS, Kernel, forecast_kernel
from passes.analysis.quantization import Parameters, is_dequantize, is_quantize, parameters, plain, same_parameters
from passes.core import graphs
from passes.core.graphs import Scope
from passes.core.inference import infer
from passes.core.matching import is_plain
from passes.quantization.to_int8.saturate_before_quantize import saturation

_WEIGHTS_OF_4_BITS = ("com.microsoft", "MatMulNBits")
_DELETED_BETWEEN = ("Identity", "Pad", "Reshape", "Slice", "Split")
"""Operators that MIGraphX looks through from DequantizeLinear to the QuantizeLinear that it is deleted with."""


@dataclass(frozen=True)
class Product:
    """One convolution or matrix product.

    Attributes:
        node: its name.
        operator: what it is.
        kernel: ``int8``, ``fp8``, ``int4-weight`` or ``float``.
        condition: the name of the first condition of a kernel of 8 bits that it fails; empty where it fails none.
        reason: that, in words, with the operand that it is about.
        quantized: whether any operand is dequantized: only then a float kernel means that something is lost.
        wrong: why its numbers will be wrong; empty where they will not.
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
    """A QuantizeLinear whose saturation goes with it.

    Attributes:
        node: its name.
        low: the least number that its integers stand for; the smallest of them where it has several scales.
        high: the largest.
    """

    node: str
    low: float
    high: float


@dataclass(frozen=True)
class Forecast:
    """What a model will run as on a GPU.

    Attributes:
        products: all convolutions and matrix products, in the graph's order.
        lost: the saturation that will be lost.
    """

    products: tuple[Product, ...]
    lost: tuple[LostSaturation, ...]

    def kernels(self) -> dict[str, int]:
        """How many products run with which kernel."""
        return dict(Counter(each.kernel for each in self.products))

    def summary(self) -> str:
        """One line for people."""
        parts = [f"{count} {kernel}" for kernel, count in sorted(self.kernels().items())]
        text = ", ".join(parts) or "no convolutions or matrix products"
        return f"{text}; saturation lost at {len(self.lost)}" if self.lost else text

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {"summary": self.summary(), "kernels": self.kernels(), **asdict(self)}


def forecast(source: ir.Model | str | os.PathLike[str]) -> Forecast:
    """Say what a model's convolutions and matrix products will run as on a GPU.

    Args:
        source: a model, or the path of one. Types and shapes are inferred; nothing else of it changes.

    Raises:
        InputError: there is no such file, or it is no model.
    """
    model = source if isinstance(source, ir.Model) else _loaded(source)
    infer(model)
    scope = Scope(model, model.graph)
    graphs.name_nodes(scope)
    products = [_product(node, scope) for node in scope.nodes() if _is_product(node, scope)]
    return Forecast(tuple(products), tuple(_lost(scope)))


def _loaded(path: str | os.PathLike[str]) -> ir.Model:
    from onnx_bridge.model.io import load

    return load(path)


def _is_product(node: ir.Node, scope: Scope) -> bool:
    return plain(node, scope, *PRODUCTS) or (node.op_identifier()[:2] == _WEIGHTS_OF_4_BITS and is_plain(node, scope))


def _product(node: ir.Node, scope: Scope) -> Product:
    name = node.name or ""
    if node.domain:
        four = node.attributes.get_int("bits", 4) == 4
        return Product(name, node.op_type, "int4-weight" if four else "float", quantized=True)
    found = forecast_kernel(node, scope)
    quantized = node.op_type.endswith("Integer") or any(_is_dequantized(value) for value in node.inputs[:2])
    if found.reason is None:
        return Product(name, node.op_type, found.kernel, quantized=quantized, wrong=found.wrong)
    condition = found.reason.condition.name.lower().replace("_", "-")
    return Product(name, node.op_type, found.kernel, condition, str(found.reason), quantized)


def _is_dequantized(value: ir.Value | None) -> bool:
    """Whether a value comes from DequantizeLinear, rearranged or not."""
    while value is not None and (node := value.producer()) is not None:
        if is_dequantize(node):
            return True
        if node.domain != "" or node.op_type not in _REARRANGING or not node.inputs:
            return False
        value = node.inputs[0]
    return False


_REARRANGING = {"Cast", "Expand", "Flatten", "Identity", "Pad", "Reshape", "Slice", "Squeeze", "Transpose", "Unsqueeze"}


def _lost(scope: Scope) -> list[LostSaturation]:
    """The QuantizeLinear that are deleted with a DequantizeLinear, and saturate."""
    lost: dict[ir.Node, LostSaturation] = {}
    for node in scope.nodes():
        if not is_dequantize(node) or not _outlives(node, scope):
            continue
        quantize = _quantizer(node, scope)
        if (
            quantize is None
            or quantize.graph is not node.graph
            or quantize in lost
            or not same_parameters(quantize, node, scope)
        ):
            continue
        bounds = saturation(quantize, scope)
        found = parameters(quantize, scope)
        if bounds is not None and isinstance(found, Parameters):
            low, high = found.bounds()
            lost[quantize] = LostSaturation(quantize.name or "", float(low.min()), float(high.max()))
    return list(lost.values())


def _quantizer(node: ir.Node, scope: Scope) -> ir.Node | None:
    """The QuantizeLinear that a DequantizeLinear is deleted with."""
    value = node.inputs[0]
    while value is not None and (maker := value.producer()) is not None:
        if is_quantize(maker):
            return maker
        if not plain(maker, scope, *_DELETED_BETWEEN):
            return None
        value = maker.inputs[0]
    return None


def _outlives(node: ir.Node, scope: Scope) -> bool:
    """Whether something is left that takes dequantized numbers, once kernels of 8 bits take the integers."""
    pending = [node.outputs[0]]
    while pending:
        value = pending.pop()
        if value.is_graph_output():
            return True
        for user in value.consumers():
            if plain(user, scope, "Transpose", "Reshape", "Expand", "Cast", "Identity"):
                pending.extend(user.outputs)
            else:
                takes = plain(user, scope, "Conv", "Gemm", "MatMul") and value in user.inputs[:2]
                if not takes or forecast_kernel(user, scope).reason is not None:
                    return True
    return False
