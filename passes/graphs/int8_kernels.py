"""Forecast of the kernel that MIGraphX's gpu target uses for a convolution or matrix product, and why it is not 8-bit.

The gpu target's pass ``simplify_qdq`` (of MIGraphX 2.14) makes a product of 8 bits where

- both operands are made by DequantizeLinear with a constant scale and a zero point, and only rearranged since
  (transposed, reshaped, broadcast, cast);
- that happens in the same graph as the product, and scale and zero point are of that graph: not in one around it;
- the integers are of int8, or floats of 8 bits;
- a convolution's input has one scale, and its weight one, or one for each output channel;
- a matrix product's left operand has one scale, or one for each row, and its right one, one, or one for each column.

It looks at how many scales there are, not at which axis they belong to: if the axes are of one size, scales along
another axis are taken for those that it wants, and the numbers are wrong.

A later pass, ``eliminate_data_type``, computes products of float8 in float if the GPU has no instructions for them:
CDNA 3 (gfx94x) multiplies the formats with an unsigned zero (fnuz), to which another pass converts those of the Open
Compute Project (OCP); gfx95x and RDNA 4 (gfx12) multiply only those of OCP.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Collection
from dataclasses import dataclass
from typing import Literal

import onnx_ir as ir

from passes.graphs.quantization import plain, quantized_dtype, zero_point
from passes.graphs.scopes import Scope
from passes.operators import is_dequantize

Kernel = Literal["int8", "fp8", "int4-weight", "float"]

PRODUCTS = ("Conv", "ConvTranspose", "Gemm", "MatMul", "ConvInteger", "MatMulInteger")
"""The standard operators that are forecast."""

LOOKED_THROUGH = ("Transpose", "Reshape", "Expand", "Cast", "Identity")
"""Operators that ``simplify_qdq`` looks through from a product to DequantizeLinear."""
_FNUZ = {ir.DataType.FLOAT8E4M3FNUZ, ir.DataType.FLOAT8E5M2FNUZ}
FLOAT8 = {ir.DataType.FLOAT8E4M3FN, ir.DataType.FLOAT8E5M2, *_FNUZ}


class Condition(enum.Enum):
    """The conditions of an 8-bit kernel; `Reason` names the operand that violates one."""

    OPERATOR = "the operator has no kernel of 8 bits"
    ALPHA = "alpha is 1"
    RANK = "no operand is a vector"
    DEQUANTIZED = "the operand is dequantized, and only rearranged since"
    SAME_GRAPH = "scale and zero point, and what dequantizes, are in the product's own graph"
    PARAMETERS_CONSTANT = "scale and zero point are constant"
    ZERO_POINT = "there is a zero point"
    DTYPE = "the integers are of int8, or floats of 8 bits"
    ONE_SCALE = "the input has one scale"
    SCALES_OF_WEIGHT = "the weight has one scale, or one for each output channel"
    SCALES_OF_ROWS = "the left operand has one scale, or one for each row"
    SCALES_OF_COLUMNS = "the right operand has one scale, or one for each column"
    ARCHITECTURE = "the GPU multiplies floats of 8 bits of this format"


@dataclass(frozen=True)
class Reason:
    """The first condition that is violated, the name of the value that violates it, and what is there instead."""

    condition: Condition
    operand: str = ""
    found: str = ""

    def __str__(self) -> str:
        return f"not so: {self.condition.value}" + (f" ({self.operand}: {self.found})" if self.found else "")


@dataclass(frozen=True)
class KernelForecast:
    """The kernel of a product; why it is not one of 8 bits, and why its numbers would be wrong, if that is so."""

    kernel: Kernel
    reason: Reason | None = None
    wrong: str = ""


@dataclass(frozen=True)
class Operand:
    """One operand of a product, traced back to its DequantizeLinear.

    Attributes:
        dequantize: that node.
        axis: the operand's axis that has the scales; None for one scale, blocks, and if it got lost.
        scales: how many numbers its scale has.
        direct: nothing lies between that makes the axis uncertain.
    """

    dequantize: ir.Node
    axis: int | None
    scales: int
    direct: bool = True


def forecast_kernel(node: ir.Node, scope: Scope, architecture: str | None = None) -> KernelForecast:
    """Forecast the kernel of a node of `PRODUCTS`, on a GPU of an architecture ("gfx942"); None is one with float8."""
    if node.op_type in ("ConvInteger", "MatMulInteger"):
        return KernelForecast("int8")
    reason, operands = _operands(node, scope)
    if reason is None:
        reason = _check_shapes(node, operands, scope)
    if reason is not None:
        four = any(_is_int4(value, scope) for value in node.inputs[:2])
        return KernelForecast("int4-weight" if four else "float", reason)
    dtypes = {quantized_dtype(operand.dequantize, scope) for operand in operands}
    wrong = _wrong(node, operands, scope)
    if ir.DataType.INT8 in dtypes:
        return KernelForecast("int8", None, wrong)
    if architecture is None or _multiplies_float8(architecture, dtypes):
        return KernelForecast("fp8", None, wrong)
    operand = str(operands[0].dequantize.outputs[0].name)
    return KernelForecast("float", Reason(Condition.ARCHITECTURE, operand, architecture), wrong)


def _multiplies_float8(architecture: str, dtypes: Collection[ir.DataType | None]) -> bool:
    if architecture.startswith("gfx94"):
        return True
    return architecture.startswith(("gfx95", "gfx12")) and _FNUZ.isdisjoint(dtypes)


def trace(value: ir.Value | None, scope: Scope) -> Operand | Reason:
    """Follow an operand back to its DequantizeLinear; the reason if that is not possible."""
    name = (value.name or "") if value is not None else ""
    between: list[ir.Node] = []
    while True:
        node = value.producer() if value is not None else None
        if node is None:
            constant = scope.constant(value) is not None
            return Reason(Condition.DEQUANTIZED, name, "a constant" if constant else "an input")
        if is_dequantize(node):
            break
        if scope.constant(value) is not None:
            return Reason(Condition.DEQUANTIZED, name, "a constant")
        if not plain(node, scope, *LOOKED_THROUGH):
            return Reason(Condition.DEQUANTIZED, name, f"{node.op_type} {node.name}")
        between.append(node)
        value = node.inputs[0]
    size = _size(node.inputs[1], scope)
    axis, direct = _axis(node, size, scope), True
    for view in reversed(between):
        axis, direct = _moved(view, axis, direct, scope)
    return Operand(node, axis, size, direct)


def contracted(node: ir.Node, index: int, scope: Scope) -> int | None:
    """Return the axis of an operand over which a product sums; None if its rank is unknown, or there are several."""
    shape = scope.shape(node.inputs[index])
    if node.op_type in ("Conv", "ConvTranspose"):
        return 1 if node.op_type == "Conv" else 0
    if shape is None:
        return None
    if node.op_type == "Gemm":
        transposed = node.attributes.get_int("transB" if index else "transA", 0)
        return (1 if transposed else 0) if index else (0 if transposed else 1)
    rank = len(shape)
    return rank - 1 if index == 0 or rank == 1 else rank - 2


def kept(node: ir.Node, index: int, scope: Scope) -> int | None:
    """Return the axis of an operand along which an 8-bit kernel may have several scales."""
    shape = scope.shape(node.inputs[index])
    if node.op_type == "Conv":
        return 0 if index else None
    inner = contracted(node, index, scope)
    if shape is None or inner is None or len(shape) < 2:
        return None
    return len(shape) - 1 if inner == len(shape) - 2 else len(shape) - 2


def _operands(node: ir.Node, scope: Scope) -> tuple[Reason | None, list[Operand]]:
    """Return the first violated condition on operands, and the operands if there is none."""
    if node.op_type not in ("Conv", "Gemm", "MatMul"):
        return Reason(Condition.OPERATOR), []
    if node.op_type == "Gemm" and node.attributes.get_float("alpha", 1.0) != 1.0:
        return Reason(Condition.ALPHA), []
    if node.op_type == "MatMul":
        for value in node.inputs:
            shape = scope.shape(value)
            if shape is not None and len(shape) == 1:
                return Reason(Condition.RANK, (value.name or "") if value is not None else "", "of rank 1"), []
    operands: list[Operand] = []
    for value in node.inputs[:2]:
        operand = trace(value, scope)
        if isinstance(operand, Reason):
            return operand, []
        operands.append(operand)
    for operand in operands:
        dequantize = operand.dequantize
        name = dequantize.name or ""
        scale, zero = dequantize.inputs[1], zero_point(dequantize)
        if zero is None:
            return Reason(Condition.ZERO_POINT, name, "it has none"), []
        if scope.constant(scale) is None or scope.constant(zero) is None:
            return Reason(Condition.PARAMETERS_CONSTANT, name, "computed"), []
        if any(value is None or value.graph is not node.graph for value in (dequantize.outputs[0], scale, zero)):
            return Reason(Condition.SAME_GRAPH, name, "in a graph around it"), []
    for operand in operands:
        dtype = quantized_dtype(operand.dequantize, scope)
        if dtype != ir.DataType.INT8 and dtype not in FLOAT8:
            of = dtype.name.lower() if dtype is not None else "an unknown dtype"
            return Reason(Condition.DTYPE, operand.dequantize.name or "", of), []
    return None, operands


def _check_shapes(node: ir.Node, operands: list[Operand], scope: Scope) -> Reason | None:
    """Return whether the number of scales is one that the kernel accepts."""
    left, right = operands
    if node.op_type == "Conv":
        if left.scales != 1:
            return Reason(Condition.ONE_SCALE, left.dequantize.name or "", f"{left.scales} scales")
        channels = _dim(node.inputs[1], 0, scope)
        if right.scales not in (1, channels):
            return Reason(Condition.SCALES_OF_WEIGHT, right.dequantize.name or "", f"{right.scales} scales")
        return None
    conditions = (Condition.SCALES_OF_ROWS, Condition.SCALES_OF_COLUMNS)
    for index, (operand, condition) in enumerate(zip(operands, conditions, strict=True)):
        axis = kept(node, index, scope)
        size = _dim(node.inputs[index], axis, scope) if axis is not None else None
        if operand.scales not in (1, size):
            return Reason(condition, operand.dequantize.name or "", f"{operand.scales} scales")
    return None


def _wrong(node: ir.Node, operands: list[Operand], scope: Scope) -> str:
    """Return whether the scales belong to another axis than the kernel assumes."""
    for index, operand in enumerate(operands):
        if operand.scales > 1 and (not operand.direct or operand.axis != kept(node, index, scope)):
            return f"the scales of {operand.dequantize.name} are along another axis than the kernel takes them for"
    return ""


def _axis(node: ir.Node, size: int, scope: Scope) -> int | None:
    """Return the axis of a DequantizeLinear's scales, counted from the front."""
    shape = scope.shape(node.inputs[1])
    if size == 1 or shape is None or len(shape) != 1:
        return None
    axis = node.attributes.get_int("axis", 1)
    whole = scope.shape(node.outputs[0]) or scope.shape(node.inputs[0])
    if axis < 0 and whole is not None:
        axis += len(whole)
    return axis


def _moved(node: ir.Node, axis: int | None, direct: bool, scope: Scope) -> tuple[int | None, bool]:
    """Return the index of an axis after a node that rearranges, and whether it is certain."""
    if axis is None or node.op_type in ("Cast", "Identity"):
        return axis, direct
    before, after = scope.shape(node.inputs[0]), scope.shape(node.outputs[0])
    if node.op_type == "Transpose":
        rank = len(before) if before is not None else 0
        order = list(node.attributes.get_ints("perm", list(range(rank))[::-1]))
        return (order.index(axis), direct) if axis in order else (None, False)
    if before is None or after is None or not (before.is_static() and after.is_static()):
        return None, False
    old, new = list(before.numpy()), list(after.numpy())
    if node.op_type == "Expand":
        return axis + len(new) - len(old), direct
    for place, size in enumerate(new):  # the same axis, if as many elements are before and after it
        if size == old[axis] and math.prod(new[:place]) == math.prod(old[:axis]):
            return place, direct
    return None, False


def _is_int4(value: ir.Value | None, scope: Scope) -> bool:
    operand = trace(value, scope)
    if isinstance(operand, Reason):
        return False
    return quantized_dtype(operand.dequantize, scope) in (ir.DataType.INT4, ir.DataType.UINT4)


def _size(value: ir.Value | None, scope: Scope) -> int:
    """Return the number of elements of a scale; 0 if unknown."""
    shape = scope.shape(value)
    return math.prod(list(shape.numpy())) if shape is not None and shape.is_static() else 0


def _dim(value: ir.Value | None, axis: int, scope: Scope) -> int | None:
    shape = scope.shape(value)
    if shape is None or axis >= len(shape):
        return None
    size = shape[axis]
    return size if isinstance(size, int) else None
