"""Refuse quantization that cannot be meant, and say which node it is.

A scale must be a positive, finite number. Where nothing but zero is stored it may be zero, as for channels that are
pruned; weights of few bits, in blocks, have scales of either sign. There must be as many scales as the axis is long, or
one; zero points must be of the dtype of the integers, as many as scales, within the dtype's range, and zero with 32
bits. A weight must not be quantized twice, from one grid of 8 bits onto another, which loses what the first had kept:
that is what quantizing a quantized model does.

Runtimes accept such models, or abort, and give infinities, NaN or other numbers. Nothing is changed here. Scales that
are computed are not looked at.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from passes import graphs
from passes.base import Context, Pass, Result
from passes.errors import InputError
from passes.graphs import Scope
from passes.quantization import Array, is_dequantize, is_quantize, quantized_dtype, same_parameters, zero_point

_SCALES = {
    "QLinearConv": (1, 4, 6),
    "QLinearMatMul": (1, 4, 6),
    "QGemm": (1, 4, 7),
    "QLinearAdd": (1, 4, 6),
    "QLinearMul": (1, 4, 6),
    "MatMulIntegerToFloat": (2, 3),
    "MatMulNBits": (2,),
    "GatherBlockQuantized": (2,),
}
"""Where other operators have scales."""


@dataclass(frozen=True)
class CheckQuantization(Pass):
    """Refuse quantization that cannot be meant, and say which node it is."""

    name = "check-quantization"

    def run(self, model: ir.Model, context: Context) -> Result:
        """Look at every node that quantizes or dequantizes.

        Raises:
            InputError: one of them cannot be meant.
        """
        for scope in graphs.scopes(model):
            graphs.name_nodes(scope)
            for node in scope.nodes():
                problem = None
                if is_quantize(node) or is_dequantize(node):
                    problem = _problem(node, scope)
                elif node.op_type in _SCALES:
                    problem = _scales(node, scope)
                if problem is not None:
                    what, hint = problem
                    raise InputError(what, where=f"{node.op_type} {node.name}", hint=hint)
        return Result(model)


def _problem(node: ir.Node, scope: Scope) -> tuple[str, str] | None:
    """What cannot be meant of a QuantizeLinear or DequantizeLinear, and what helps."""
    zero = zero_point(node)
    offset, scale, dtype = scope.constant(zero), scope.constant(node.inputs[1]), quantized_dtype(node, scope)
    if zero is not None and is_dequantize(node):
        own, stored = scope.dtype(zero), scope.dtype(node.inputs[0])
        if own is not None and stored is not None and own != stored:
            return (
                f"its zero point is {own.name.lower()}, and its integers are {stored.name.lower()}",
                "make them the same",
            )
    if offset is not None and (outside := _outside(offset)) is not None:
        return (
            f"its zero point {outside} is out of the range of {offset.dtype.name.lower()}",
            "quantize the model again",
        )
    if offset is not None and dtype in (ir.DataType.INT32, ir.DataType.UINT32) and offset.numpy().any():
        return "its zero point is not zero, and its integers are of 32 bits", "only fewer bits have zero points"
    if scale is not None:
        steps = scale.numpy().astype(np.float64)
        if problem := _values(steps, _zeros_only(node, steps, offset, scope), signed=steps.ndim > 1):
            return problem, "calibrate on data that covers what the model sees, and quantize it again"
        if problem := _length(node, steps, offset, scope):
            return problem, "quantize the model again"
    return _twice(node, scope)


def _scales(node: ir.Node, scope: Scope) -> tuple[str, str] | None:
    """What cannot be meant of the scales of another operator."""
    for index in _SCALES[node.op_type]:
        tensor = scope.constant(node.inputs[index]) if len(node.inputs) > index else None
        if tensor is not None:
            steps = tensor.numpy().astype(np.float64)
            blocks = node.op_type in ("MatMulNBits", "GatherBlockQuantized")
            if problem := _values(steps, steps == 0 if blocks else None, signed=blocks):
                return f"{problem} (input {index})", "quantize the model again"
    return None


def _values(steps: Array, allowed: Array | None, *, signed: bool) -> str:
    """Which of the scales is no number of the right sign; those at ``allowed`` may be zero."""
    if np.isnan(steps).any():
        return "its scale is NaN"
    if np.isinf(steps).any():
        return "its scale is infinite"
    if not signed and (steps < 0).any():
        return f"its scale is negative: {steps.min():g}"
    if ((steps == 0) & ~(np.zeros(steps.shape, bool) if allowed is None else allowed)).any():
        return "its scale is zero"
    return ""


def _zeros_only(node: ir.Node, steps: Array, offset: ir.TensorProtocol | None, scope: Scope) -> Array | None:
    """Where along the axis of the scales a constant stores nothing but zero; None where nothing is known of that."""
    stored = scope.constant(node.inputs[0])
    if not is_dequantize(node) or stored is None or not (steps == 0).any():
        return None
    if steps.ndim > 1:
        return np.asarray(steps == 0)
    numbers = stored.numpy().astype(np.int64)
    zero = offset.numpy().astype(np.int64) if offset is not None else np.zeros(steps.shape, np.int64)
    if steps.size == 1 or numbers.ndim == 0:
        return np.full(steps.shape, not (numbers - zero).any())
    axis = node.attributes.get_int("axis", 1) % numbers.ndim
    rows = np.moveaxis(numbers, axis, -1) - zero
    return np.asarray(~rows.reshape(-1, rows.shape[-1]).any(axis=0))


def _length(node: ir.Node, steps: Array, offset: ir.TensorProtocol | None, scope: Scope) -> str:
    """Whether there are as many scales and zero points as there must be."""
    if offset is not None and offset.size != steps.size:
        return f"it has {steps.size} scales and {offset.size} zero points"
    shape = scope.shape(node.inputs[0])
    if steps.ndim != 1 or steps.size == 1 or shape is None or node.attributes.get_int("block_size", 0) != 0:
        return ""
    axis = node.attributes.get_int("axis", 1)
    if not -len(shape) <= axis < len(shape):
        return f"its scales are along axis {axis} of a tensor of rank {len(shape)}"
    size = shape[axis]
    return f"it has {steps.size} scales for an axis of {size}" if isinstance(size, int) and size != steps.size else ""


def _outside(tensor: ir.TensorProtocol) -> int | None:
    """A number that was stored for a tensor and that its dtype cannot hold; None where there is none."""
    stored = getattr(getattr(tensor, "raw", None), "int32_data", ())
    if not tensor.dtype.is_integer() or tensor.dtype.bitwidth < 8:
        return None
    return next((int(each) for each in stored if not tensor.dtype.min <= each <= tensor.dtype.max), None)


def _twice(node: ir.Node, scope: Scope) -> tuple[str, str] | None:
    """Whether it quantizes a weight that was quantized on another grid."""
    before = node.inputs[0].producer() if node.inputs[0] is not None else None
    if not is_quantize(node) or before is None or not is_dequantize(before):
        return None
    if scope.constant(before.inputs[0]) is None or same_parameters(before, node, scope):
        return None
    dtypes = {quantized_dtype(before, scope), quantized_dtype(node, scope)}
    if any(dtype is None or not dtype.is_integer() or dtype.bitwidth > 8 for dtype in dtypes):
        return None
    return (
        f"the weight {before.inputs[0].name if before.inputs[0] else ''} is quantized twice",
        "quantize the original model",
    )
