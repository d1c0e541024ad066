"""Pieces of a model, each a model of its own that is fed with what the reference computes.

What a piece makes of the reference's own values is its local error: what came before it has no part in that.

Where a value is cut through, it becomes an input of the piece, unless it is to stay a constant
(`onnx_bridge.reference.cuts`). Sequences, strings and optionals cannot be given to MIGraphX, so that there nothing is
cut.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import onnx_ir as ir

from onnx_bridge.core.errors import InputError
from onnx_bridge.core.values import Array, Value
from onnx_bridge.reference.cuts import can_give, fix, is_quantizer, size
from onnx_bridge.reference.reference import Reference
from onnx_bridge.samples.inputs import Sample
from passes.core import graphs
from passes.target.partition import boundary, extract, is_constant, needed
from passes.target.probes import fixed_values

_KEPT_BYTES = 1 << 30
"""All values are kept where they are foreseen to take no more; else they are computed anew for each piece."""


@dataclass
class Runs:
    """How often something was run, whatever the number of samples."""

    reference: int = 0
    migraphx: int = 0


@dataclass(frozen=True)
class Piece:
    """A model, what to feed it, and what it should give; the shapes of its inputs are fixed.

    Attributes:
        model: the nodes.
        inputs: one sample or more.
        expected: the outputs of each.
        numbers: which of the samples of the whole they are.
        quantized: the outputs that depend on a quantizer in it, half of whose results are decided by rounding.
    """

    model: ir.Model
    inputs: list[Sample]
    expected: list[Sample]
    numbers: list[int]
    quantized: frozenset[str] = frozenset()


@dataclass
class Pieces:
    """A model that can be cut into pieces.

    Args:
        model: names of its nodes and values are unique; it is not changed.
        samples: what it takes.
        runs: counts those of the reference.
        nodes: those that pieces are made of, of its main graph; default: all that its outputs depend on.
    """

    model: ir.Model
    samples: Sequence[Sample]
    runs: Runs
    nodes: Iterable[ir.Node] | None = None
    _kept: list[Sample] | None = field(default=None, init=False)

    @cached_property
    def order(self) -> list[ir.Node]:
        """The nodes, in an order that keeps each close to what it takes, so that few values are cut through."""
        chosen = needed(self.model.graph) if self.nodes is None else set(self.nodes)
        return [node for node in _depth_first(self.model.graph) if node in chosen and not is_constant(node)]

    @cached_property
    def units(self) -> list[tuple[ir.Node, ...]]:
        """The nodes in order, those together that what cannot be cut through is in between of."""
        place = {node: index for index, node in enumerate(self.order)}
        glued = 0
        groups: list[list[ir.Node]] = []
        for index, node in enumerate(self.order):
            if index >= glued or not groups:
                groups.append([])
            groups[-1].append(node)
            for value in node.outputs:
                if not _can_cut(value):
                    users = [place[use.node] for use in value.uses() if use.node in place]
                    glued = max([glued, *(user + 1 for user in users)])
        return [tuple(group) for group in groups]

    def of(self, nodes: Sequence[ir.Node]) -> list[Piece]:
        """The piece that some nodes are, for each kind of shapes that samples give it; none where it cannot be cut."""
        inputs, outputs = boundary(self.model.graph, nodes)
        if not outputs:
            return []
        fixed = [value for value in inputs if value in self._constant]
        fed = [str(value.name) for value in inputs if value not in self._constant]
        wanted = [str(value.name) for value in outputs]
        values = self.values([*fed, *wanted, *(str(value.name) for value in fixed)])
        if not all(can_give(each[name]) for each in values for name in (*fed, *wanted)):
            return []
        groups: dict[object, list[int]] = {}
        for number, each in enumerate(values):
            constants = [np.asarray(each[str(value.name)]).tobytes() for value in fixed]
            groups.setdefault((*(np.shape(_array(each[name])) for name in fed), *constants), []).append(number)
        part = extract(self.model, [*fed, *(str(value.name) for value in fixed)], wanted)
        quantized = _quantized(nodes)
        pieces = []
        for numbers in groups.values():
            sample = values[numbers[0]]
            whole = part if len(groups) == 1 else part.clone()
            fix(whole, sample, {str(value.name) for value in fixed})
            given = [{name: values[number][name] for name in fed} for number in numbers]
            expected = [{name: values[number][name] for name in wanted} for number in numbers]
            pieces.append(Piece(whole, given, expected, numbers, quantized))
        return pieces

    def consequence(self, values: Sample, number: int) -> Sample | None:
        """What the model gives where some of its values are others, on the reference.

        Args:
            values: those, by name.
            number: of the sample.

        Returns:
            The outputs; None where the reference cannot go on from there.
        """
        inputs = [str(value.name) for value in self.model.graph.inputs if not value.is_initializer()]
        outputs = [str(value.name) for value in self.model.graph.outputs]
        self.runs.reference += 1
        try:
            session = Reference(extract(self.model, [*inputs, *values], outputs))
            return session.run({**{name: self.samples[number][name] for name in inputs}, **values})
        except InputError:
            return None

    def values(self, names: Iterable[str]) -> list[Sample]:
        """What the reference computes for some values, one dict a sample."""
        wanted = dict.fromkeys(names)
        known = {str(value.name): value for value in self.model.graph.inputs}
        constants = self.model.graph.initializers
        made = [name for name in wanted if name not in known and name not in constants]
        if self._kept is None and self._bytes <= _KEPT_BYTES:
            self._kept = self._compute(self._all)
        computed = self._compute(made) if self._kept is None else self._kept
        found = []
        for sample, results in zip(self.samples, computed, strict=True):
            each: Sample = {}
            for name in wanted:
                if name in results:
                    each[name] = results[name]
                elif name in known and name in sample:
                    each[name] = sample[name]
                else:  # what cannot be fetched counts as nothing
                    tensor = constants[name].const_value if name in constants else None
                    each[name] = None if tensor is None else np.asarray(tensor.numpy())
            found.append(each)
        return found

    @cached_property
    def _all(self) -> list[str]:
        """All values that the nodes take from each other, and that the model gives."""
        inside = set(self.order)
        made = [value for node in self.model.graph if not is_constant(node) for value in node.outputs]
        wanted = {value for node in inside for value in (*node.inputs, *graphs.captures(node))}
        wanted |= {*self.model.graph.outputs, *(value for node in inside for value in node.outputs if value.uses())}
        return [str(value.name) for value in made if value in wanted and _can_fetch(value)]

    @cached_property
    def _bytes(self) -> int:
        wanted = set(self._all)
        made = (value for node in self.model.graph for value in node.outputs if value.name in wanted)
        return len(self.samples) * sum(map(size, made))

    def _compute(self, names: Sequence[str]) -> list[Sample]:
        if not names:
            return [{} for _ in self.samples]
        inputs = [str(value.name) for value in self.model.graph.inputs if not value.is_initializer()]
        self.runs.reference += 1
        session = Reference(extract(self.model, inputs, names))
        return [session.run({name: sample[name] for name in inputs}) for sample in self.samples]

    @cached_property
    def _constant(self) -> set[ir.Value]:
        """The values that depend on shapes and constants alone."""
        return fixed_values(self.model.graph)


def _depth_first(graph: ir.Graph) -> list[ir.Node]:
    """The nodes that outputs depend on, each after what it takes, and that as late as possible."""
    found: dict[ir.Node, None] = {}
    for output in graph.outputs:
        pending = [(output.producer(), False)]
        while pending:
            node, ready = pending.pop()
            if node is None or node in found or node.graph is not graph:
                continue
            if ready:
                found[node] = None
                continue
            pending.append((node, True))
            used = (value for value in (*node.inputs, *graphs.captures(node)) if value is not None)
            pending += [(value.producer(), False) for value in reversed([*used])]
    return list(found)


def _quantized(nodes: Sequence[ir.Node]) -> frozenset[str]:
    """The values that depend on a quantizer among the nodes."""
    found: dict[ir.Value, None] = {}
    for node in nodes:
        if is_quantizer(node) or any(value in found for value in node.inputs if value is not None):
            found.update(dict.fromkeys(node.outputs))
    return frozenset(str(value.name) for value in found)


def _can_cut(value: ir.Value) -> bool:
    plain = value.type is None or isinstance(value.type, ir.TensorType)
    return plain and value.dtype != ir.DataType.STRING


def _can_fetch(value: ir.Value) -> bool:
    """Whether the reference gives it: no maps, and no optionals, which may stand for them."""
    return value.type is None or isinstance(value.type, (ir.TensorType, ir.SequenceType))


def _array(value: Value) -> Array:
    assert isinstance(value, np.ndarray)
    return value
