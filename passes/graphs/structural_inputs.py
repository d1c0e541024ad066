"""Structural inputs of a model: those that are shapes, axes, pads, counts or limits rather than data.

Runtimes require these to be constant, and in most deployments they are. An input is structural if operators use it only
as such an operand, directly or through shape arithmetic.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

import onnx_ir as ir

from passes.graphs.scopes import Scope
from passes.operators import REDUCTIONS

OPERANDS: Mapping[str, tuple[int, ...]] = {
    "AffineGrid": (1,),
    "BlackmanWindow": (0,),
    "CenterCropPad": (1,),
    "Col2Im": (1, 2),
    "Compress": (1,),
    "ConstantOfShape": (0,),
    "CumProd": (1,),
    "CumSum": (1,),
    "DFT": (1, 2),
    "Dropout": (1, 2),
    "Expand": (1,),
    "HammingWindow": (0,),
    "HannWindow": (0,),
    "Loop": (0, 1),
    "MaxUnpool": (2,),
    "MelWeightMatrix": (0, 1, 2, 3, 4),
    "NonMaxSuppression": (2, 3, 4),
    "OneHot": (1,),
    "Pad": (1, 2, 3),
    "Range": (0, 1, 2),
    "Reshape": (1,),
    "Resize": (1, 2, 3),
    "STFT": (1, 3),
    "SequenceAt": (1,),
    "SequenceErase": (1,),
    "SequenceInsert": (2,),
    "Slice": (1, 2, 3, 4),
    "Split": (1,),
    "SplitToSequence": (1,),
    "Squeeze": (1,),
    "Tile": (1,),
    "TopK": (1,),
    "Trilu": (1,),
    "Unsqueeze": (1,),
    "Upsample": (1,),
    **dict.fromkeys(REDUCTIONS, (1,)),
}
"""The indices of structural operands, by operator."""
_ARITHMETIC = frozenset(
    ["Add", "Cast", "Concat", "Div", "Gather", "Identity", "Mul", "Reshape", "Slice", "Squeeze", "Sub", "Unsqueeze"]
)
"""Operators of shape arithmetic."""


def structural_inputs(model: ir.Model) -> list[str]:
    """The names of the structural inputs of ``model``, in order."""
    scope = Scope(model, model.graph)
    structural: set[ir.Value] = set()
    for node in reversed([*scope.nodes()]):  # after all uses of what it computes
        if node.outputs and _is_structural(node.outputs[0], structural):
            structural.add(node.outputs[0])
    inputs = [value for value in model.graph.inputs if not scope.is_parameter(value)]
    return [str(value.name) for value in inputs if _is_structural(value, structural)]


def _is_structural(value: ir.Value, structural: Collection[ir.Value]) -> bool:
    """Whether a value has uses, and all of them are structural.

    Args:
        value: an input, or the result of a node.
        structural: those of the results of later nodes.
    """
    if value.is_graph_output() or not value.uses():
        return False
    for node, index in value.uses():
        if node.domain != "":
            return False
        shapes = node.op_type in _ARITHMETIC and node.outputs[0] in structural
        if index not in OPERANDS.get(node.op_type, ()) and not shapes:
            return False
    return True
