"""Fuse a matrix product and its bias into a Gemm, where that leaves fewer nodes.

    MatMul(x, w) + b                          →  Gemm(x, w, b)                                    x a matrix
    Reshape(MatMul(Reshape(x, r), w) + b, s)  →  Reshape(Gemm(Reshape(x, [−1, k]), w, b), s)      x of any shape
    MatMul(x, w) + 0                          →  MatMul(x, w)                                     x of any shape

w is a constant matrix of floats with k rows, b a constant with a number for each column or one for all. Several
products may use the first Reshape, as the projections of an attention over windows do; each gets a new one, of which
eliminate-common-subexpressions, which comes later, leaves one.

Skips: an x of an unknown number of dimensions; of more than two, where there is not a Reshape on both sides. A new one
would take the place of the addition, and MIGraphX, which otherwise multiplies by the weights of all projections of one
input together, would add their biases one by one (the gpu target's passes leave 475 instructions instead of 427 of a
BERT of four layers); with a Reshape there already, nothing changes for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import onnx_ir as ir

from passes.graphs.matching import is_op, is_plain, producer, sole_consumer
from passes.graphs.scopes import Scope
from passes.graphs.tensors import ints
from passes.rewriting.base import Exactness, Skip
from passes.rewriting.edit import Edit
from passes.rewriting.rewrite import Match, NodeContext, NodeRewrite

_FLOATS = (ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.DOUBLE)


@dataclass(frozen=True)
class _Linear(Match):
    """A product with a bias; of an x of more than two dimensions, with the Reshape after it.

    Attributes:
        source: what the Gemm multiplies, after a Reshape if there is a ``shape``.
        bias: the other operand of the addition.
        shape: the second input of the Reshape after it, or the elements of a new one; None for a matrix x.
    """

    source: ir.Value
    weight: ir.Value
    bias: ir.Value
    shape: ir.Value | tuple[int, ...] | None


@dataclass(frozen=True)
class _Unbiased(Match):
    """A product whose bias is 0."""

    product: ir.Value


class FuseGemm(NodeRewrite[_Linear | _Unbiased]):
    """Fuse a matrix product and its bias into a Gemm, where that leaves fewer nodes."""

    name = "fuse-gemm"
    exactness = Exactness.ROUNDING
    operators = frozenset({("", "MatMul")})
    absorbs = frozenset(("", each) for each in ("Add", "MatMul", "Reshape"))
    since_opset = 7  # before, the bias is not broadcast

    def match(self, node: ir.Node, context: NodeContext) -> _Linear | _Unbiased | Skip | None:
        """Find the bias, and a matrix in what the product multiplies."""
        found = _linear(node, context.scope)
        if not isinstance(found, _Linear) or found.shape is None:
            return found
        before = producer(node.inputs[0], node.graph, context.scope, "Reshape")
        if before is None or before.inputs[0] is None or not _only_linear(before.outputs[0], context.scope):
            return Skip(f"it would take a Reshape of {found.source.name} in place of an Add")
        return replace(found, source=before.inputs[0], absorbed=(*found.absorbed, before))

    def rewrite(self, match: _Linear | _Unbiased, edit: Edit) -> Sequence[ir.Value]:
        """The Gemm, between two Reshapes where x is no matrix; or the product alone."""
        if isinstance(match, _Unbiased):
            return [match.product]
        name = match.node.name
        if match.shape is None:
            return [edit.op("Gemm", [match.source, match.weight, match.bias])]
        rows = edit.scope.constant(match.weight).shape[0]  # type: ignore[union-attr]
        matrix = edit.op("Reshape", [match.source, edit.constant(np.array([-1, rows], np.int64), f"{name}/matrix")])
        product = edit.op("Gemm", [matrix, match.weight, match.bias])
        shape = match.shape
        if isinstance(shape, tuple):
            shape = edit.constant(np.array(shape, np.int64), f"{name}/shape")
        return [edit.op("Reshape", [product, shape])]


def _linear(product: ir.Node, scope: Scope) -> _Linear | _Unbiased | Skip | None:
    """A product that is a Gemm between two Reshapes, whatever x is, or without them for a matrix."""
    x, weight = product.inputs
    matrix = scope.constant(weight)
    add = sole_consumer(product.outputs[0], scope, "Add")
    if x is None or weight is None or matrix is None or matrix.dtype not in _FLOATS or add is None:
        return None
    bias = add.inputs[1] if add.inputs[0] is product.outputs[0] else add.inputs[0]
    if bias is None or not matrix.size or not _fits(scope.constant(bias), matrix):
        return None
    shape = scope.proven_shape(x)
    if shape is None:
        return Skip(f"the number of dimensions of {x.name} is not known")
    if len(shape) < 2:
        return None
    if not scope.constant(bias).numpy().any():  # type: ignore[union-attr]
        return _Unbiased(add, product.outputs[0])
    if len(shape) == 2:
        return _Linear(add, x, weight, bias, None, absorbed=(product,))
    last = sole_consumer(add.outputs[0], scope, "Reshape")
    if last is None:
        return Skip(f"{x.name} has {len(shape)} dimensions, and a Gemm takes and gives matrices")
    wanted = _shape(last, scope)
    if wanted is None:
        return Skip(f"the shape of {last.outputs[0].name} is not known")
    return _Linear(last, x, weight, bias, wanted, absorbed=(add, product))


def _fits(bias: ir.TensorProtocol | None, matrix: ir.TensorProtocol) -> bool:
    """Whether a Gemm with this matrix broadcasts a bias, to each row the same."""
    if bias is None or len(matrix.shape) != 2 or len(bias.shape) > 2:
        return False
    rows, columns = [1, 1, *bias.shape.numpy()][-2:]
    return rows == 1 and columns in (1, matrix.shape[1])


def _shape(reshape: ir.Node, scope: Scope) -> ir.Value | tuple[int, ...] | None:
    """The shape that a Reshape gives to elements of any shape; None if it is not known."""
    given = ints(scope.constant(reshape.inputs[1]))
    if given is not None and 0 not in given:
        return reshape.inputs[1]
    sizes = scope.proven_sizes(reshape.outputs[0])
    return sizes if sizes is not None and 0 not in sizes else None


def _only_linear(x: ir.Value, scope: Scope) -> bool:
    """Whether only products with a bias use a value."""
    if x.is_graph_output():
        return False
    nodes = [use.node for use in x.uses()]
    return all(
        is_op(node, "MatMul") and node.graph is x.graph and is_plain(node, scope) and node.inputs[0] is x
        for node in nodes
    ) and all(isinstance(_linear(node, scope), _Linear) for node in nodes)
