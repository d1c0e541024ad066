"""Split a Gemm with a constant weight into a MatMul and an Add: quantizers store in 4 bits what MatMul multiplies by.

    Gemm(x, w, b)             →  Add(MatMul(x, w), b)
    Gemm(x, w, b, transB=1)   →  Add(MatMul(x, wᵀ), b)      wᵀ a new constant

Skips: factors alpha or beta that are not 1, and a transposed x, with which exporters write no linear layer.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from passes.builders.operands import given
from passes.rewriting.base import Exactness, Skip
from passes.rewriting.edit import Edit
from passes.rewriting.rewrite import Replacement, rewrite


@rewrite("Gemm", exactness=Exactness.ROUNDING)
def split_gemm(node: ir.Node, edit: Edit) -> Replacement:
    """Split a Gemm with a constant weight into a MatMul and an Add."""
    weight = edit.scope.constant(node.inputs[1])
    if weight is None:
        return None
    if node.attributes.get_int("transA", 0):
        return Skip(f"{edit.input(node).name} is transposed")
    bias = given(node, 2)
    factors = [node.attributes.get_float(name, 1.0) for name in ("alpha", *(("beta",) if bias is not None else ()))]
    if factors != [1.0] * len(factors):
        return Skip(f"the factors {', '.join(f'{factor:g}' for factor in factors)} are not 1")
    matrix = edit.input(node, 1)
    if node.attributes.get_int("transB", 0):
        matrix = edit.constant(np.ascontiguousarray(weight.numpy().T), f"{matrix.name}/transposed")
    product = edit.op("MatMul", [edit.input(node), matrix])
    return product if bias is None else edit.op("Add", [product, bias])
