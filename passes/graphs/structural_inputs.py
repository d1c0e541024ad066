"""Structural inputs of a model: those that are shapes, axes, pads, counts or limits rather than data.

Runtimes require these to be constant, and in most deployments they are. An input is structural if operators use it only
as such an operand, directly or through shape arithmetic.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

import onnx_ir as ir

from passes.graphs.scopes import Scope
from passes.operators import REDUCTIONS

_BY_INDICES = {
    (0,): "BlackmanWindow ConstantOfShape HammingWindow HannWindow",
    (1,): "AffineGrid CenterCropPad Compress CumProd CumSum Expand OneHot Reshape SequenceAt SequenceErase Split "
    "SplitToSequence Squeeze Tile TopK Trilu Unsqueeze Upsample",
    (2,): "MaxUnpool SequenceInsert",
    (0, 1): "Loop",
    (1, 2): "Col2Im DFT Dropout",
    (1, 3): "STFT",
    (0, 1, 2): "Range",
    (1, 2, 3): "Pad Resize",
    (2, 3, 4): "NonMaxSuppression",
    (1, 2, 3, 4): "Slice",
    (0, 1, 2, 3, 4): "MelWeightMatrix",
}
OPERANDS: Mapping[str, tuple[int, ...]] = {
    **dict.fromkeys(REDUCTIONS, (1,)),
    **{name: indices for indices, names in _BY_INDICES.items() for name in names.split()},
}
"""The indices of structural operands, by operator."""
_ARITHMETIC = frozenset(
    ["Add", "Cast", "Concat", "Div", "Gather", "Identity", "Mul", "Reshape", "Slice", "Squeeze", "Sub", "Unsqueeze"]
)
"""Operators of shape arithmetic."""


def structural_inputs(model: ir.Model) -> list[str]:
    """Return the names of the structural inputs of ``model``, in order."""
    scope = Scope(model, model.graph)
    structural: set[ir.Value] = set()
    for node in reversed([*scope.nodes()]):  # after all uses of what it computes
        if node.outputs and _is_structural(node.outputs[0], structural):
            structural.add(node.outputs[0])
    inputs = [value for value in model.graph.inputs if not scope.is_parameter(value)]
    return [str(value.name) for value in inputs if _is_structural(value, structural)]


def _is_structural(value: ir.Value, structural: Collection[ir.Value]) -> bool:
    """Return whether a value has uses, and all are structural, given the ``structural`` results of later nodes."""
    if value.is_graph_output() or not value.uses():
        return False
    for node, index in value.uses():
        if node.domain != "":
            return False
        shapes = node.op_type in _ARITHMETIC and node.outputs[0] in structural
        if index not in OPERANDS.get(node.op_type, ()) and not shapes:
            return False
    return True
