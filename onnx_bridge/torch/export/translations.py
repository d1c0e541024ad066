"""ONNX translations of operators of quantized modules that torch.onnx's dynamo exporter does not have.

    quantized_decomposed::choose_qparams     scale = (max − min) / (qmax − qmin), zero point = qmin − round(min / scale)
    quantized_decomposed::(de)quantize_…     QuantizeLinear and DequantizeLinear, with a scale that is computed
    aten::_int_mm                            MatMulInteger
    quark::scaled_fake_quantize              QuantizeLinear, Clip if the range is narrower, DequantizeLinear

They come from PT2E's dynamic quantization, torchao's int8 with dynamic activations, and Quark's modules. The table has
only operators that are registered, so it needs neither torchao nor Quark.

Skips: Quark's groups within a channel, and its MX formats, which QuantizeLinear cannot express.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import onnx_ir as ir
import torch
from onnxscript import opset18

from onnx_bridge.torch.export import corrections

op: Any = opset18
"""Operators in a form that later opsets still have, without type checks."""
_FLOAT8 = {"fp8_e4m3": ir.DataType.FLOAT8E4M3FN, "fp8_e5m2": ir.DataType.FLOAT8E5M2}
_HALVES = {"bfloat16": ir.DataType.BFLOAT16, "float16": ir.DataType.FLOAT16}
_INTEGERS = {
    "int4": ir.DataType.INT8,
    "uint4": ir.DataType.UINT8,
    "int8": ir.DataType.INT8,
    "uint8": ir.DataType.UINT8,
    "int16": ir.DataType.INT16,
    "uint16": ir.DataType.UINT16,
}
"""The ONNX dtypes of Quark's integers; 4 bits are stored in 8 with a narrower range."""
_RANGES = {
    ir.DataType.INT8: (-128, 127),
    ir.DataType.UINT8: (0, 255),
    ir.DataType.INT16: (-32768, 32767),
    ir.DataType.UINT16: (0, 65535),
}


def table() -> dict[Callable[..., Any], Callable[..., Any]]:
    """Return the translations of all operators that are registered, and corrections, as torch.onnx takes them."""
    translations = {}
    for name, translation in {**_TRANSLATIONS, **corrections.TRANSLATIONS}.items():
        space, _, rest = name.partition("::")
        operator, _, overload = rest.partition(".")
        packet = getattr(getattr(torch.ops, space), operator, None)
        if packet is not None and hasattr(packet, overload):
            translations[getattr(packet, overload)] = translation
    return translations


def _choose(x: Any, quant_min: int, quant_max: int, eps: float, dtype: int) -> Any:
    """Return scale and zero point for the range of a tensor, extended to include 0."""
    low = op.Min(op.ReduceMin(x, keepdims=0), _number(0.0))
    high = op.Max(op.ReduceMax(x, keepdims=0), _number(0.0))
    scale = op.Max(op.Div(op.Sub(high, low), _number(float(quant_max - quant_min))), _number(eps))
    below = op.Sub(_number(float(quant_min)), op.Round(op.Div(low, scale)))
    zero = op.Clip(below, _number(float(quant_min)), _number(float(quant_max)))
    return _vector(scale, ir.DataType.DOUBLE), _vector(zero, ir.DataType.INT64)


def _choose_symmetric(x: Any, quant_min: int, quant_max: int, eps: float, dtype: int) -> Any:
    """Return scale and zero point for the symmetric range of a tensor."""
    largest = op.ReduceMax(op.Abs(x), keepdims=0)
    scale = op.Max(op.Div(largest, _number((quant_max - quant_min) / 2)), _number(eps))
    zero = 128.0 if dtype == ir.DataType.UINT8 else 0.0
    return _vector(scale, ir.DataType.DOUBLE), _vector(_number(zero), ir.DataType.INT64)


def _quantize(x: Any, scale: Any, zero_point: Any, quant_min: int, quant_max: int, dtype: int) -> Any:
    integers = op.QuantizeLinear(x, _scalar(scale, ir.DataType.FLOAT), _scalar(zero_point, dtype))
    return _clipped(integers, quant_min, quant_max, ir.DataType(dtype))


def _dequantize(
    x: Any, scale: Any, zero_point: Any, quant_min: int, quant_max: int, dtype: int, out_dtype: int = -1
) -> Any:
    floats = op.DequantizeLinear(x, _scalar(scale, ir.DataType.FLOAT), _scalar(zero_point, dtype))
    return floats if out_dtype in (-1, None, ir.DataType.FLOAT) else op.Cast(floats, to=out_dtype)


def _int_mm(a: Any, b: Any) -> Any:
    return op.MatMulInteger(a, b)


def _fake_quantize(  # noqa: PLR0913
    quant_dtype: str,
    inputs: Any,
    scale: Any,
    zero_point: Any,
    axis: int,
    group_size: int,
    quant_min: float,
    quant_max: float,
    round_mode: int,
    qscheme: str,
    mx_element_dtype: str,
) -> Any:
    if qscheme == "per_group":
        raise ValueError(f"QuantizeLinear cannot express Quark's groups of {group_size}")
    if quant_dtype in _HALVES:
        return op.CastLike(op.Cast(inputs, to=_HALVES[quant_dtype]), inputs)
    if quant_dtype in _FLOAT8:
        zero = op.Cast(op.Sub(scale, scale), to=_FLOAT8[quant_dtype])
        return op.DequantizeLinear(op.QuantizeLinear(inputs, scale, zero, axis=axis), scale, zero, axis=axis)
    if quant_dtype not in _INTEGERS:
        raise ValueError(f"QuantizeLinear cannot express Quark's {quant_dtype}")
    dtype = _INTEGERS[quant_dtype]
    zero = op.Cast(zero_point, to=dtype)
    integers = _clipped(op.QuantizeLinear(inputs, scale, zero, axis=axis), int(quant_min), int(quant_max), dtype)
    return op.DequantizeLinear(integers, scale, zero, axis=axis)


def _clipped(x: Any, low: int, high: int, dtype: ir.DataType) -> Any:
    return x if (low, high) == _RANGES[dtype] else op.Clip(x, _number(low, dtype), _number(high, dtype))


def _number(value: float, dtype: ir.DataType = ir.DataType.FLOAT) -> Any:
    return op.Constant(value=ir.tensor(value, dtype=dtype))


def _scalar(x: Any, dtype: int) -> Any:
    return op.Cast(op.Squeeze(x), to=dtype)


def _vector(x: Any, dtype: int) -> Any:
    return op.Cast(op.Reshape(x, op.Constant(value_ints=[1])), to=dtype)


_TRANSLATIONS: Mapping[str, Callable[..., Any]] = {
    "aten::_int_mm.default": _int_mm,
    "quantized_decomposed::choose_qparams.tensor": _choose,
    "quantized_decomposed::choose_qparams_symmetric.tensor": _choose_symmetric,
    "quantized_decomposed::quantize_per_tensor.tensor": _quantize,
    "quantized_decomposed::dequantize_per_tensor.tensor": _dequantize,
    "quark::scaled_fake_quantize.default": _fake_quantize,
}
