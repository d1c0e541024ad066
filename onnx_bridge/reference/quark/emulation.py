"""Models with AMD Quark's custom operators, run without Quark's library.

A model is cut at these operators, and its parts are run in order: numpy computes the operators
(`onnx_bridge.reference.quark.operators`), ONNX Runtime everything else.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np
import onnx_ir as ir

from onnx_bridge.core.errors import InputError
from onnx_bridge.core.values import Array, Value
from onnx_bridge.reference.quark.operators import compute
from passes.graphs.scopes import Scope
from passes.graphs.traversal import operands_of
from passes.operators import QUARK_DOMAINS
from passes.probing.partition import boundary, extract, is_constant

Session = Callable[[Mapping[str, Value]], Mapping[str, Value]]
"""Computes outputs from inputs, by name."""


@dataclass
class Emulation:
    """A model in parts: Quark's operators are searched for in its main graph; ``session`` creates that of a part."""

    model: ir.Model
    session: Callable[[ir.Model], Session]
    _sessions: dict[int, Session] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        self.model = self.model.clone()
        self.model.graph.sort()
        self._scope = Scope(self.model, self.model.graph)
        levels: dict[ir.Node, int] = {}
        self._parts: dict[int, list[ir.Node]] = defaultdict(list)
        for node in self.model.graph:
            if is_constant(node):
                continue
            own = node.domain in QUARK_DOMAINS
            makers = [value.producer() for value in operands_of(node)]
            before = [levels[maker] for maker in makers if maker is not None and maker in levels]
            # parts of numpy have odd numbers, parts of ONNX Runtime even ones
            levels[node] = max((level + (level % 2 != own) for level in before), default=int(own))
            self._parts[levels[node]].append(node)

    @property
    def input_names(self) -> tuple[str, ...]:
        graph = self.model.graph
        return tuple(str(value.name) for value in graph.inputs if value.name not in graph.initializers)

    @property
    def output_names(self) -> tuple[str, ...]:
        return tuple(str(value.name) for value in self.model.graph.outputs)

    def run(self, sample: Mapping[str, Value]) -> dict[str, Value]:
        values = dict(sample)
        for number, nodes in sorted(self._parts.items()):
            if number % 2:
                for node in nodes:
                    operands = [self._array(operand, values) for operand in node.inputs]
                    values[str(node.outputs[0].name)] = np.asarray(compute(node, operands))
            else:
                inputs, outputs = boundary(self.model.graph, nodes)
                given = {str(value.name): values[str(value.name)] for value in inputs}
                if number not in self._sessions:
                    self._sessions[number] = self.session(self._part(given, [str(value.name) for value in outputs]))
                values |= self._sessions[number](given)
        return {str(value.name): self._result(value, values) for value in self.model.graph.outputs}

    def _part(self, given: Mapping[str, Value], outputs: list[str]) -> ir.Model:
        """Return the model of a part; the dtypes of Quark's outputs are known only from their values."""
        part = extract(self.model, given, outputs)
        for value in part.graph.inputs:
            array = given[str(value.name)]
            if value.type is None and isinstance(array, np.ndarray):
                value.type = ir.TensorType(ir.DataType.from_numpy(array.dtype))
        for value in part.graph.outputs:
            value.shape = None
        return part

    def _array(self, value: ir.Value | None, values: Mapping[str, Value]) -> Array:
        array = self._result(value, values) if value is not None else None
        if array is None or isinstance(array, list):
            raise InputError(f"the value {value.name if value is not None else ''} is not a tensor")
        return array

    def _result(self, value: ir.Value, values: Mapping[str, Value]) -> Value:
        tensor = self._scope.constant(value)
        return values[str(value.name)] if tensor is None else tensor.numpy()
