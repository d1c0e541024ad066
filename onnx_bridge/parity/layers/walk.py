"""The walk over a model's segments: each is computed by the reference, the original and MIGraphX, and compared."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import onnx_ir as ir

from onnx_bridge.bundle.device import Device, can_feed
from onnx_bridge.core.errors import InputError, RuntimeFailure, RuntimeNotFound
from onnx_bridge.core.tolerance import ONE_STEP, PartialTolerance
from onnx_bridge.core.values import Array, Value
from onnx_bridge.model import provenance
from onnx_bridge.parity.layers.report import Layer, LayerReport
from onnx_bridge.parity.layers.segments import Segment, SegmentedModel
from onnx_bridge.parity.layers.subject import OriginalModel
from onnx_bridge.reference.comparison.compare import OutputComparison, compare
from onnx_bridge.reference.comparison.tolerances import Tolerances
from onnx_bridge.reference.reference import Reference
from passes.graphs import lineage
from passes.graphs.scopes import required_names
from passes.operators import is_quantizer
from passes.probing.partition import Side, boundary, extract

_MAX_CLUSTER, _CLUSTER_ROUNDS = 32, 4
"""The most nodes that are run together, and how often predecessors are added."""
_MAX_IN_CONTEXT, _MAX_IN_ISOLATION = 128, 64
"""The most nodes of a program: compile time grows faster than their number, and nodes in context should see their
neighbours."""
_IS_RANDOM = "it depends on random numbers"
_ON_HOST = "it runs on ONNX Runtime"

Values = dict[str, Value]
Observer = Callable[[str, Array, Array], None]
"""Is given each tensor that was computed in context: its name, its elements, and the reference's."""


@dataclass
class _Computed:
    """A segment's values, by name: the reference's (``right``) and the original's (``before``).

    Attributes:
        actual: the values in context.
        local: the values of nodes in isolation.
        missing: why a value is not known in context.
        unmeasured: why it is not known in isolation.
    """

    right: Values
    before: Values = field(default_factory=dict)
    actual: Values = field(default_factory=dict)
    local: Values = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)
    unmeasured: dict[str, str] = field(default_factory=dict)


@dataclass
class Walk:
    """The state that is carried from segment to segment: the reference's values and MIGraphX's that are still needed.

    ``actual`` holds ONNX Runtime's values for host partitions; ``peak`` is the most bytes that were held.
    """

    segmented: SegmentedModel
    device: Device | None
    tolerances: Tolerances
    sample: Values
    original: OriginalModel | None
    observer: Observer | None
    right: Values = field(init=False)
    actual: Values = field(init=False)
    notes: dict[str, None] = field(default_factory=dict)
    peak: int = 0

    def __post_init__(self) -> None:
        self.right, self.actual = dict(self.sample), dict(self.sample)

    def visit(self, segment: Segment) -> list[Layer]:
        """Compute a segment's values in every way, and compare them."""
        names = self.segmented.outputs(segment.nodes)
        if not names:
            return []
        right = self._reference(segment.nodes, self.right, names)
        own = _Computed(right, self._originals(names, right))
        if segment.side is Side.HOST:
            own.actual = self._reference(segment.nodes, self.actual, names)
            own.unmeasured = dict.fromkeys(names, _ON_HOST)
        else:
            for nodes in _evenly(segment.nodes, _MAX_IN_CONTEXT):
                known = self.actual | right | own.actual
                own.actual |= self._on_device(nodes, known, right, own.missing, isolated=False)
            for nodes in _evenly(segment.nodes, _MAX_IN_ISOLATION):
                known = self.right | right
                own.local |= self._on_device(nodes, known, known, own.unmeasured, isolated=True)
        self.peak = max(self.peak, _total_bytes(self.right, self.actual, right, own.before, own.actual, own.local))
        self.right |= right
        self.actual |= {**right, **own.actual}
        return [
            self._layer(node, str(value.name), segment.side, own)
            for node in segment.nodes
            for value in node.outputs
            if value.name in right
        ]

    def drop(self, names: Iterable[str]) -> None:
        """Free values that nothing needs any more."""
        for name in names:
            if name not in self.sample:
                self.right.pop(name, None)
                self.actual.pop(name, None)

    def with_cluster(self, report: LayerReport) -> LayerReport:
        """Return the report with the nodes that only together make the first difference, if no single node does."""
        first = report.first
        if first is None or first.local is None or not first.local.passed or first.accumulated is None:
            return report
        if first.accumulated.passed:
            return report
        graph = self.segmented.model.graph
        node = next(node for node in graph for value in node.outputs if value.name == first.tensor)
        cluster = self._failing_cluster(node, first.tensor)
        return report.blaming(cluster) if cluster else report

    def _layer(self, node: ir.Node, name: str, side: Side, own: _Computed) -> Layer:
        if name in self.segmented.random:
            own = _Computed(own.right, missing={name: _IS_RANDOM})
        origins, maker = tuple(lineage.origin(node)), node.metadata_props.get(lineage.PASS)
        expected, preset = own.right[name], self.segmented.quantized.get(name)
        tolerances = self.tolerances if preset is None else self.tolerances.at_least(preset)
        actual = own.actual.get(name)
        if self.observer is not None and isinstance(actual, np.ndarray) and isinstance(expected, np.ndarray):
            self.observer(name, actual, expected)
        # passes compute in the model's dtypes
        cleaning_tolerances = replace(tolerances, preset=preset)
        reasons = filter(None, (own.missing.get(name), own.unmeasured.get(name)))
        modules = {} if self.original is None else self.original.modules

        def compared(values: Values, right: Value, tolerances: Tolerances) -> OutputComparison | None:
            return _compare_one(name, values[name], right, tolerances) if name in values else None

        return Layer(
            node=str(node.name),
            operator=provenance.operator(node),
            module=provenance.module(node) or next(filter(None, map(modules.get, origins)), ""),
            tensor=name,
            inputs=tuple(str(value.name) for value in node.inputs if value is not None and value.name),
            runs_on="MIGraphX" if side is Side.DEVICE else "ONNX Runtime",
            cleaning=_compare_one(name, expected, own.before[name], cleaning_tolerances)
            if name in own.before
            else None,
            accumulated=compared(own.actual, expected, tolerances),
            local=compared(own.local, expected, self._local_tolerances(node, name)),
            reason="; ".join(dict.fromkeys(reasons)),
            by=(maker,) if maker else (),
            origins=origins,
        )

    def _reference(self, nodes: Sequence[ir.Node], values: Values, names: Sequence[str]) -> Values:
        model = self.segmented.in_context(nodes, values, names)
        return Reference(model).run(_feeds(model, values))

    def _local_tolerances(self, node: ir.Node, name: str) -> Tolerances:
        value = next(value for value in node.outputs if value.name == name)
        small = value.dtype is not None and value.dtype.is_integer() and value.dtype.bitwidth <= 8
        if small and is_quantizer(node) and name not in self.tolerances.named:
            return Tolerances(named={name: PartialTolerance(ONE_STEP.rtol, ONE_STEP.atol)})
        return self.tolerances

    def _originals(self, names: Sequence[str], right: Values) -> Values:
        """Return the original's values of those that it has as well, by their names in the cleaned model."""
        if self.original is None:
            return {}
        sources = {name: self.segmented.source(name) for name in names}
        shared = {name: source for name, source in sources.items() if source[0] in self.original.values}
        if not shared:
            return {}
        try:
            values = self.original.compute(source for source, _ in shared.values())
            return {name: _shifted(values[source], offset, right[name]) for name, (source, offset) in shared.items()}
        except InputError as error:
            self.notes[f"values of the original could not be computed: {error.what}"] = None
            return {}

    def _on_device(
        self, nodes: Sequence[ir.Node], values: Values, right: Values, missing: dict[str, str], *, isolated: bool
    ) -> Values:
        """Return MIGraphX's values of nodes that take ``values``; if it fails, those of the halves that it takes.

        If they are ``isolated``, each takes the given values, otherwise those that MIGraphX has computed before it.
        """
        names = self._fetched(nodes, right, missing)
        if not names:
            return {}
        try:
            cut = self.segmented.in_isolation if isolated else self.segmented.in_context
            return self._run(cut(nodes, values, names), values, {name: right[name] for name in names})
        except RuntimeNotFound:
            raise
        except RuntimeFailure as error:
            if len(nodes) == 1:
                how = "in isolation" if isolated else "in context"
                missing |= dict.fromkeys(names, f"MIGraphX {how}: {error.what}")
                return {}
            half = len(nodes) // 2
            first = self._on_device(nodes[:half], values, right, missing, isolated=isolated)
            later = values if isolated else {**values, **right, **first}
            return first | self._on_device(nodes[half:], later, right, missing, isolated=isolated)

    def _fetched(self, nodes: Sequence[ir.Node], right: Values, missing: dict[str, str]) -> list[str]:
        """Return the values of nodes that MIGraphX can give."""
        names = []
        values = {str(value.name): value for node in nodes for value in node.outputs}
        for name in self.segmented.outputs(nodes):
            if name not in right or not isinstance(right[name], np.ndarray) or not can_feed(values[name]):
                missing[name] = "MIGraphX has no such type of values"
            else:
                names.append(name)
        return names

    def _run(self, model: ir.Model, values: Values, expected: Mapping[str, Value]) -> Values:
        assert self.device is not None
        return self.device.run(model, _feeds(model, values), expected)

    def _failing_cluster(self, node: ir.Node, tensor: str) -> list[str]:
        """Return the predecessors of a node that make its error together with it; empty if none are found."""
        graph = self.segmented.model.graph
        order = {node_: index for index, node_ in enumerate(graph)}
        cluster = {node}
        inputs = required_names(self.segmented.model)
        tolerances = self._local_tolerances(node, tensor)
        for _ in range(_CLUSTER_ROUNDS):
            before = {operand for member in cluster for operand in member.predecessors() if operand.graph is graph}
            if before <= cluster or len(cluster | before) > _MAX_CLUSTER:
                return []
            cluster |= before
            nodes = sorted(cluster, key=order.__getitem__)
            taken, _ = boundary(graph, nodes)
            wanted = [*(str(value.name) for value in taken if value.producer() is not None), tensor]
            values = {**self.sample, **Reference(extract(self.segmented.model, inputs, wanted)).run(self.sample)}
            try:
                model = self.segmented.in_context(nodes, values, [tensor])
                outputs = self._run(model, values, {tensor: values[tensor]})
            except (RuntimeFailure, KeyError):
                continue
            if not _compare_one(tensor, outputs[tensor], values[tensor], tolerances).passed:
                return [str(member.name) for member in nodes]
        return []


def _feeds(model: ir.Model, values: Values) -> Values:
    return {str(value.name): values[str(value.name)] for value in model.graph.inputs}


def _shifted(value: Value, offset: int, like: Value) -> Value:
    """Return a value of the original as the cleaned model has it: shifted, if a pass shifted integers."""
    if not offset or not isinstance(value, np.ndarray) or not isinstance(like, np.ndarray):
        return value
    return lineage.shifted(value, offset, like.dtype)


def _evenly(nodes: Sequence[ir.Node], most: int) -> Iterator[Sequence[ir.Node]]:
    """Return nodes in order, in runs of about the same length."""
    size = math.ceil(len(nodes) / math.ceil(len(nodes) / most))
    return (nodes[start : start + size] for start in range(0, len(nodes), size))


def _compare_one(name: str, actual: Value, expected: Value, tolerances: Tolerances) -> OutputComparison:
    """Return the comparison of a value; of a sequence, that of its worst element."""
    named = {tensor: part for tensor, part in tolerances.named.items() if tensor == name}
    only = Tolerances(tolerances.preset, tolerances.general, named if isinstance(expected, np.ndarray) else {})
    outputs = compare({name: actual}, {name: expected}, only).outputs
    return max(outputs, key=lambda output: (not output.passed, output.severity))


def _total_bytes(*groups: Mapping[str, Value]) -> int:
    """Return the bytes of arrays, each counted once."""
    arrays = {
        id(array): array.nbytes
        for group in groups
        for value in group.values()
        for array in (value if isinstance(value, list) else [value])
        if array is not None
    }
    return sum(arrays.values())
