"""The origin of a node: its operator, and the PyTorch module that an exporter recorded."""

from __future__ import annotations

import ast

import onnx_ir as ir


def operator(node: ir.Node) -> str:
    """Return the name of the operator, with its domain unless it is a standard one."""
    return f"{node.domain}::{node.op_type}" if node.domain else node.op_type


SCOPE = "onnx_bridge.scope"
"""The metadata property in which `onnx_bridge.export` records the module, as PyTorch's ``get_submodule`` takes it."""


def module(node: ir.Node) -> str:
    """Return the innermost named PyTorch module that an exporter recorded; empty without one."""
    if SCOPE in node.metadata_props:
        return node.metadata_props[SCOPE]
    try:  # the exporter's last scope is the operator itself
        scopes = ast.literal_eval(node.metadata_props.get("pkg.torch.onnx.name_scopes", "[]"))
        return str(scopes[-2]) if len(scopes) > 1 else ""
    except (SyntaxError, ValueError, TypeError):
        return ""
