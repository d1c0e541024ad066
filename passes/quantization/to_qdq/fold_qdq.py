"""Fold quantization that no int8 kernel can use, and keep the quantized weights that int8 kernels need.

    W → QuantizeLinear → DequantizeLinear   →  W' (integers) → DequantizeLinear      for a constant W
    W' → DequantizeLinear → f               →  W'' → f                               if f has no int8 kernel
    x → QuantizeLinear → DequantizeLinear   →  Clip(x, (qmin − zp)·s, (qmax − zp)·s) with policy=all

``keep-int8``, the default, keeps DequantizeLinear where a convolution or a matrix product takes its result, directly or
rearranged, except for 32-bit biases. ``all`` folds all dequantized constants and removes the pairs on activations,
which gives a plain float model. A pair both rounds and saturates: without the rounding, results change by up to half a
step per pair; the saturation is kept as Clip, since quantizers rely on it when they remove a Relu.

Skips: constants larger than ``max-bytes``; pairs in blocks or in float8; and with ``all`` each DequantizeLinear without
a QuantizeLinear of the same scale before it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

import onnx_ir as ir

from passes.evaluation.folding import Folder, Refusal
from passes.graphs.matching import is_op, takers
from passes.graphs.quantization import aligned, parameters, same_parameters
from passes.graphs.scopes import Scope, name_nodes, nodes_of, scopes
from passes.graphs.traversal import has_subgraphs
from passes.operators import DEQUANTIZE, QUANTIZE
from passes.quantization.rewriting import clip, producer
from passes.rewriting.base import Context, Exactness, Pass, Result, Skip
from passes.rewriting.edit import Edit
from passes.rewriting.rewrite import Replacement, rewrite
from passes.shapes.inference import infer

Policy = Literal["keep-int8", "all"]

_INT8 = {
    "Attention",
    "Conv",
    "ConvTranspose",
    "DeformConv",
    "Einsum",
    "GRU",
    "Gemm",
    "LSTM",
    "MatMul",
    "QuantizeLinear",
    "RNN",
}
"""Operators that may have an integer kernel, on this or another runtime."""
_BIAS = (ir.DataType.INT32, ir.DataType.UINT32)
_REARRANGING = {
    "Cast",
    "Concat",
    "Expand",
    "Flatten",
    "Gather",
    "Identity",
    "Pad",
    "Reshape",
    "Slice",
    "Split",
    "Squeeze",
    "Tile",
    "Transpose",
    "Unsqueeze",
}
"""Operators that keep the elements of a weight."""


@dataclass(frozen=True)
class FoldQdq(Pass):
    """Fold quantization that no int8 kernel can use, and keep the quantized weights that int8 kernels need.

    Attributes:
        policy: what to fold besides the quantization of constants: dequantized constants that no int8 kernel can take
            (keep-int8), or all dequantized constants and the pairs on activations (all).
        max_bytes: with keep-int8, the largest floating-point constant to create.
    """

    name = "fold-qdq"
    policy: Policy = "keep-int8"
    max_bytes: int = field(default=64 * 2**20, metadata={"unit": "bytes"})

    @property
    def exactness(self) -> Exactness:  # type: ignore[override]  # it depends on an option
        """Results change only where the rounding of activations is removed."""
        return Exactness.QUANTIZATION_STEP if self.policy == "all" else Exactness.BITWISE

    def run(self, model: ir.Model, context: Context) -> Result:
        """Fold constants first, then pairs."""
        result = Result(model)
        if not any(map(_is_qdq, nodes_of(model))):
            return result
        infer(model)
        limit = self.max_bytes if self.policy == "keep-int8" else 2**63
        for scope in map(name_nodes, scopes(model)):
            folder = Folder(scope, context, result, name=self.name, accept=self._accept, max_bytes=limit)
            while folder.fold():
                pass
            folder.report()
        if self.policy == "all":
            pairs = fold_qdq.run(model, context)
            result.rewrites += pairs.rewrites
            result.skips += pairs.skips
        return result

    def _accept(self, node: ir.Node, scope: Scope) -> Refusal | None:
        if not _is_qdq(node):
            return ""
        keep = self.policy == "keep-int8" and node.op_type == "DequantizeLinear"
        if keep and scope.dtype(node.inputs[0]) in _BIAS:  # int8 kernels add a float bias
            return None
        return "" if keep and _may_be_integer_operand(node.outputs[0]) else None


def _is_qdq(node: ir.Node) -> bool:
    return (node.domain, node.op_type) in QUANTIZE | DEQUANTIZE


def _may_be_integer_operand(value: ir.Value) -> bool:
    """Return whether a constant reaches an operator that may take it as integers, or an unknown operator."""
    users = (node for _, node in takers(value, lambda node: is_op(node, *_REARRANGING)))
    return any(node is None or node.domain != "" or node.op_type in _INT8 or has_subgraphs(node) for node in users)


@rewrite(*DEQUANTIZE, exactness=Exactness.QUANTIZATION_STEP, absorbs=QUANTIZE)
def fold_qdq(node: ir.Node, edit: Edit) -> Replacement:
    """Replace QuantizeLinear → DequantizeLinear by Clip."""
    scope, before = edit.scope, producer(node, "QuantizeLinear", edit)
    if before is None or not same_parameters(before, node, scope):
        return Skip("no QuantizeLinear of the same scale is before it")
    source, given = edit.input(before), parameters(before, scope)
    if isinstance(given, str):
        return Skip(given)
    if scope.dtype(source) not in (None, scope.dtype(node.inputs[1])):
        return Skip("the dtypes of the input and the output differ")
    shape = scope.shape(source)
    low, high = (aligned(bound, given, None if shape is None else len(shape)) for bound in given.bounds())
    if low is None or high is None:
        return Skip("the node quantizes in blocks, or along an axis of a tensor of unknown rank")
    edit.absorb(before)
    return clip(edit, source, low, high)
