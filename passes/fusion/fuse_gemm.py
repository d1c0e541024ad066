"""Fuse a matrix product and its bias into a Gemm, if that leaves fewer nodes.

    MatMul(x, w) + b                          →  Gemm(x, w, b)                                    x a matrix
    Reshape(MatMul(Reshape(x, r), w) + b, s)  →  Reshape(Gemm(Reshape(x, [−1, k]), w, b), s)      x of any shape
    MatMul(x, w) + 0                          →  MatMul(x, w)                                     x of any shape

w is a constant matrix of floats with k rows, b a constant with a number for each column or one for all. Several
products may use the first Reshape, as the projections of an attention over windows do; each gets a new one, of which
eliminate-common-subexpressions, which comes later, leaves one.

Skips: an x of an unknown number of dimensions; of more than two, without a Reshape on both sides. A new one
would take the place of the addition, and MIGraphX, which otherwise multiplies by the weights of all projections of one
input together, would add their biases one by one (the gpu target's passes leave 475 instructions instead of 427 of a
BERT of four layers); with a Reshape there already, nothing changes for it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from passes.graphs.matching import is_op, is_plain, sole_consumer
from passes.graphs.scopes import Scope
from passes.graphs.tensors import ints
from passes.rewriting.base import Exactness, NotApplicable, Skip
from passes.rewriting.edit import Edit
from passes.rewriting.rewrite import Replacement, rewrite

_FLOATS = (ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.DOUBLE)


@dataclass(frozen=True)
class _Linear:
    """A matrix product and its bias.

    Attributes:
        last: the addition; of an x of more than two dimensions, the Reshape after it.
        x: the first factor.
        weight: the second factor.
        bias: the other operand of the addition; None if it is 0.
        shape: the second input of ``last`` if that is a Reshape, or the elements of a new one; None for a matrix x.
        between: the nodes from the product to the one before ``last``.
    """

    last: ir.Node
    x: ir.Value
    weight: ir.Value
    bias: ir.Value | None
    shape: ir.Value | tuple[int, ...] | None = None
    between: tuple[ir.Node, ...] = ()


@rewrite("MatMul", exactness=Exactness.ROUNDING, absorbs=("Add", "MatMul", "Reshape"))
def fuse_gemm(node: ir.Node, edit: Edit) -> Replacement:
    """Fuse a matrix product and its bias into a Gemm, if that leaves fewer nodes."""
    linear = _linear(node, edit.scope)
    if linear is None:
        return None
    edit.root = linear.last
    if linear.bias is None:
        return node.outputs[0]
    edit.absorb(*linear.between)
    if linear.shape is None:
        return edit.op("Gemm", [linear.x, linear.weight, linear.bias])
    before = edit.producer(node, 0, "Reshape")
    if before is None or before.inputs[0] is None or not _only_linear(before.outputs[0], edit.scope):
        return Skip(f"a Reshape of {linear.x.name} would take the place of an Add")
    edit.absorb(before)
    rows = edit.scope.constant(linear.weight).shape[0]  # type: ignore[union-attr]
    new_shape = edit.constant(np.array([-1, rows], np.int64), f"{linear.last.name}/matrix")
    matrix = edit.op("Reshape", [before.inputs[0], new_shape])
    product = edit.op("Gemm", [matrix, linear.weight, linear.bias])
    shape = linear.shape
    if isinstance(shape, tuple):
        shape = edit.constant(np.array(shape, np.int64), f"{linear.last.name}/shape")
    return edit.op("Reshape", [product, shape])


def _linear(product: ir.Node, scope: Scope) -> _Linear | None:
    """Return a product that is a Gemm, between two Reshapes if x is no matrix; None if it has no fitting bias."""
    x, weight = product.inputs
    matrix = scope.constant(weight)
    add = sole_consumer(product.outputs[0], scope, "Add")
    if x is None or weight is None or matrix is None or matrix.dtype not in _FLOATS or add is None:
        return None
    bias = add.inputs[1] if add.inputs[0] is product.outputs[0] else add.inputs[0]
    addend = scope.constant(bias)
    if addend is None or not matrix.size or not _fits(addend, matrix):
        return None
    shape = scope.proven_shape(x)
    if shape is None:
        raise NotApplicable(f"the number of dimensions of {x.name} is not known")
    if len(shape) < 2:
        return None
    if not addend.numpy().any():
        return _Linear(add, x, weight, None)
    if len(shape) == 2:
        return _Linear(add, x, weight, bias, None, (product,))
    last = sole_consumer(add.outputs[0], scope, "Reshape")
    if last is None:
        raise NotApplicable(f"{x.name} has {len(shape)} dimensions, and a Gemm takes and gives matrices")
    new_shape = _shape(last, scope)
    if new_shape is None:
        raise NotApplicable(f"the shape of {last.outputs[0].name} is not known")
    return _Linear(last, x, weight, bias, new_shape, (add, product))


def _fits(bias: ir.TensorProtocol, matrix: ir.TensorProtocol) -> bool:
    """Return whether a Gemm with this matrix adds a bias to each row."""
    if len(matrix.shape) != 2 or len(bias.shape) > 2:
        return False
    rows, columns = [1, 1, *bias.shape.numpy()][-2:]
    return rows == 1 and columns in (1, matrix.shape[1])


def _shape(reshape: ir.Node, scope: Scope) -> ir.Value | tuple[int, ...] | None:
    """Return the shape that a Reshape gives to elements of any shape; None if it is not known."""
    given = ints(scope.constant(reshape.inputs[1]))
    if given is not None and 0 not in given:
        return reshape.inputs[1]
    sizes = scope.proven_sizes(reshape.outputs[0])
    return sizes if sizes is not None and 0 not in sizes else None


def _only_linear(x: ir.Value, scope: Scope) -> bool:
    """Return whether only products with a bias use a value."""
    return not x.is_graph_output() and all(_has_bias(use.node, x, scope) for use in x.uses())


def _has_bias(node: ir.Node, x: ir.Value, scope: Scope) -> bool:
    if not is_op(node, "MatMul") or node.graph is not x.graph or not is_plain(node, scope) or node.inputs[0] is not x:
        return False
    try:
        linear = _linear(node, scope)
    except NotApplicable:
        return False
    return linear is not None and linear.bias is not None
