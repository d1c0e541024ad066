"""Sizes of foreign operators that depend on elements of operands: ONNX Runtime infers them wrongly, or not at all.

    present = GroupQueryAttention(…, past, lengths, total)   ``total`` rows, or those of the past if these are enough;
                                                             ONNX Runtime infers those of the past
    y       = CropAndResize(x, regions, batch, size)         ``size``, of which ONNX Runtime infers nothing

A run shows such a size, and the next run may have another one.
"""

from __future__ import annotations

import onnx_ir as ir

from passes.graphs.scopes import Scope
from passes.operators import operators
from passes.shapes.skeleton import DOMAINS

_STEERING: dict[str, tuple[int, ...]] = {
    "ConvTransposeWithDynamicPads": (2,),
    "CropAndResize": (3,),
    "DecoderMaskedMultiHeadAttention": (),
    "ExpandDims": (1,),
    "GroupQueryAttention": (6,),
    "MultiHeadAttention": (),
    "Pad": (1,),
    "Range": (0, 1, 2),
    "RelativePositionBias": (1, 2),
}
"""The operands whose elements select sizes of the results; of other operators, any integers may."""
_BY_DATA = operators("by data") | {
    "BeamSearch", "BifurcationDetector", "DynamicTimeWarping", "GreedySearch", "Sampling", "Tokenizer",
    "WhisperBeamSearch",
}  # fmt: skip
"""Operators whose results have as many elements as are found in the inputs."""
_INTEGERS = (None, ir.DataType.INT32, ir.DataType.INT64)


def may_be_steered(node: ir.Node, scope: Scope) -> bool:
    """Return whether sizes of the results of a foreign operator may depend on elements that are not constant."""
    if node.op_type in _BY_DATA:
        return True
    if node.op_type == "GroupQueryAttention" and not _has_growing_cache(node):
        return False
    indices = _STEERING.get(node.op_type, range(len(node.inputs)))
    operands = [value for index, value in enumerate(node.inputs) if index in indices and value is not None]
    return any(value.dtype in _INTEGERS and scope.constant(value) is None for value in operands)


def steered_outputs(node: ir.Node, scope: Scope) -> list[ir.Value]:
    """Return the results of a foreign operator whose sizes are known to depend on elements that are not constant."""
    known = node.op_type in _BY_DATA or node.op_type in _STEERING
    if node.domain in DOMAINS or not known or not may_be_steered(node, scope):
        return []
    first = 1 if node.op_type == "GroupQueryAttention" else 0
    return [value for value in node.outputs[first:] if value.name]


def _has_growing_cache(node: ir.Node) -> bool:
    """Return whether the cache may get longer than its past; without a past, it has the length of the new tokens."""
    return any(node.inputs[3:4]) and not node.attributes.get_int("sliding_window_cache", 0)
