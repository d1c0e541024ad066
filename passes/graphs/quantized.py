"""Which operators quantize, and which models are quantized."""

from __future__ import annotations

import onnx_ir as ir

from passes.graphs.traversal import with_nested

DOMAINS = ("", "com.microsoft")
"""The domains whose QuantizeLinear and DequantizeLinear mean the same."""


def is_quantize(node: ir.Node | None) -> bool:
    """Whether a node is a QuantizeLinear."""
    return node is not None and node.op_type == "QuantizeLinear" and node.domain in DOMAINS


def is_dequantize(node: ir.Node | None) -> bool:
    """Whether a node is a DequantizeLinear."""
    return node is not None and node.op_type == "DequantizeLinear" and node.domain in DOMAINS


def is_quantized(model: ir.Model) -> bool:
    """Whether anything in a model quantizes or dequantizes."""
    return quantized_node(model) is not None


def quantized_node(model: ir.Model) -> ir.Node | None:
    """The first node of a model that quantizes, dequantizes or computes with quantized numbers; None without any."""
    return next(
        (
            node
            for graph in (model.graph, *(function.graph for function in model.functions.values()))
            for node in with_nested(graph)
            if is_quantize(node)
            or is_dequantize(node)
            or node.domain in _QUANTIZING
            or node.op_type in _QUANTIZED
            or node.op_type.startswith("QLinear")
        ),
        None,
    )


_QUANTIZING = ("com.amd.quark", "com.vai.quantize")
_QUANTIZED = {
    "ConvInteger", "DynamicQuantizeLinear", "DynamicQuantizeMatMul", "GatherBlockQuantized", "MatMulBnb4",
    "MatMulInteger", "MatMulIntegerToFloat", "MatMulNBits", "QGemm",
}  # fmt: skip
