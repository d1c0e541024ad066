"""Nodes that are invalid whatever the sizes of their inputs: by attributes, constant operands and ranks; or too large.

ONNX's inference of a single node says so, and ONNX Runtime refuses such a model. Asked without the sizes, it does not
refuse what only does not fit them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import onnx
import onnx_ir as ir

from passes.core.errors import InputError
from passes.core.text import first_line
from passes.graphs.limits import MAX_BYTES
from passes.graphs.matching import is_plain
from passes.graphs.scopes import Scope
from passes.graphs.traversal import has_subgraphs, operands_of
from passes.shapes.fatal import FatalInference
from passes.shapes.inference import FAILURES, ask_node

_POSITIVE = {
    "dilations", "group", "hidden_size", "kernel_shape", "kv_num_heads", "num_groups", "num_heads", "output_height",
    "output_width", "size", "strides",
}  # fmt: skip
"""Attributes of which each number is at least 1, which inference does not always check."""
_UNSET = {"RotaryEmbedding"}
"""Operators that take 0 for a number that is not given."""


def check_nodes(nodes: Iterable[ir.Node], scope: Scope, *, sized: bool = False) -> None:
    """Check nodes of ONNX's and ONNX Runtime's operators, to the extent that the types of their inputs are known.

    Args:
        nodes: the nodes after inference; of those of ONNX Runtime's operators, some attributes are checked.
        scope: the main graph or function that contains them.
        sized: whether the sizes of inputs are checked as well; otherwise, nodes of whose outputs inference has found
            the ranks are known to be valid.

    Raises:
        InputError: a node is invalid.
    """
    for node in nodes:
        problem = _not_positive(node) if node.domain == "com.microsoft" and is_plain(node, scope) else ""
        if node.domain == "" and onnx.defs.has(node.op_type, scope.opset(), "") and is_plain(node, scope):
            doubtful = sized or any(value.shape is None or value.is_graph_output() for value in node.outputs)
            problem = _not_positive(node) or (_refusal(node, scope, sized) if doubtful else "") or _too_large(node)
        if problem:
            raise InputError(f"{node.op_type} is not valid: {problem}", where=f"node {node.name}")


def _not_positive(node: ir.Node) -> str:
    for name in sorted(_POSITIVE.intersection(() if node.op_type in _UNSET else node.attributes)):
        attribute = node.attributes[name]
        if attribute.type in (ir.AttributeType.INT, ir.AttributeType.INTS):
            numbers = [attribute.value] if attribute.type == ir.AttributeType.INT else list(attribute.value)
            if any(number < 1 for number in numbers):
                return f"{name} is {attribute.value}, and must be positive"
    return ""


def _too_large(node: ir.Node) -> str:
    for value in node.outputs:
        size = math.prod(value.shape.numpy()) if value.shape is not None and value.shape.is_static() else 0
        sized = value.dtype is not None and value.dtype not in (ir.DataType.STRING, ir.DataType.UNDEFINED)
        if size * (value.dtype.itemsize if value.dtype is not None and sized else 1) > MAX_BYTES:
            return f"{value.name} has the shape {list(value.shape or ())}, more than the memory of any device"
    return ""


def _refusal(node: ir.Node, scope: Scope, sized: bool) -> str:
    if not node.inputs or has_subgraphs(node) or any(value.type is None for value in operands_of(node)):
        return ""
    try:
        ask_node(node, scope, sized=sized, corrected=False)
    except FAILURES as error:
        # inference was not asked where it would not return
        return "" if isinstance(error, FatalInference) else first_line(error).rpartition("Error] ")[2]
    return ""
