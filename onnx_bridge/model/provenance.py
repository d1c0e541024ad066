"""Where a node comes from: its operator's full name, and the PyTorch module that an exporter wrote down."""

from __future__ import annotations

import ast

import onnx_ir as ir


def operator(node: ir.Node) -> str:
    """The operator, with its domain where that is not ONNX's own."""
    return f"{node.domain}::{node.op_type}" if node.domain else node.op_type


SCOPE = "onnx_bridge.scope"
"""The node property in which `onnx_bridge.export` writes the module down, as ``get_submodule`` of PyTorch takes it."""


def module(node: ir.Node) -> str:
    """The innermost named module of PyTorch that an exporter wrote down. Empty without one."""
    if SCOPE in node.metadata_props:
        return node.metadata_props[SCOPE]
    try:  # the exporter's last scope is the operator itself
        scopes = ast.literal_eval(node.metadata_props.get("pkg.torch.onnx.name_scopes", "[]"))
        return str(scopes[-2]) if len(scopes) > 1 else ""
    except (SyntaxError, ValueError, TypeError):
        return ""
