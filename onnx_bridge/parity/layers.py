"""Parity layer by layer: every value of the cleaned model, on ONNX Runtime against MIGraphX.

Each value has up to three errors:

- *cleaning*: the cleaned model against the original, both on ONNX Runtime, from the model's inputs. Values are matched
  by name, since passes let a value keep its name if and only if it still means the same; and by the relation that is
  recorded where a pass shifted integers (`passes.analysis.zero_point_shifts`).
- *accumulated*: MIGraphX from the model's inputs, against ONNX Runtime on the cleaned model.
- *local*: MIGraphX fed with the reference's own values. So a node that makes an error is told from one that passes it
  on.

The model is run in segments (`onnx_bridge.parity.segments`), each of which takes what the ones before it gave, so that
all of it is computed once, whatever the limit on memory; only the original starts from its inputs each time. MIGraphX
gets a program for a segment in its place, and one for its nodes apart, or some where these are many. Where it does not
take one of them, halves are tried, down to the node that it does not take; what comes after goes on with the
reference's values.

Asking for intermediate values changes what MIGraphX fuses: a fault of a fusion can disappear when it is looked at. So
where a node's own error does not account for the first difference, it is tried together with those before it, without
looking in between.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import onnx_ir as ir

from onnx_bridge.bundle.submodel import parse
from onnx_bridge.core.errors import InputError, MigraphxError, RuntimeFailure, RuntimeNotFound
from onnx_bridge.core.values import Array, Value
from onnx_bridge.migraphx.limits import Limits
from onnx_bridge.migraphx.worker import Worker
from onnx_bridge.model import io as models
from onnx_bridge.model import provenance
from onnx_bridge.parity.layer_report import Layer, Layers
from onnx_bridge.parity.segments import Segment, Segments
from onnx_bridge.parity.trial import run
from onnx_bridge.reference.compare import OutputComparison, compare
from onnx_bridge.reference.cuts import can_feed, is_quantizer
from onnx_bridge.reference.reference import Reference
from onnx_bridge.reference.tolerances import ONE_STEP, Part, Tolerances
from passes.analysis import zero_point_shifts
from passes.core import graphs
from passes.core.graphs import Scope, name_nodes
from passes.target.partition import Side, boundary, extract, plan

MEMORY = 1 << 30
"""Bytes of values that are held at a time, unless something else is asked for."""
_TOGETHER, _ROUNDS = 32, 4
"""The most nodes that are tried together, and how many times those before them are added."""
_IN_PLACE, _APART = 128, 64
"""The most nodes of a program: what MIGraphX takes to compile grows faster than their number, and nodes in their place
should see their neighbours."""
_RANDOM = "it depends on chance"
_HOST = "it runs on ONNX Runtime"

Values = dict[str, Value]


def compare_layers(
    model: ir.Model | Path,
    sample: Mapping[str, Value],
    worker: Worker | None,
    *,
    limits: Limits = Limits(),
    target: str = "ref",
    original: ir.Model | Path | None = None,
    original_sample: Mapping[str, Value] | None = None,
    host: Mapping[str, str] | None = None,
    memory_limit: int = MEMORY,
    tolerances: Tolerances | None = None,
    watch: Callable[[str, Array, Array], None] | None = None,
    progress: Callable[[str], None] | None = None,
) -> Layers:
    """Compare every value of a cleaned model.

    Args:
        model: cleaned; left as it is.
        sample: its inputs.
        worker: the process of MIGraphX; None where all nodes are on the host.
        limits: of each of MIGraphX's steps.
        target: what MIGraphX compiles for.
        original: what it was cleaned from; None leaves the errors of cleaning out.
        original_sample: the inputs of that, where they are others.
        host: the nodes that ONNX Runtime runs in the bundle, by name, and why.
        memory_limit: bytes of values that this process holds at a time. A node alone may take more, which a note says.
        tolerances: of any value by its name, of all floats, and by precision; values behind a quantizer have at least
            those of ``int8`` or ``fp8`` but for the local error.
        watch: given each tensor that was computed in its place: its name, what came, and the reference's.
        progress: told how far it is.

    Raises:
        InputError: ONNX Runtime does not take the model or the sample.
        RuntimeFailure: MIGraphX cannot be loaded.
    """
    loaded = models.load(model) if isinstance(model, Path) else model.clone()
    name_nodes(Scope(loaded, loaded.graph))
    nodes = {str(node.name): node for node in loaded.graph}
    reasons = {nodes[name]: why for name, why in (host or {}).items() if name in nodes}
    source = models.load(original) if isinstance(original, Path) else original
    segments = Segments(loaded, plan(loaded, reasons))
    given = dict(original_sample or sample)
    walk = _Walk(segments, worker, limits, target, tolerances or Tolerances(), dict(sample), source, given, watch)
    parts = list(segments.cut(memory_limit))
    last = segments.last_uses()
    rows: list[Layer] = []
    for index, part in enumerate(parts):
        if progress is not None:
            progress(f"layers: part {index + 1} of {len(parts)}")
        rows += walk.visit(part)
        ended = set(part.nodes)
        walk.forget(name for name, node in last.items() if node in ended)
        walk.keep(last)
    notes = list(walk.notes)
    if walk.peak > memory_limit:
        notes.append(f"a node needs {walk.peak >> 20} MiB of values, more than the limit of {memory_limit >> 20} MiB")
    return walk.explained(Layers(tuple(rows), len(parts), tuple(notes)))


@dataclass
class _Computed:
    """A segment's values, by name.

    Attributes:
        right: the reference's.
        before: the original's.
        found: in their place.
        local: of nodes apart.
        missing: why a value could not be had in its place.
        unmeasured: why not apart.
    """

    right: Values
    before: Values = field(default_factory=dict)
    found: Values = field(default_factory=dict)
    local: Values = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)
    unmeasured: dict[str, str] = field(default_factory=dict)


@dataclass
class _Walk:
    """What is carried from segment to segment.

    Attributes:
        right: the reference's values that are still needed.
        found: those that MIGraphX, and ONNX Runtime for partitions on the host, came to.
        peak: the most bytes that were held.
    """

    segments: Segments
    worker: Worker | None
    limits: Limits
    target: str
    tolerances: Tolerances
    sample: Values
    original: ir.Model | None
    original_sample: Values
    watch: Callable[[str, Array, Array], None] | None = None
    right: Values = field(init=False)
    found: Values = field(init=False)
    notes: dict[str, None] = field(default_factory=dict)
    peak: int = 0
    _modules: dict[str, str] = field(default_factory=dict)
    _known: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.right, self.found = dict(self.sample), dict(self.sample)
        if self.original is not None:
            graph = self.original.graph
            self._known = {str(value.name) for node in graph for value in node.outputs if value.name}
            self._modules = {str(node.name): provenance.module(node) for node in graph.all_nodes()}

    def visit(self, part: Segment) -> list[Layer]:
        """Compute a segment's values in every way, and compare them."""
        names = self.segments.made(part.nodes)
        if not names:
            return []
        right = self._reference(part.nodes, self.right, names)
        made = _Computed(right, self._originals(names, right))
        if part.side is Side.HOST:
            made.found = self._reference(part.nodes, self.found, names)
            made.unmeasured = dict.fromkeys(names, _HOST)
        else:
            for nodes in _parts(part.nodes, _IN_PLACE):
                made.found |= self._in_place(nodes, self.found | right | made.found, right, made.missing)
            for nodes in _parts(part.nodes, _APART):
                made.local |= self._apart(nodes, self.right | right, made.unmeasured)
        self.peak = max(self.peak, _held(self.right, self.found, right, made.before, made.found, made.local))
        self.right |= right
        self.found |= {**right, **made.found}
        return [
            self._layer(node, str(value.name), part.side, made)
            for node in part.nodes
            for value in node.outputs
            if value.name in right
        ]

    def forget(self, names: Iterable[str]) -> None:
        """Let go of values that nothing needs any more."""
        for name in names:
            if name not in self.sample:
                self.right.pop(name, None)
                self.found.pop(name, None)

    def keep(self, names: Mapping[str, object]) -> None:
        """Let go of values that nothing uses."""
        self.forget([name for name in self.right if name not in names])

    def explained(self, layers: Layers) -> Layers:
        """With the nodes that only together make the first difference, where no node alone does."""
        first = layers.first
        if first is None or first.local is None or not first.local.passed or first.accumulated is None:
            return layers
        if first.accumulated.passed:
            return layers
        node = next(node for node in self.segments.model.graph for value in node.outputs if value.name == first.tensor)
        culprits = self._together(node, first)
        return layers.blaming(culprits) if culprits else layers

    def _layer(self, node: ir.Node, name: str, side: Side, made: _Computed) -> Layer:
        if name in self.segments.random:
            made = _Computed(made.right, missing={name: _RANDOM})
        origins, maker = tuple(graphs.origin(node)), node.metadata_props.get(graphs.PASS)
        module = provenance.module(node)
        expected, tolerances = made.right[name], self._tolerances(name)
        found = made.found.get(name)
        if self.watch is not None and isinstance(found, np.ndarray) and isinstance(expected, np.ndarray):
            self.watch(name, found, expected)
        same = replace(tolerances, preset=self.segments.quantized.get(name))  # passes compute in the model's dtypes
        reasons = filter(None, (made.missing.get(name), made.unmeasured.get(name)))

        def compared(values: Values, right: Value, tolerances: Tolerances) -> OutputComparison | None:
            return _one(name, values[name], right, tolerances) if name in values else None

        return Layer(
            node=str(node.name),
            operator=provenance.operator(node),
            module=module or next((self._modules[each] for each in origins if self._modules.get(each)), ""),
            tensor=name,
            takes=tuple(str(value.name) for value in node.inputs if value is not None and value.name),
            runs_on="MIGraphX" if side is Side.DEVICE else "ONNX Runtime",
            cleaning=_one(name, expected, made.before[name], same) if name in made.before else None,
            accumulated=compared(made.found, expected, tolerances),
            local=compared(made.local, expected, self._local_tolerances(node, name)),
            reason="; ".join(dict.fromkeys(reasons)),
            by=(maker,) if maker else (),
            origins=origins,
        )

    def _reference(self, nodes: Sequence[ir.Node], values: Values, names: Sequence[str]) -> Values:
        return Reference(self.segments.in_place(nodes, values, names)).run(self._feeds(nodes, values))

    def _tolerances(self, name: str) -> Tolerances:
        preset = self.segments.quantized.get(name)
        return self.tolerances if preset is None else self.tolerances.at_least(preset)

    def _local_tolerances(self, node: ir.Node, name: str) -> Tolerances:
        value = next(value for value in node.outputs if value.name == name)
        small = value.dtype is not None and value.dtype.is_integer() and value.dtype.bitwidth <= 8
        if small and is_quantizer(node) and name not in self.tolerances.named:
            return Tolerances(named={name: Part(ONE_STEP.rtol, ONE_STEP.atol)})
        return self.tolerances

    def _feeds(self, nodes: Sequence[ir.Node], values: Mapping[str, Value]) -> Values:
        return {name: values[name] for name in self.segments.taken(nodes) if name not in self.segments.constant}

    def _originals(self, names: Sequence[str], right: Values) -> Values:
        """What the original model computes for the values that it has as well, by the names that they have here."""
        sources = {name: self.segments.source(name) for name in names}
        shared = {name: source for name, source in sources.items() if source[0] in self._known}
        if self.original is None or not shared:
            return {}
        inputs = [str(value.name) for value in self.original.graph.inputs if not value.is_initializer()]
        try:
            wanted = dict.fromkeys(source for source, _ in shared.values())
            session = Reference(extract(self.original, inputs, wanted))
            values = session.run({name: self.original_sample[name] for name in inputs})
            return {name: _shifted(values[source], offset, right[name]) for name, (source, offset) in shared.items()}
        except InputError as error:
            self.notes[f"values of the original could not be computed: {error.what}"] = None
            return {}

    def _in_place(self, nodes: Sequence[ir.Node], values: Values, right: Values, missing: dict[str, str]) -> Values:
        """What MIGraphX makes of nodes that take ``values``; where it fails, the parts of them that it does take."""
        names = self._fetched(nodes, right, missing)
        if not names:
            return {}
        try:
            model = self.segments.in_place(nodes, values, names)
            return self._run(model, self._feeds(nodes, values), {name: right[name] for name in names})
        except RuntimeNotFound:
            raise
        except RuntimeFailure as error:
            if len(nodes) == 1:
                missing |= dict.fromkeys(names, f"MIGraphX in its place: {error.what}")
                return {}
            half = len(nodes) // 2
            first = self._in_place(nodes[:half], values, right, missing)
            return first | self._in_place(nodes[half:], {**values, **right, **first}, right, missing)

    def _apart(self, nodes: Sequence[ir.Node], values: Values, missing: dict[str, str]) -> Values:
        """What MIGraphX makes of each node that takes the reference's ``values``."""
        names = self._fetched(nodes, values, missing)
        if not names:
            return {}
        try:
            model = self.segments.apart(nodes, values, names)
            feeds = {str(value.name): values[str(value.name)] for value in model.graph.inputs}
            return self._run(model, feeds, {name: values[name] for name in names})
        except RuntimeNotFound:
            raise
        except RuntimeFailure as error:
            if len(nodes) == 1:
                missing |= dict.fromkeys(names, f"MIGraphX apart: {error.what}")
                return {}
            half = len(nodes) // 2
            return self._apart(nodes[:half], values, missing) | self._apart(nodes[half:], values, missing)

    def _fetched(self, nodes: Sequence[ir.Node], right: Values, missing: dict[str, str]) -> list[str]:
        """The values of nodes that MIGraphX can give."""
        names = []
        values = {str(value.name): value for node in nodes for value in node.outputs}
        for name in self.segments.made(nodes):
            if name not in right or not isinstance(right[name], np.ndarray) or not can_feed(values[name]):
                missing[name] = "MIGraphX has no such type of values"
            else:
                names.append(name)
        return names

    def _run(self, model: ir.Model, feeds: Mapping[str, Value], expected: Mapping[str, Value]) -> Values:
        """Parse, compile and run a model whose outputs are the expected ones, by order."""
        assert self.worker is not None
        shapes = {name: each.shape for name, each in feeds.items() if isinstance(each, np.ndarray)}
        with self.worker.limited(self.limits):
            with tempfile.TemporaryDirectory(prefix="onnx-bridge-") as folder:
                path = Path(folder) / "part.onnx"
                models.save(model, path)
                program = parse(self.worker, path, shapes)
            if len(program.get_output_shapes()) != len(expected):
                what = f"it gives {len(program.get_output_shapes())} outputs where there are {len(expected)}"
                raise MigraphxError(what)
            program.compile(self.target)
            return run(program, feeds, expected)

    def _together(self, node: ir.Node, first: Layer) -> list[str]:
        """The nodes before a node that make its error together with it; empty where none are found."""
        graph = self.segments.model.graph
        order = {each: index for index, each in enumerate(graph)}
        chosen = {node}
        inputs = [str(value.name) for value in graph.inputs if not value.is_initializer()]
        for _ in range(_ROUNDS):
            before = {each for one in chosen for each in one.predecessors() if each.graph is graph}
            if before <= chosen or len(chosen | before) > _TOGETHER:
                return []
            chosen |= before
            nodes = sorted(chosen, key=order.__getitem__)
            taken, _ = boundary(graph, nodes)
            wanted = [*(str(value.name) for value in taken if value.producer() is not None), first.tensor]
            values = {**self.sample, **Reference(extract(self.segments.model, inputs, wanted)).run(self.sample)}
            try:
                model = self.segments.in_place(nodes, values, [first.tensor])
                found = self._run(model, self._feeds(nodes, values), {first.tensor: values[first.tensor]})
            except (RuntimeFailure, KeyError):
                continue
            tolerances = self._local_tolerances(node, first.tensor)
            if not _one(first.tensor, found[first.tensor], values[first.tensor], tolerances).passed:
                return [str(each.name) for each in nodes]
        return []


def _shifted(value: Value, offset: int, like: Value) -> Value:
    """A value of the original as the cleaned model has it: where a pass shifted integers, so are these."""
    if not offset or not isinstance(value, np.ndarray) or not isinstance(like, np.ndarray):
        return value
    return zero_point_shifts.shifted(value, offset, like.dtype)


def _parts(nodes: Sequence[ir.Node], most: int) -> Iterator[Sequence[ir.Node]]:
    """Nodes in order, in parts of about the same size."""
    size = math.ceil(len(nodes) / math.ceil(len(nodes) / most))
    return (nodes[start : start + size] for start in range(0, len(nodes), size))


def _one(name: str, actual: Value, expected: Value, tolerances: Tolerances) -> OutputComparison:
    """The comparison of a value; of a sequence, that of its worst element."""
    named = {each: part for each, part in tolerances.named.items() if each == name}
    only = Tolerances(tolerances.preset, tolerances.general, named if isinstance(expected, np.ndarray) else {})
    outputs = compare({name: actual}, {name: expected}, only).outputs
    return max(outputs, key=lambda output: (not output.passed, output.severity))


def _held(*groups: Mapping[str, Value]) -> int:
    """The bytes of arrays, each counted once."""
    arrays = {
        id(array): array.nbytes
        for group in groups
        for value in group.values()
        for array in (value if isinstance(value, list) else [value])
        if array is not None
    }
    return sum(arrays.values())
