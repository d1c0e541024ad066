"""Unroll RNN, GRU and LSTM in forms that the runtime does not support.

    RNN     h' = f(x Wᵀ + h Rᵀ + b)
    GRU     z, r = f(…);  n = g(x Wᵀ + (r ⊙ h) Rᵀ + b), or with linear_before_reset g(x Wᵀ + bw + r ⊙ (h Rᵀ + br))
            h' = (1 − z) ⊙ n + z ⊙ h
    LSTM    i, f = f(… + p ⊙ c);  c' = f ⊙ c + i ⊙ g(…);  o = f(… + p ⊙ c');  h' = o ⊙ h(c')
            with input_forget  f = 1 − i

The products of inputs and weights are computed once for all steps; each step takes its slice. ``clip`` bounds the
inputs of the gates. After the end of a sequence in the batch its state is unchanged and its output is 0, so a backward
direction begins with the last element of each sequence; the final state of an empty sequence is 0.

Skips: dynamic shapes; too many steps; activations that ONNX does not define.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Self

import numpy as np
import onnx_ir as ir

from passes.builders.arithmetic import Arithmetic, wide
from passes.builders.operands import given, is_output_used
from passes.rewriting.base import Exactness, NotApplicable
from passes.rewriting.edit import Edit
from passes.rewriting.rewrite import Replacement, rewrite

MAX_STEPS = 256
"""The most steps over all directions; each becomes ten to thirty nodes."""
_GATES = {"RNN": 1, "GRU": 3, "LSTM": 4}
_DEFAULTS = {"RNN": ["Tanh"], "GRU": ["Sigmoid", "Tanh"], "LSTM": ["Sigmoid", "Tanh", "Tanh"]}
"""The default activations of a direction."""
_PARAMETERS: Mapping[str, Mapping[str, float]] = {
    **{name: {} for name in ("Relu", "Tanh", "Sigmoid", "Softsign", "Softplus")},
    "Affine": {"alpha": 0.0, "beta": 0.0},
    "LeakyRelu": {"alpha": 0.01},
    "ThresholdedRelu": {"alpha": 0.0},
    "ScaledTanh": {"alpha": 0.0, "beta": 0.0},
    "HardSigmoid": {"alpha": 0.2, "beta": 0.5},
    "Elu": {"alpha": 1.0},
}
"""The activations that ONNX defines, with the defaults of their parameters, or else those of ONNX Runtime."""
_BY_LOWER_CASE = {name.lower(): name for name in _PARAMETERS}

Activation = Callable[[ir.Value], ir.Value]
Weights = Callable[[int], ir.Value | None]
"""An input of the node, by its index: the slice of one direction."""


@dataclass(frozen=True)
class Recurrence:
    """The sizes of a node, the dtype, and the activations of all directions, each with its parameters."""

    node: ir.Node
    steps: int
    batch: int
    hidden: int
    directions: int
    dtype: ir.DataType
    activations: Sequence[tuple[str, Mapping[str, float]]]

    @classmethod
    def of(cls, node: ir.Node, steps: int, batch: int, hidden: int, directions: int, dtype: ir.DataType) -> Self:
        """Return the recurrence of a node with these sizes."""
        if steps * directions > MAX_STEPS:
            raise NotApplicable(f"there are {steps * directions} steps; the limit is {MAX_STEPS}")
        return cls(node, steps, batch, hidden, directions, dtype, _activations_of(node, directions))

    @property
    def kind(self) -> str:
        """RNN, GRU or LSTM."""
        return self.node.op_type.removeprefix("DynamicQuantize")


@rewrite(*_GATES, exactness=Exactness.ROUNDING, needs_shape=(0, 2), needs_dtype=(0,))
def unroll_recurrent(node: ir.Node, edit: Edit) -> Replacement:
    """Unroll RNN, GRU and LSTM."""
    shape, (directions, _, hidden) = edit.shape(node), edit.shape(node, 2)
    steps, batch = shape[1::-1] if node.attributes.get_int("layout", 0) else shape[:2]
    recurrence = Recurrence.of(node, steps, batch, hidden, directions, edit.dtype(node))
    return None if 0 in shape else unroll(recurrence, Layer, edit)


def unroll(recurrence: Recurrence, kind: type[Layer], edit: Edit) -> list[ir.Value | None]:
    """Unroll each direction as a layer of some kind, and return the concatenated outputs."""
    node, batch, size = recurrence.node, recurrence.batch, recurrence.hidden
    a = Arithmetic(edit, wide(recurrence.dtype))
    batch_first = bool(node.attributes.get_int("layout", 0))
    directions = [kind.of(recurrence, a, index).run() for index in range(recurrence.directions)]

    def finish(value: ir.Value, order: Sequence[int]) -> ir.Value:
        return a.cast(a("Transpose", value, perm=order) if batch_first else value, recurrence.dtype)

    outputs: list[ir.Value | None] = [None, None, None]
    if is_output_used(node, 0):
        ys = [a.concat([a.reshape(y, [1, 1, batch, size]) for y in steps], 0) for steps, _, _ in directions]
        outputs[0] = finish(a.concat(ys, 1), [2, 0, 1, 3])
    hidden_states, cells = [hidden for _, hidden, _ in directions], [cell for _, _, cell in directions]
    for index, states in enumerate((hidden_states, cells), start=1):
        if is_output_used(node, index):
            outputs[index] = finish(a.concat([a.reshape(state, [1, batch, size]) for state in states], 0), [1, 0, 2])
    return outputs


def _activations_of(node: ir.Node, directions: int) -> list[tuple[str, Mapping[str, float]]]:
    """Return the name and the parameters of each activation; parameter lists are consumed in order."""
    default = _DEFAULTS[node.op_type.removeprefix("DynamicQuantize")] * directions
    names = node.attributes.get_strings("activations", []) or default
    queues = {name: list(node.attributes.get_floats(f"activation_{name}", [])) for name in ("alpha", "beta")}
    activations: list[tuple[str, Mapping[str, float]]] = []
    for lower in map(str.lower, names):
        if lower not in _BY_LOWER_CASE:
            raise NotApplicable(f"the activation {lower} is not defined by ONNX")
        name = _BY_LOWER_CASE[lower]
        parameters = {key: (queues[key] or [least]).pop(0) for key, least in _PARAMETERS[name].items()}
        activations.append((name, parameters))
    return activations


def _activation(a: Arithmetic, name: str, parameters: Mapping[str, float]) -> Activation:
    """Return an activation as a function of values."""

    def apply(x: ir.Value) -> ir.Value:
        match name:
            case "Affine":
                return a("Add", a("Mul", x, parameters["alpha"]), parameters["beta"])
            case "ScaledTanh":
                return a("Mul", a("Tanh", a("Mul", x, parameters["beta"])), parameters["alpha"])
        return a(name, x, **parameters)

    return apply


@dataclass
class Layer:
    """One direction: weights as (inputs, gates · hidden), biases and peepholes as rows, and the states."""

    a: Arithmetic
    recurrence: Recurrence
    activations: Sequence[Activation]
    order: Sequence[int]
    inputs: ir.Value
    recurrent: ir.Value
    input_bias: ir.Value | None
    recurrent_bias: ir.Value | None
    lengths: ir.Value | None
    hidden: ir.Value
    cell: ir.Value
    peepholes: Sequence[ir.Value | None] = field(default=(None, None, None))

    @classmethod
    def of(cls, recurrence: Recurrence, a: Arithmetic, index: int) -> Self:
        """Return the layer of one direction of the node."""
        node, size, gates = recurrence.node, recurrence.hidden, _GATES[recurrence.kind]
        batch_first = bool(node.attributes.get_int("layout", 0))

        def own(position: int, *, state: bool = False) -> ir.Value | None:
            """Return the slice of an input for this direction."""
            value = given(node, position)
            if value is None:
                return None
            axis = 1 if state and batch_first else 0
            value = a.cast(value)
            part = a.slice(value, axis, index, index + 1) if recurrence.directions > 1 else value
            return a.squeeze(part, [axis])

        x = a.cast(a.edit.input(node))
        x = a("Transpose", x, perm=[1, 0, 2]) if batch_first else x
        bias, zero = own(3), a.value(np.zeros((recurrence.batch, size)))
        lstm = recurrence.kind == "LSTM"
        peepholes = own(7) if lstm else None
        backward = node.attributes.get_string("direction", "forward") == "reverse" or index == 1
        functions = [_activation(a, *activation) for activation in recurrence.activations]
        count = len(functions) // recurrence.directions
        hidden, cell = own(5, state=True), own(6, state=True) if lstm else None
        return cls(
            a,
            recurrence,
            functions[index * count : (index + 1) * count],
            list(range(recurrence.steps))[:: -1 if backward else 1],
            *cls.weigh(recurrence, a, x, own),
            None if bias is None else a.slice(bias, 0, 0, gates * size),
            None if bias is None else a.slice(bias, 0, gates * size, 2 * gates * size),
            given(node, 4),
            zero if hidden is None else hidden,
            zero if cell is None else cell,
            [None if peepholes is None else a.slice(peepholes, 0, k * size, (k + 1) * size) for k in range(3)],
        )

    @classmethod
    def weigh(cls, recurrence: Recurrence, a: Arithmetic, x: ir.Value, own: Weights) -> tuple[ir.Value, ir.Value]:
        """Return the products of inputs and weights, and the recurrent weights, as (hidden, gates · hidden)."""
        return a("MatMul", x, a("Transpose", own(1), perm=[1, 0])), a("Transpose", own(2), perm=[1, 0])

    def run(self) -> tuple[list[ir.Value], ir.Value, ir.Value]:
        """Return the outputs of all steps in temporal order, and the final states."""
        a, ys = self.a, dict[int, ir.Value]()
        joint = self.input_bias is not None and not self._resets_after_product
        if joint:
            assert self.input_bias is not None and self.recurrent_bias is not None
            self.inputs = a("Add", self.inputs, a("Add", self.input_bias, self.recurrent_bias))
        elif self.input_bias is not None:
            self.inputs = a("Add", self.inputs, self.input_bias)
        step = {"RNN": self._rnn, "GRU": self._gru, "LSTM": self._lstm}[self.recurrence.kind]
        for time in self.order:
            x = a.squeeze(a.slice(self.inputs, 0, time, time + 1), [0])
            hidden, cell = step(x)
            y = hidden
            if self.lengths is not None:
                active = a.unsqueeze(a("Greater", self.lengths, a.edit.constant(np.array(time, np.int32))), [1])
                y = a("Where", active, hidden, 0)
                hidden = a("Where", active, hidden, self.hidden)
                cell = a("Where", active, cell, self.cell) if cell is not self.cell else cell
            self.hidden, self.cell, ys[time] = hidden, cell, y
        if self.lengths is not None:
            exists = a.unsqueeze(a("Greater", self.lengths, a.edit.constant(np.array(0, np.int32))), [1])
            self.hidden, self.cell = (a("Where", exists, state, 0) for state in (self.hidden, self.cell))
        return [ys[time] for time in range(self.recurrence.steps)], self.hidden, self.cell

    @property
    def _resets_after_product(self) -> bool:
        return self.recurrence.kind == "GRU" and bool(self.recurrence.node.attributes.get_int("linear_before_reset", 0))

    def _gates(self, x: ir.Value) -> ir.Value:
        """Return the inputs of the gates of a step: ``x``, its slice of the products of inputs, plus the state's."""
        return self.a("Add", x, self.a("MatMul", self.hidden, self.recurrent))

    def _gate(self, x: ir.Value, index: int) -> ir.Value:
        """Return the columns of a gate."""
        size = self.recurrence.hidden
        return self.a.slice(x, -1, index * size, (index + 1) * size)

    def _clipped(self, x: ir.Value) -> ir.Value:
        clip = self.recurrence.node.attributes.get_float("clip", 0.0)
        return self.a("Min", self.a("Max", x, -clip), clip) if clip > 0 else x

    def _rnn(self, x: ir.Value) -> tuple[ir.Value, ir.Value]:
        (f,) = self.activations
        return f(self._clipped(self._gates(x))), self.cell

    def _gru(self, x: ir.Value) -> tuple[ir.Value, ir.Value]:
        a, (f, g), size, h = self.a, self.activations, self.recurrence.hidden, self.hidden
        if self._resets_after_product:
            product = a("MatMul", h, self.recurrent)
            if self.recurrent_bias is not None:
                product = a("Add", product, self.recurrent_bias)
        else:
            product = a("MatMul", h, a.slice(self.recurrent, 1, 0, 2 * size))
        update, reset = (f(self._clipped(a("Add", self._gate(x, k), self._gate(product, k)))) for k in (0, 1))
        if self._resets_after_product:
            inner = a("Mul", reset, self._gate(product, 2))
        else:
            inner = a("MatMul", a("Mul", reset, h), self._gate(self.recurrent, 2))
        new = g(self._clipped(a("Add", self._gate(x, 2), inner)))
        return a("Add", a("Mul", a("Sub", 1, update), new), a("Mul", update, h)), self.cell

    def _lstm(self, x: ir.Value) -> tuple[ir.Value, ir.Value]:
        a, (f, g, h) = self.a, self.activations
        gates = self._gates(x)

        def gate(index: int, peephole: int, cell: ir.Value) -> ir.Value:
            inner, weights = self._gate(gates, index), self.peepholes[peephole]
            return f(self._clipped(inner if weights is None else a("Add", inner, a("Mul", weights, cell))))

        entry = gate(0, 0, self.cell)
        coupled = self.recurrence.node.attributes.get_int("input_forget", 0)
        forget = a("Sub", 1, entry) if coupled else gate(2, 2, self.cell)
        new = g(self._clipped(self._gate(gates, 3)))
        cell = a("Add", a("Mul", forget, self.cell), a("Mul", entry, new))
        return a("Mul", gate(1, 1, cell), h(cell)), cell
