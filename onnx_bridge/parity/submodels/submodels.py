"""Submodels of a model, each a model of its own that is fed with the reference's values.

So the error of a submodel is its local error: the nodes before it have no part in it.

Where a value is cut through, it becomes an input of the submodel, unless it is to stay a constant
(`onnx_bridge.parity.submodels.cuts`). Sequences, strings and optionals cannot be given to MIGraphX, so nothing is cut
there.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import onnx_ir as ir

from onnx_bridge.bundle.device import can_feed_array
from onnx_bridge.core.errors import InputError
from onnx_bridge.core.values import as_array
from onnx_bridge.parity.submodels.cuts import dependents, estimated_bytes, submodel
from onnx_bridge.reference.reference import Reference
from onnx_bridge.samples.inputs import Sample
from passes.graphs.dependencies import fixed_values
from passes.graphs.scopes import required_names
from passes.graphs.traversal import operands_of
from passes.operators import is_quantizer
from passes.probing.partition import boundary, extract, is_constant, needed

_CACHE_BYTES = 1 << 30
"""All values are cached if they are estimated to take no more; else they are computed again for each submodel."""


@dataclass
class RunCounts:
    """The numbers of runs of a model or submodel, whatever the number of samples."""

    reference: int = 0
    migraphx: int = 0


@dataclass(frozen=True)
class Submodel:
    """A model, its inputs and its expected outputs; the shapes of its inputs are fixed.

    Attributes:
        inputs: one sample or more.
        numbers: the numbers of these samples among those of the whole model.
        quantized: the outputs that depend on a quantizer in it: rounding may move them by a step.
    """

    model: ir.Model
    inputs: list[Sample]
    expected: list[Sample]
    numbers: list[int]
    quantized: frozenset[str] = frozenset()


@dataclass
class SubmodelExtractor:
    """Cuts submodels out of a model, which is not changed; the names of its nodes and values are unique.

    Args:
        runs: counts the runs of the reference.
        nodes: the nodes of its main graph that submodels are made of; default: all that its outputs depend on.
    """

    model: ir.Model
    samples: Sequence[Sample]
    runs: RunCounts
    nodes: Iterable[ir.Node] | None = None
    _cache: list[Sample] | None = field(default=None, init=False)

    @cached_property
    def order(self) -> list[ir.Node]:
        """The nodes in depth-first order, which keeps each close to its operands: few values are cut through."""
        chosen = needed(self.model.graph) if self.nodes is None else set(self.nodes)
        return [node for node in _depth_first(self.model.graph) if node in chosen and not is_constant(node)]

    @cached_property
    def groups(self) -> list[tuple[ir.Node, ...]]:
        """The nodes in order; nodes with a value between them that cannot be cut are in one group."""
        place = {node: index for index, node in enumerate(self.order)}
        joined_until = 0
        groups: list[list[ir.Node]] = []
        for index, node in enumerate(self.order):
            if index >= joined_until or not groups:
                groups.append([])
            groups[-1].append(node)
            for value in node.outputs:
                if not _can_cut(value):
                    users = [place[use.node] for use in value.uses() if use.node in place]
                    joined_until = max([joined_until, *(user + 1 for user in users)])
        return [tuple(group) for group in groups]

    def extract(self, nodes: Sequence[ir.Node]) -> list[Submodel]:
        """Return the submodels of some nodes, one for each set of input shapes; no submodel if it cannot be cut."""
        inputs, outputs = boundary(self.model.graph, nodes)
        if not outputs:
            return []
        constant = [str(value.name) for value in inputs if value in self._constant]
        fed = [str(value.name) for value in inputs if value not in self._constant]
        wanted = [str(value.name) for value in outputs]
        values = self.values([*fed, *wanted, *constant])
        if not all(can_feed_array(sample[name]) for sample in values for name in (*fed, *wanted)):
            return []
        alike: dict[object, list[int]] = {}
        for number, sample in enumerate(values):
            elements = [np.asarray(sample[name]).tobytes() for name in constant]
            alike.setdefault((*(np.shape(as_array(sample[name])) for name in fed), *elements), []).append(number)
        quantized = frozenset(dependents(nodes, {node for node in nodes if is_quantizer(node)}))
        submodels = []
        for numbers in alike.values():
            model = submodel(self.model, [*fed, *constant], wanted, values[numbers[0]], constant)
            given = [{name: values[number][name] for name in fed} for number in numbers]
            expected = [{name: values[number][name] for name in wanted} for number in numbers]
            submodels.append(Submodel(model, given, expected, numbers, quantized))
        return submodels

    def outputs_with(self, values: Sample, number: int) -> Sample | None:
        """Return the reference's outputs for a sample if some values are replaced; None if it cannot run the rest."""
        inputs = required_names(self.model)
        outputs = [str(value.name) for value in self.model.graph.outputs]
        self.runs.reference += 1
        try:
            session = Reference(extract(self.model, [*inputs, *values], outputs))
            return session.run({**{name: self.samples[number][name] for name in inputs}, **values})
        except InputError:
            return None

    def values(self, names: Iterable[str]) -> list[Sample]:
        """Return the reference's values by name, one mapping a sample; None for those that it cannot give."""
        wanted = dict.fromkeys(names)
        inputs = {str(value.name): value for value in self.model.graph.inputs}
        constants = self.model.graph.initializers
        computable = [name for name in wanted if name not in inputs and name not in constants]
        if self._cache is None and self._bytes <= _CACHE_BYTES:
            self._cache = self._compute(self._all)
        computed = self._compute(computable) if self._cache is None else self._cache
        values = []
        for sample, results in zip(self.samples, computed, strict=True):
            known: Sample = {}
            for name in wanted:
                if name in results:
                    known[name] = results[name]
                elif name in inputs and name in sample:
                    known[name] = sample[name]
                else:
                    tensor = constants[name].const_value if name in constants else None
                    known[name] = None if tensor is None else np.asarray(tensor.numpy())
            values.append(known)
        return values

    @cached_property
    def _all(self) -> list[str]:
        """All values that the nodes take from each other, and the model's outputs."""
        inside = set(self.order)
        outputs = [value for node in self.model.graph if not is_constant(node) for value in node.outputs]
        wanted = {value for node in inside for value in operands_of(node)}
        wanted |= {*self.model.graph.outputs, *(value for node in inside for value in node.outputs if value.uses())}
        return [str(value.name) for value in outputs if value in wanted and _can_fetch(value)]

    @cached_property
    def _bytes(self) -> int:
        wanted = set(self._all)
        outputs = (value for node in self.model.graph for value in node.outputs if value.name in wanted)
        return len(self.samples) * sum(map(estimated_bytes, outputs))

    def _compute(self, names: Sequence[str]) -> list[Sample]:
        if not names:
            return [{} for _ in self.samples]
        inputs = required_names(self.model)
        self.runs.reference += 1
        session = Reference(extract(self.model, inputs, names))
        return [session.run({name: sample[name] for name in inputs}) for sample in self.samples]

    @cached_property
    def _constant(self) -> set[ir.Value]:
        """The values that depend on shapes and constants alone."""
        return fixed_values(self.model.graph)


def _depth_first(graph: ir.Graph) -> list[ir.Node]:
    """Return the nodes that outputs depend on, each after its operands, and these as late as possible."""
    ordered: dict[ir.Node, None] = {}
    for output in graph.outputs:
        pending = [(output.producer(), False)]
        while pending:
            node, ready = pending.pop()
            if node is None or node in ordered or node.graph is not graph:
                continue
            if ready:
                ordered[node] = None
                continue
            pending.append((node, True))
            pending += [(value.producer(), False) for value in reversed(operands_of(node))]
    return list(ordered)


def _can_cut(value: ir.Value) -> bool:
    plain = value.type is None or isinstance(value.type, ir.TensorType)
    return plain and value.dtype != ir.DataType.STRING


def _can_fetch(value: ir.Value) -> bool:
    """Return whether the reference returns a value: a map cannot be fetched, and an optional may hold one."""
    return value.type is None or isinstance(value.type, (ir.TensorType, ir.SequenceType))
