"""Reject invalid quantization, and name the node.

A scale must be positive and finite. It may be zero if the constant is all zeros, as in pruned channels; stored
weights may have negative scales, as NNCF writes them. There must be one scale, or as many as the axis is long. Zero
points must have the dtype of the integers, be as many as the scales and within the range of the dtype, and be zero for
32-bit integers. A weight must not be quantized twice with different 8-bit parameters, which loses precision: that is
the result of quantizing a quantized model.

The same is checked for operators on integers (standard and ONNX Runtime's), for weights in blocks, and for AMD Quark's
operators. Runtimes accept such models, or abort, and return infinities, NaN or wrong numbers. The model is not changed.
Computed scales are not checked.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import onnx_ir as ir

from passes.core.errors import InputError
from passes.graphs.quantization import Array, quantized_dtype, same_parameters, zero_point
from passes.graphs.scopes import Scope, name_nodes, scopes
from passes.operators import is_dequantize, is_quantize
from passes.rewriting.base import Context, Pass, Result


class _Operand(NamedTuple):
    """The input indices of an operand's integers, scale and zero point; None where there is no such input."""

    data: int | None
    scale: int | None
    zero: int | None
    axis: int | None = None
    """The axis along which there may be several scales or zero points."""


_PAIR = (_Operand(0, 1, 2), _Operand(3, 4, 5), _Operand(None, 6, 7))
_SINGLE = (_Operand(0, 1, 2), _Operand(None, 3, 4))
_OPERANDS = {
    "ConvInteger": (_Operand(0, None, 2), _Operand(1, None, 3, 0)),
    "DynamicQuantizeMatMul": (_Operand(1, 2, 3, -1),),
    "MatMulInteger": (_Operand(0, None, 2, -2), _Operand(1, None, 3, -1)),
    "MatMulIntegerToFloat": (_Operand(0, 2, 4, -2), _Operand(1, 3, 5, -1)),
    "QGemm": (_Operand(0, 1, 2), _Operand(3, 4, 5), _Operand(None, 7, 8)),
    "QLinearAdd": _PAIR,
    "QLinearAveragePool": _SINGLE,
    "QLinearConv": (_Operand(0, 1, 2), _Operand(3, 4, 5, 0), _Operand(None, 6, 7)),
    "QLinearGlobalAveragePool": _SINGLE,
    "QLinearLeakyRelu": _SINGLE,
    "QLinearMatMul": (_Operand(0, 1, 2, -2), _Operand(3, 4, 5, -1), _Operand(None, 6, 7)),
    "QLinearMul": _PAIR,
    "QLinearSigmoid": _SINGLE,
    "QLinearSoftmax": _SINGLE,
}
"""Operators that compute with integers."""
_BLOCKS = ("MatMulNBits", "GatherBlockQuantized")
_EXTENDED = {
    "ExtendedQuantizeLinear", "ExtendedDequantizeLinear", "VitisQuantizeLinear", "VitisDequantizeLinear"
}  # fmt: skip
"""AMD Quark's operators, which quantize to more dtypes."""
_AGAIN, _SAME = "quantize the model again", "make them the same"


class CheckQuantization(Pass):
    """Reject invalid quantization, and name the node."""

    name = "check-quantization"

    def run(self, model: ir.Model, context: Context) -> Result:
        """Check every node that quantizes or dequantizes; raises InputError if a node is invalid."""
        for scope in map(name_nodes, scopes(model)):
            for node in scope.nodes():
                problem = None
                if is_quantize(node) or is_dequantize(node) or node.op_type in _EXTENDED:
                    problem = _problem(node, scope)
                elif node.op_type in _OPERANDS:
                    problem = _integers(node, scope)
                elif node.op_type in _BLOCKS:
                    problem = _blocks(node, scope)
                if problem is not None:
                    what, hint = problem
                    raise InputError(what, where=f"{node.op_type} {node.name}", hint=hint)
        return Result(model)


def _problem(node: ir.Node, scope: Scope) -> tuple[str, str] | None:
    """Return the problem of a QuantizeLinear or DequantizeLinear, and a hint."""
    zero = zero_point(node)
    offset, scale, dtype = scope.constant(zero), scope.constant(node.inputs[1]), quantized_dtype(node, scope)
    if zero is not None and is_dequantize(node):
        own, stored = scope.dtype(zero), _stored(node.inputs[0], scope)
        if own is not None and stored is not None and own != stored:
            return f"its zero point is {own.name.lower()}, and its integers are {stored.name.lower()}", _SAME
    if offset is not None and (outside := _outside(offset)) is not None:
        return f"its zero point {outside} is out of range of {offset.dtype.name.lower()}", _AGAIN
    wide = dtype in (ir.DataType.INT32, ir.DataType.UINT32) and node.op_type not in _EXTENDED
    if offset is not None and wide and offset.numpy().any():
        return "its zero point is not zero, and its integers have 32 bits", "32-bit integers have no zero point"
    if scale is not None:
        if not scale.dtype.is_floating_point():
            return f"its scale is {scale.dtype.name.lower()}", "a scale must be a float"
        steps = scale.numpy().astype(np.float64)
        signed = steps.ndim > 1 or (is_dequantize(node) and scope.constant(node.inputs[0]) is not None)
        if problem := _values(steps, _zeros_only(node, steps, offset, scope), signed=signed):
            return problem, "calibrate on data that is representative of the inputs, and quantize the model again"
        if problem := _length(node, steps, offset, scope):
            return problem, _AGAIN
    return _twice(node, scope)


def _stored(value: ir.Value | None, scope: Scope) -> ir.DataType | None:
    """Return the dtype of integers, also where only the node that makes them determines it."""
    maker = value.producer() if value is not None else None
    return scope.dtype(value) or (quantized_dtype(maker, scope) if maker is not None and is_quantize(maker) else None)


def _integers(node: ir.Node, scope: Scope) -> tuple[str, str] | None:
    """Return the problem of the scales and zero points of an operator on integers, and a hint."""

    def given(index: int | None) -> ir.Value | None:
        return node.inputs[index] if index is not None and index < len(node.inputs) else None

    for operand in _OPERANDS[node.op_type]:
        data, zero = given(operand.data), given(operand.zero)
        scale, offset = scope.constant(given(operand.scale)), scope.constant(zero)
        which = f" (input {operand.scale if scale is not None else operand.zero})"
        stored, own = _stored(data, scope), scope.dtype(zero)
        if stored is not None and own is not None and stored != own:
            dtypes = own.name.lower(), stored.name.lower(), operand.zero
            return "its zero point is {}, and its integers are {} (input {})".format(*dtypes), _SAME
        if scale is not None and (problem := _values(scale.numpy().astype(np.float64), None, signed=False)):
            return problem + which, _AGAIN
        shape = scope.shape(data)
        for tensor, what in ((scale, "scales"), (offset, "zero points")):
            if tensor is None or tensor.size == 1 or len(tensor.shape) > 1:
                continue
            size = shape[operand.axis] if shape is not None and operand.axis is not None and len(shape) > 1 else None
            if isinstance(size, int) and size != tensor.size:
                return f"it has {tensor.size} {what} for an axis of {size}{which}", _AGAIN
    return None


def _blocks(node: ir.Node, scope: Scope) -> tuple[str, str] | None:
    """Return the problem of the scales of weights in blocks, which may be zero or negative, and a hint."""
    scale = scope.constant(node.inputs[2])
    if scale is None:
        return None
    steps = scale.numpy().astype(np.float64)
    if problem := _values(steps, steps == 0, signed=True):
        return f"{problem} (input 2)", _AGAIN
    rows, columns = node.attributes.get_int("N", 0), node.attributes.get_int("K", 0)
    wanted = rows * -(-columns // max(1, node.attributes.get_int("block_size", 0)))
    if node.op_type == "MatMulNBits" and rows and columns and steps.size != wanted:
        return f"it has {steps.size} scales for {wanted} blocks (input 2)", _AGAIN
    return None


def _values(steps: Array, allowed: Array | None, *, signed: bool) -> str:
    """Return the problem of the values of scales; those at ``allowed`` may be zero."""
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
    """Return where along the axis of the scales a constant is all zeros; None if that is unknown."""
    if not (steps == 0).any():
        return None
    source = node.inputs[0]
    maker = source.producer() if source is not None and is_dequantize(node) else None
    before = maker.inputs[0] if maker is not None and is_quantize(maker) else source
    stored = scope.constant(before)
    if stored is None:
        return None
    if before is not source or is_quantize(node):  # a float constant, before its quantization
        offset = None
    if steps.ndim > 1:
        return np.asarray(steps == 0)
    numbers = stored.numpy().astype(np.float64)
    zero = offset.numpy().astype(np.int64) if offset is not None else np.zeros(steps.shape, np.int64)
    if steps.size == 1 or numbers.ndim == 0:
        return np.full(steps.shape, not (numbers - zero).any())
    axis = node.attributes.get_int("axis", 1) % numbers.ndim
    rows = np.moveaxis(numbers, axis, -1) - zero
    return np.asarray(~rows.reshape(-1, rows.shape[-1]).any(axis=0))


def _length(node: ir.Node, steps: Array, offset: ir.TensorProtocol | None, scope: Scope) -> str:
    """Return the problem of the number of scales and zero points."""
    if offset is not None and offset.size != steps.size:
        return f"it has {steps.size} scales and {offset.size} zero points"
    shape, block = scope.shape(node.inputs[0]), node.attributes.get_int("block_size", 0)
    if shape is None or (steps.size == 1 and not block):
        return ""
    axis = node.attributes.get_int("axis", 0 if node.op_type in _EXTENDED else 1)
    if block:
        wanted = [dim if isinstance(dim, int) else None for dim in shape]
        if steps.ndim != len(wanted) or not -len(wanted) <= axis < len(wanted):
            return f"its blocks are along axis {axis} of rank {len(wanted)}, but its scales have rank {steps.ndim}"
        if (along := wanted[axis]) is not None:
            wanted[axis] = -(-along // block)
        wrong = any(dim is not None and dim != size for dim, size in zip(wanted, steps.shape, strict=True))
        return f"it has {steps.shape} scales for {tuple(wanted)} blocks" if wrong else ""
    if steps.ndim != 1:
        return ""
    if not -len(shape) <= axis < len(shape):
        return f"its scales are along axis {axis} of a tensor of rank {len(shape)}"
    size = shape[axis]
    return f"it has {steps.size} scales for an axis of {size}" if isinstance(size, int) and size != steps.size else ""


def _outside(tensor: ir.TensorProtocol) -> int | None:
    """Return a stored element that is out of range of the tensor's dtype; None if there is none."""
    stored = getattr(getattr(tensor, "raw", None), "int32_data", ())
    if not tensor.dtype.is_integer() or tensor.dtype.bitwidth < 8:
        return None
    return next((int(element) for element in stored if not tensor.dtype.min <= element <= tensor.dtype.max), None)


def _twice(node: ir.Node, scope: Scope) -> tuple[str, str] | None:
    """Return the problem of a weight that is quantized twice with different parameters, and a hint."""
    before = node.inputs[0].producer() if node.inputs[0] is not None else None
    if not is_quantize(node) or before is None or not is_dequantize(before):
        return None
    if scope.constant(before.inputs[0]) is None or same_parameters(before, node, scope):
        return None
    dtypes = {quantized_dtype(before, scope), quantized_dtype(node, scope)}
    if any(dtype is None or not dtype.is_integer() or dtype.bitwidth > 8 for dtype in dtypes):
        return None
    name = before.inputs[0].name if before.inputs[0] else ""
    return f"the weight {name} is quantized twice", "quantize the original model"
