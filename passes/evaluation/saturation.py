"""8-bit products that ONNX Runtime saturates, as products that it computes right.

    MatMulInteger(a: uint8, b: int8, za, zb)   →   MatMulInteger(a, b + 128: uint8, za, zb + 128)

On x86 processors without VNNI, its kernels for uint8 and int8 add two products in 16 bits, where 255 · 127 · 2 does not
fit (https://onnxruntime.ai/docs/performance/model-optimizations/quantization.html: "saturation issue"). Those for uint8
and uint8 are exact. ONNX Runtime has a transformation that does the same, for constant weights, among the optimizations
that the reference leaves out.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir

from passes.graphs.byte_strings import from_proto
from passes.graphs.scopes import Scope, scopes
from passes.shapes import inference


@dataclass(frozen=True)
class _Product:
    """The input indices of a product.

    Attributes:
        left: its left operand, and the zero point of that; None if it is quantized to uint8 inside.
        right: its right operands, each with its zero point.
    """

    left: tuple[int, int] | None
    right: tuple[tuple[int, int], ...]


_PRODUCTS = {
    "ConvInteger": _Product((0, 2), ((1, 3),)),
    "DynamicQuantizeLSTM": _Product(None, ((1, 9), (2, 11))),
    "DynamicQuantizeMatMul": _Product(None, ((1, 3),)),
    "MatMulInteger": _Product((0, 2), ((1, 3),)),
    "MatMulIntegerToFloat": _Product((0, 4), ((1, 5),)),
    "QAttention": _Product((0, 6), ((1, 7),)),
    "QGemm": _Product((0, 2), ((3, 5),)),
    "QLinearConv": _Product((0, 2), ((3, 5),)),
    "QLinearMatMul": _Product((0, 2), ((3, 5),)),
}
_DOMAINS = ("", "com.microsoft")
PRODUCTS = tuple(name.encode() for name in _PRODUCTS)
"""Their operators: a serialized model without any of these names has none."""


@functools.cache
def saturates() -> bool:
    """Return whether ONNX Runtime's products of uint8 and int8 saturate on this processor."""
    if os.uname().machine != "x86_64":
        return False
    try:
        flags = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return True
    return "avx512_vnni" not in flags and "avx_vnni" not in flags


def may_saturate(model: ir.Model) -> bool:
    """Return whether a model has products that ONNX Runtime may saturate on this processor."""
    return saturates() and any(_product(node) is not None for scope in scopes(model) for node in scope.nodes())


def avoid_saturation(model: ir.Model) -> None:
    """Replace int8 operands by uint8 ones where ONNX Runtime would saturate; the model is changed in place."""
    if not may_saturate(model):
        return
    inference.infer(model)
    shifted: dict[tuple[ir.Graph | None, ir.Value], ir.Value] = {}
    for scope in scopes(model):
        for node in list(scope.nodes()):
            for index, zero_point in list(_saturated(node)):
                if len(node.inputs) <= zero_point:
                    node.resize_inputs(zero_point + 1)
                for place in (index, zero_point):
                    value = node.inputs[place]
                    if value is None:
                        zero = _constant(np.array(128, np.uint8), node, "zero_point", scope)
                        node.replace_input_with(place, zero)
                        continue
                    key = node.graph, value
                    if key not in shifted:
                        shifted[key] = _shifted(value, node, scope)
                    node.replace_input_with(place, shifted[key])


def without_saturation(model: bytes) -> bytes:
    """Return a serialized model whose products ONNX Runtime computes right; the given one if it does already."""
    if not saturates() or not any(name in model for name in PRODUCTS):
        return model
    changed = from_proto(onnx.ModelProto.FromString(model))
    avoid_saturation(changed)
    return bytes(ir.to_proto(changed).SerializeToString())


def _product(node: ir.Node) -> _Product | None:
    return _PRODUCTS.get(node.op_type) if node.domain in _DOMAINS else None


def _saturated(node: ir.Node) -> Iterator[tuple[int, int]]:
    """Yield the indices of int8 operands whose product with uint8 saturates, with those of their zero points."""
    product = _product(node)
    if product is None:
        return
    if product.left is None or _dtype(node, product.left) == ir.DataType.UINT8:
        yield from (operand for operand in product.right if _dtype(node, operand) == ir.DataType.INT8)


def _dtype(node: ir.Node, operand: tuple[int, int]) -> ir.DataType | None:
    """Return the dtype of an operand, or of its zero point, which is the same; inference may not know it."""
    values = [node.inputs[index] for index in operand if index < len(node.inputs)]
    return next((value.dtype for value in values if value is not None and value.dtype is not None), None)


def _shifted(value: ir.Value, node: ir.Node, scope: Scope) -> ir.Value:
    """Return an int8 value plus 128, as uint8."""
    tensor = scope.constant(value)
    if tensor is not None:
        return _constant((tensor.numpy().astype(np.int16) + 128).astype(np.uint8), node, str(value.name), scope)
    wide = ir.node("Cast", [value], {"to": int(ir.DataType.INT32)})
    offset = ir.node("Constant", [], {"value": ir.tensor(np.array(128, np.int32))})
    total = ir.node("Add", [wide.outputs[0], offset.outputs[0]])
    narrow = ir.node("Cast", [total.outputs[0]], {"to": int(ir.DataType.UINT8)})
    assert node.graph is not None
    node.graph.insert_before(node, [wide, offset, total, narrow])
    narrow.outputs[0].dtype = ir.DataType.UINT8
    for node in (wide, offset, total, narrow):
        node.outputs[0].name = scope.names.value(f"{value.name}_unsigned")
    return narrow.outputs[0]


def _constant(array: np.ndarray, node: ir.Node, name: str, scope: Scope) -> ir.Value:
    constant = ir.node("Constant", [], {"value": ir.tensor(array)})
    constant.outputs[0].name = scope.names.value(f"{name}_unsigned")
    constant.outputs[0].dtype = ir.DataType.UINT8
    assert node.graph is not None
    node.graph.insert_before(node, constant)
    return constant.outputs[0]
