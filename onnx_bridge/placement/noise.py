"""The noise at a model's outputs that fewer bits in each node cause by themselves.

    float model:      x ─────────────► product ─► y ─► … ─► output
    beside it:        x ─► Q ─► DQ ──► product ─► y′ ─► … ─► output′      noise = Σ (output′ − output)² / Σ output²
                      w in 8 bits ─► DQ ──┘
    in 16 bits:       x ─► Cast ─► Cast ─► node ─► Cast ─► Cast ─► y′

Many nodes share a run: each has a twin with its rounded operands behind the float model's activations, and copies of
all that follows in float. The sums are computed in the graph, so that only some numbers leave it. Noise at the node
itself would not tell: what few channels lose may be what the next product needs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial

import numpy as np
import onnx_ir as ir

from onnx_bridge.core.values import Value, flat
from onnx_bridge.reference.reference import Reference
from passes.graphs.int8_kernels import PRODUCTS
from passes.graphs.traversal import subgraphs
from passes.operators import is_dequantize, is_quantize, operators

_MOST_COPIES = 4000
"""The most nodes that are copied into the model for one run."""
_MOST_RUNS = 100
"""The most runs for a model, since its nodes have copies of half of the model on average."""


def noise_of_products(
    original: ir.Model, quantized: ir.Model, samples: Sequence[Mapping[str, Value]]
) -> dict[str, float]:
    """Return the noise that each product of a quantized model causes, by the name of its result.

    Args:
        original: the float model, which is not changed.
        quantized: a model with the same names of nodes and values, which is not changed.
        samples: the inputs of both.
    """
    twins: dict[str, ir.Node] = {}
    results = {name: node.outputs[0] for node in original.graph if node.op_type in PRODUCTS for name in _names(node)}
    for node in quantized.graph:
        result = next((results[name] for name in _names(node) if name in results), None)
        if result is not None and node.op_type in (*PRODUCTS, "MatMulNBits"):
            twins[str(result.name)] = node

    def twin(run: _Run, name: str) -> Mapping[ir.Value, ir.Value]:
        return {run.values[name]: run.copied(twins[name], {}).outputs[0]}

    upgraded = original.clone()
    for domain, version in quantized.opset_imports.items():
        upgraded.opset_imports[domain] = max(version, upgraded.opset_imports.get(domain, 0))
    upgraded.ir_version = max(upgraded.ir_version, quantized.ir_version)
    return _noise(upgraded, list(twins), twin, samples)


def noise_of_rounding(
    model: ir.Model, names: Sequence[str], dtype: ir.DataType, samples: Sequence[Mapping[str, Value]]
) -> dict[str, float]:
    """Return the noise that each of some nodes causes whose operands and results are rounded to a float format.

    In a model of many hundred nodes every second one is measured, or every third, and the next ones are taken to be
    like it.

    Args:
        model: the float model, which is not changed.
        names: the nodes.
        dtype: the format.
        samples: the inputs.
    """

    def twin(run: _Run, name: str) -> Mapping[ir.Value, ir.Value]:
        node = run.nodes[name]
        copy = run.added(node, [run.rounded(value, dtype, value) for value in node.inputs])
        pairs = zip(copy.outputs, node.outputs, strict=True)
        return {value: run.rounded(result, dtype, value) or value for result, value in pairs}

    stride = math.ceil(len(names) * len(model.graph) / 2 / (_MOST_COPIES * _MOST_RUNS)) or 1
    measured = _noise(model, names[::stride], twin, samples)
    likely = {name: measured[names[index - index % stride]] for index, name in enumerate(names)}
    return {name: noise for name, noise in likely.items() if name in measured or math.isfinite(noise)}


def _noise(
    model: ir.Model,
    names: Sequence[str],
    twin: Callable[[_Run, str], Mapping[ir.Value, ir.Value]],
    samples: Sequence[Mapping[str, Value]],
) -> dict[str, float]:
    """Return the noise that the twin of each name causes; ``twin`` adds it to a run, and returns it by value."""
    noise: dict[str, float] = {}
    while left := [name for name in names if name not in noise]:
        run = _Run(model.clone())
        noise |= run.noise({name: partial(twin, run, name) for name in left}, samples)
    return noise


class _Run:
    """A run of the float model with the twins of some products."""

    def __init__(self, model: ir.Model) -> None:
        self._model, self._graph = model, model.graph
        self.nodes = {str(node.name): node for node in model.graph}
        self._order = list(model.graph)
        self._outputs = set(model.graph.outputs)
        self.values = {str(value.name): value for node in model.graph for value in node.outputs}
        self.values |= {str(value.name): value for value in (*self._graph.inputs, *self._graph.initializers.values())}
        self._sums: dict[str, list[tuple[ir.Value, ir.Value]]] = {}
        self._count = 0

    def noise(
        self, twins: Mapping[str, Callable[[], Mapping[ir.Value, ir.Value]]], samples: Sequence[Mapping[str, Value]]
    ) -> dict[str, float]:
        """Return the noise of the first twins, as many as fit into a run."""
        for name, twin in twins.items():
            if not self._sums or self._count < _MOST_COPIES:
                self._sums[name] = self._follow(dict(twin()))
        self._graph.outputs[:] = [value for pairs in self._sums.values() for pair in pairs for value in pair]
        reference = Reference(self._model)
        totals: dict[str, float] = {}
        for sample in samples:
            for name, array in flat(reference.run(dict(sample))).items():
                totals[name] = totals.get(name, 0.0) + float(np.asarray(array, np.float64))
        noise = {}
        for name, pairs in self._sums.items():
            ratios = [totals[str(noisy.name)] / (totals[str(signal.name)] or 1.0) for noisy, signal in pairs]
            noise[name] = max((ratio if math.isfinite(ratio) else math.inf for ratio in ratios), default=0.0)
        return noise

    def rounded(self, value: ir.Value | None, dtype: ir.DataType, like: ir.Value | None) -> ir.Value | None:
        """Round a value to a format and back, if the one that it is like is in float32."""
        if value is None or like is None or like.dtype != ir.DataType.FLOAT:
            return value
        return self._op("Cast", [self._op("Cast", [value], to=int(dtype))], to=int(ir.DataType.FLOAT))

    def _follow(self, twins: dict[ir.Value, ir.Value]) -> list[tuple[ir.Value, ir.Value]]:
        """Copy all that follows some values behind their twins; return the sums of noise and signal at the ends."""
        ends = twins.keys() & self._outputs
        for node in self._order:
            touched = [given for given in node.inputs if given in twins]
            if not touched:
                continue
            if any(subgraphs(node)) or node.op_type in operators("by data"):  # whose shapes may differ
                ends |= {given for given in touched if given is not None}
                continue
            inputs = [twins.get(given, given) if given is not None else None for given in node.inputs]
            copy = self.added(node, inputs)
            twins |= dict(zip(node.outputs, copy.outputs, strict=True))
            ends |= set(node.outputs) & self._outputs
        pairs = []
        for end in ends:
            noise = self._op("Sub", [self._op("Cast", [each], to=1) for each in (twins[end], end)])
            signal = self._op("Cast", [end], to=1)
            pairs.append((self._sum(noise), self._sum(signal)))
        return pairs

    def copied(self, node: ir.Node, copies: dict[ir.Value, ir.Value]) -> ir.Node:
        """Copy a node of the quantized model, and all that computes its inputs from values of the float model."""
        for value in node.inputs:
            producer = value.producer() if value is not None else None
            if value is None or value in copies:
                continue
            quantizes = is_dequantize(producer) or is_quantize(producer)
            if producer is not None and (quantizes or value.name not in self.values):
                copies |= dict(zip(producer.outputs, self.copied(producer, copies).outputs, strict=True))
            elif producer is None and value.const_value is not None:
                copies[value] = self._constant(value)
            else:
                copies[value] = self.values[str(value.name)]
        return self.added(node, [None if value is None else copies[value] for value in node.inputs])

    def _constant(self, value: ir.Value) -> ir.Value:
        self._count += 1
        copy = ir.Value(name=f"{value.name}/twin {self._count}", const_value=value.const_value)
        copy.type, copy.shape = value.type, value.shape
        self._graph.register_initializer(copy)
        return copy

    def _sum(self, value: ir.Value) -> ir.Value:
        total = self._op("ReduceSumSquare", [value], keepdims=0)
        total.type, total.shape = ir.TensorType(ir.DataType.FLOAT), ir.Shape([])
        return total

    def _op(self, operator: str, inputs: Sequence[ir.Value], **attributes: int) -> ir.Value:
        given = [ir.AttrInt64(name, value) for name, value in attributes.items()]
        return self.added(ir.Node("", operator, (), given), inputs).outputs[0]

    def added(self, node: ir.Node, inputs: Sequence[ir.Value | None]) -> ir.Node:
        """Add a copy of a node with other inputs to the graph."""
        self._count += 1
        attributes, outputs = node.attributes.values(), len(node.outputs)
        copy = ir.Node(node.domain, node.op_type, inputs, attributes, overload=node.overload, num_outputs=outputs)
        copy.name = f"{node.name}/twin {self._count}"
        for index, value in enumerate(copy.outputs):
            value.name = f"{copy.name}/{index}"
        self._graph.append(copy)
        return copy


def _names(node: ir.Node) -> tuple[str, str]:
    """Return the names by which a product is known in both models: quantizers change one of them."""
    return str(node.name), str(node.outputs[0].name)
