"""What rules of quantized models share: the nodes around a quantized value."""

from __future__ import annotations

from collections.abc import Iterator

import onnx_ir as ir

from passes.graphs.int8_kernels import LOOKED_THROUGH
from passes.graphs.matching import takers
from passes.graphs.quantization import Array, plain
from passes.graphs.scopes import Scope
from passes.operators import STANDARD_DOMAINS
from passes.rewriting.edit import Edit


def producer(node: ir.Node, op_type: str, edit: Edit) -> ir.Node | None:
    """Return the QuantizeLinear or DequantizeLinear, in either domain, that computes the first input of ``node``."""
    return next(filter(None, (edit.producer(node, 0, op_type, domain=domain) for domain in STANDARD_DOMAINS)), None)


def consumers(value: ir.Value, scope: Scope) -> Iterator[tuple[ir.Value, ir.Node | None]]:
    """Yield the `takers` of a dequantized value, through the operators that MIGraphX looks through."""
    return takers(value, lambda node: plain(node, scope, *LOOKED_THROUGH))


def clip(edit: Edit, x: ir.Value, low: Array, high: Array) -> ir.Value:
    """Clip ``x`` to bounds that broadcast with it; along an axis by Max and Min, as Clip takes scalar bounds only."""
    least, most = edit.constant(low), edit.constant(high)
    return edit.op("Min", [edit.op("Max", [x, least]), most]) if low.ndim else edit.op("Clip", [x, least, most])
