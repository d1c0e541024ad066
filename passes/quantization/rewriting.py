"""What rewrites of quantized models share: inference before they match, and the nodes around a quantized value."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

import onnx_ir as ir

from passes.graphs.int8_kernels import LOOKED_THROUGH
from passes.graphs.quantization import plain
from passes.graphs.scopes import Scope, scopes
from passes.operators import DEQUANTIZE, STANDARD_DOMAINS
from passes.rewriting.base import Context, Result
from passes.rewriting.rewrite import M, NodeContext, NodeRewrite
from passes.shapes.inference import infer


class InferredRewrite(NodeRewrite[M]):
    """A rewrite that matches by inferred shapes and dtypes.

    Attributes:
        inferred_for: the operators of which a model must have one to be inferred; without any, inference is skipped.
    """

    inferred_for: ClassVar[frozenset[tuple[str, str]]] = DEQUANTIZE

    def run(self, model: ir.Model, context: Context) -> Result:
        """Infer shapes and dtypes, then rewrite."""
        nodes = (node for scope in scopes(model) for node in scope.nodes())
        if any((node.domain, node.op_type) in self.inferred_for for node in nodes):
            infer(model)
        return super().run(model, context)


def producer(node: ir.Node, op_type: str, context: NodeContext) -> ir.Node | None:
    """The QuantizeLinear or DequantizeLinear, in either domain, that computes the first input of ``node``."""
    return next(filter(None, (context.producer(node, 0, op_type, domain=domain) for domain in STANDARD_DOMAINS)), None)


def consumers(value: ir.Value, scope: Scope) -> Iterator[tuple[ir.Value, ir.Node | None]]:
    """What takes a dequantized value, directly or through the operators that MIGraphX looks through.

    Yields:
        The value as it is taken, and the node that takes it; None for a graph output, and where nothing takes it.
    """
    pending = [value]
    while pending:
        value = pending.pop()
        if value.is_graph_output() or not value.uses():
            yield value, None
        for node in value.consumers():
            if plain(node, scope, *LOOKED_THROUGH):
                pending.extend(node.outputs)
            else:
                yield value, node
