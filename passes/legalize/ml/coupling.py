"""Probabilities of classes from those of their pairs, in as many steps as ONNX Runtime takes."""

from __future__ import annotations

import itertools

import numpy as np
import onnx_ir as ir

from passes.builders.arithmetic import Arithmetic
from passes.core.edit import Edit
from passes.legalize.ml.common import FLOAT

_STEPS = 100
_LEAST = 1e-7
"""The least probability of a pair."""


def coupled(pairs: ir.Value, rows: int, classes: int, edit: Edit) -> ir.Value:
    """The probabilities of the classes, [rows, classes].

    With r the probabilities of pairs, Qᵢᵢ = Σ rⱼᵢ² and Qᵢⱼ = −rⱼᵢ rᵢⱼ, p minimizes pᵀQp where Σ p = 1.

    Args:
        pairs: the probability of the first class of each pair, [rows, pairs]; (0, 1), (0, 2), …, (1, 2), ….
        rows: their number.
        classes: their number.
        edit: receives the new nodes.
    """
    a = Arithmetic(edit, FLOAT)
    places, rest = np.zeros((classes * (classes - 1) // 2, classes, classes)), np.zeros((classes, classes))
    for index, (i, j) in enumerate(itertools.combinations(range(classes), 2)):
        places[index, i, j], places[index, j, i], rest[j, i] = 1, -1, 1
    within = a("Min", a("Max", pairs, _LEAST), 1 - _LEAST)
    flat = a("Add", a("MatMul", within, places.reshape(len(places), -1)), rest.ravel())
    r = a.reshape(flat, [rows, classes, classes])
    across = a("Transpose", r, perm=[0, 2, 1])
    diagonal = a("Mul", a("MatMul", a("Mul", across, across), np.ones((classes, 1))), np.eye(classes))
    q = a("Sub", diagonal, a("Mul", across, r))
    begin = edit.constant(np.full((rows, classes, 1), 1 / classes, np.float32))
    steps, go_on = edit.constant(np.array(_STEPS, np.int64)), edit.constant(np.array(True))
    body = ir.AttrGraph("body", _Body(q, rows, classes).graph(edit))
    p = edit.op("Loop", [steps, go_on, begin], {"body": body})
    return a.reshape(p, [rows, classes])


class _Body:
    """The body of the Loop: a step for all rows, of which those that are good enough stay as they are."""

    def __init__(self, q: ir.Value, rows: int, classes: int) -> None:
        self._q, self._rows, self._classes = q, rows, classes
        self._nodes: list[ir.Node] = []

    def graph(self, edit: Edit) -> ir.Graph:
        """The body; its inputs are the step, the condition and p, [rows, classes, 1]."""
        names = edit.scope.names
        step, going = (_scalar(names.value(name), kind) for name, kind in (("step", "INT64"), ("going", "BOOL")))
        p = ir.Value(name=names.value("p"), type=ir.TensorType(FLOAT), shape=ir.Shape(self._shape))
        after, active = self._advanced(p)
        any_active = self("ReduceMax", self("Cast", active, to=FLOAT.value), keepdims=0)
        more = self("Cast", any_active, to=ir.DataType.BOOL.value)
        chosen = self("Where", active, after, p)
        for node in self._nodes:
            node.name = names.node(f"{edit.at.name}/{node.op_type}")
            node.outputs[0].name = names.value(f"{node.name}_output_0")
        more.type, more.shape = ir.TensorType(ir.DataType.BOOL), ir.Shape(())
        chosen.type, chosen.shape = p.type, p.shape
        return ir.Graph([step, going, p], [more, chosen], nodes=self._nodes, name="step")

    @property
    def _shape(self) -> tuple[int, int, int]:
        return self._rows, self._classes, 1

    def _advanced(self, p: ir.Value) -> tuple[ir.Value, ir.Value]:
        """p after a step, and whether a row needs it, [rows, 1, 1]."""
        count = self._classes
        ones = np.ones((1, count))
        qp = self("MatMul", self._q, p)
        pqp = self("MatMul", ones, self("Mul", p, qp))
        error = self("Abs", self("Sub", qp, pqp))
        small = self("Cast", self("Less", error, float(np.float32(0.005) / np.float32(count))), to=FLOAT.value)
        active = self("Less", self("MatMul", ones, small), count - 0.5)
        for i in range(count):
            place = np.eye(count)[:, i : i + 1]
            column = self("MatMul", self._q, place)
            own, qi = self("MatMul", place.T, column), self("MatMul", place.T, qp)
            change = self("Div", self("Sub", pqp, qi), own)
            scale = self("Add", change, 1.0)
            grown = self("Mul", change, self("Add", self("Mul", change, own), self("Mul", qi, 2.0)))
            pqp = self("Div", self("Div", self("Add", pqp, grown), scale), scale)
            qp = self("Div", self("Add", qp, self("Mul", column, change)), scale)
            p = self("Div", self("Add", p, self("Mul", change, place)), scale)
        return p, active

    def __call__(self, op_type: str, *operands: ir.Value | np.ndarray | float, **attributes: int) -> ir.Value:
        inputs = [each if isinstance(each, ir.Value) else self._constant(each) for each in operands]
        return self._node(ir.Node("", op_type, inputs, ir.convenience.convert_attributes(attributes)))

    def _constant(self, array: np.ndarray | float) -> ir.Value:
        tensor = ir.Tensor(np.asarray(array, np.float32))
        return self._node(ir.Node("", "Constant", [], [ir.AttrTensor("value", tensor)]))

    def _node(self, node: ir.Node) -> ir.Value:
        self._nodes.append(node)
        return node.outputs[0]


def _scalar(name: str, kind: str) -> ir.Value:
    return ir.Value(name=name, type=ir.TensorType(ir.DataType[kind]), shape=ir.Shape(()))
