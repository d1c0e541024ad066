"""Unroll com.microsoft's DynamicQuantizeLSTM, an LSTM whose products are of 8-bit integers.

    x Wᵀ  →  (q(x) (W − z_w)) · s · s_w        s = (max − min) / 255 of x and 0;  q(x) = round(x / s), saturated
    h Rᵀ  →  likewise in each step

Everything else is as in `passes.legalize.nn.recurrent`. q(x) are integers in float32, whose sums are exact up to 258
terms. Like ONNX Runtime, x has one scale over the batch and all steps up to the longest sequence; h has one over the
batch, or one a row if the batch is computed in parallel: more than four rows, or more than one with at most 256
hidden units. (With fewer threads than rows, ONNX Runtime has one for all rows of a thread.)

Skips: as unroll-recurrent; a batch of sequences of different lengths, in reverse or with one scale.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from passes.builders.arithmetic import Arithmetic
from passes.builders.operands import given
from passes.graphs.tensors import ints
from passes.legalize.nn.recurrent import Layer, Recurrence, Weights, unroll
from passes.rewriting.base import Exactness, Skip
from passes.rewriting.edit import Edit
from passes.rewriting.rewrite import Replacement, rewrite

_LEVELS = 255


@rewrite(
    "com.microsoft.DynamicQuantizeLSTM", exactness=Exactness.QUANTIZATION_STEP, needs_shape=(0, 1), needs_dtype=(0,)
)
def unroll_dynamic_quantize_lstm(node: ir.Node, edit: Edit) -> Replacement:
    """Unroll DynamicQuantizeLSTM."""
    shape, (directions, _, gates), lengths = edit.shape(node), edit.shape(node, 1), given(node, 4)
    steps, batch, _ = shape
    recurrence = Recurrence.of(node, steps, batch, gates // 4, directions, edit.dtype(node))
    differ = lengths is not None and set(ints(edit.scope.constant(lengths)) or [0]) != {steps}
    is_forward = node.attributes.get_string("direction", "forward") == "forward"
    if differ and batch > 1 and not (is_forward and _each_row_alone(batch, gates // 4)):
        return Skip("the lengths of the sequences are not the same constant, and the states have one scale")
    return None if 0 in shape else unroll(recurrence, _QuantizedLayer, edit)


@dataclass
class _QuantizedLayer(Layer):
    """One direction; the recurrent weights are integers.

    Attributes:
        scale: the scale of the recurrent weights: a single one, or one per column.
        started: whether there is a state: the product of the initial 0 is 0.
    """

    scale: ir.Value | None = None
    started: bool = False

    @classmethod
    def weigh(cls, recurrence: Recurrence, a: Arithmetic, x: ir.Value, own: Weights) -> tuple[ir.Value, ir.Value]:
        """Return the products of inputs and weights, and the recurrent weights, as (hidden, 4 · hidden)."""
        if (lengths := given(recurrence.node, 4)) is not None:  # 0 changes no scale
            longest = a.cast(a.reduce("Max", lengths, [0]), ir.DataType.FLOAT)
            x = a("Where", a("Less", a.value(np.arange(recurrence.steps).reshape(-1, 1, 1)), longest), x, 0)
        return _product(a, x, _centered(a, own(1), own(9)), own(8), [0, 1, 2]), _centered(a, own(2), own(11))

    @classmethod
    def of(cls, recurrence: Recurrence, a: Arithmetic, index: int) -> _QuantizedLayer:
        layer = super().of(recurrence, a, index)
        scale = a.edit.input(recurrence.node, 10)
        part = a.slice(scale, 0, index, index + 1) if recurrence.directions > 1 else scale
        layer.scale, layer.started = a.squeeze(part, [0]), given(recurrence.node, 5) is not None
        return layer

    def _gates(self, x: ir.Value) -> ir.Value:
        """Return the inputs of the gates of a step."""
        before, self.started = self.started, True
        if not before:
            return x
        axes = [1] if _each_row_alone(self.recurrence.batch, self.recurrence.hidden) else [0, 1]
        return self.a("Add", x, _product(self.a, self.hidden, self.recurrent, self.scale, axes))


def _each_row_alone(batch: int, hidden: int) -> bool:
    """Return whether ONNX Runtime computes the rows of a batch in parallel."""
    return batch > 4 or (batch > 1 and hidden <= 256)


def _centered(a: Arithmetic, weights: ir.Value | None, zero: ir.Value | None) -> ir.Value:
    """Return 8-bit weights minus their zero point, as floats; ONNX Runtime has one for all columns."""
    assert weights is not None and zero is not None
    return a("Sub", a.cast(weights), a.cast(zero))


def _product(a: Arithmetic, x: ir.Value, weights: ir.Value, scale: ir.Value | None, axes: Sequence[int]) -> ir.Value:
    """Return the product of ``x``, rounded to 256 steps of a range along its ``axes``, and integers with a scale."""
    assert scale is not None
    low, high = a("Min", a.reduce("Min", x, axes), 0), a("Max", a.reduce("Max", x, axes), 0)
    step = a("Div", a("Sub", high, low), _LEVELS)
    step = a("Where", a("Greater", step, 0), step, 1)
    zero = a("Round", a("Div", a("Neg", low), step))
    q = a("Max", a("Min", a("Round", a("Div", x, step)), a("Sub", _LEVELS, zero)), a("Neg", zero))
    return a("Mul", a("MatMul", q, weights), a("Mul", step, scale))
