"""Partition a model: pieces that run one after another, on the device, or on the host if the device cannot run them.

    x ─ Conv ─ Relu ─ NonZero ─ Gather ─►        device: Conv, Relu  →  host: NonZero, Gather

The partitions alternate between the sides. So a node's earliest partition follows from those of its operands: the same
one if they are on its side, else the next one. This gives the fewest partitions, for a first partition on either side;
the better of the two is taken. It never gives a cycle.

Some nodes go to the host although the device could run them:

- What the device takes from the host must be a numeric tensor of static shape. So all that follows a data-dependent
  shape stays on the host, until a shape is static again.
- An island: nodes of a device partition that fit into no other partition, and whose work is small (at most a hundredth
  of the work on the device, and ten million multiply-adds, about the cost of transferring tensors), if there are fewer
  partitions without it.
- A node with subgraphs is placed as a whole; the values that it captures are operands like its inputs.

Constants belong to every partition that uses them.
"""

from __future__ import annotations

import enum
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain, pairwise

import onnx_ir as ir

from passes.core.errors import PassError
from passes.graphs.cost import estimate
from passes.graphs.limits import called_functions
from passes.graphs.scopes import DISPUTED
from passes.graphs.traversal import leading_to, operands_of, with_nested

_ISLAND_SHARE = 100
_ISLAND_WORK = 10_000_000


class Side(enum.Enum):
    """The side on which a partition runs."""

    DEVICE = "device"
    HOST = "host"

    @property
    def other(self) -> Side:
        return Side.HOST if self is Side.DEVICE else Side.DEVICE


@dataclass(frozen=True)
class Partition:
    """Nodes that run together.

    Attributes:
        nodes: in topological order, without constants.
        inputs: the values from the caller and from earlier partitions, in the order of first use.
        outputs: the values for later partitions and the caller.
    """

    side: Side
    nodes: tuple[ir.Node, ...]
    inputs: tuple[ir.Value, ...]
    outputs: tuple[ir.Value, ...]


@dataclass(frozen=True)
class Partitioning:
    """The partitions of a model.

    Attributes:
        partitions: in execution order; two in a row are on different sides, unless a long one was cut.
        causes: the nodes that the device cannot run; the others on the host follow from these.
    """

    partitions: tuple[Partition, ...]
    reasons: Mapping[ir.Node, str] = field(default_factory=dict)
    work: Mapping[ir.Node, int] = field(default_factory=dict)
    causes: Collection[ir.Node] = ()

    @property
    def cuts(self) -> int:
        """The number of partitions on the device that follow another one (`passes.probing.long_partitions`)."""
        return sum(first.side is second.side is Side.DEVICE for first, second in pairwise(self.partitions))

    @property
    def is_one_program(self) -> bool:
        """Return whether a single partition on the device is all of the model, as in a model without nodes."""
        return self.wholly_on_device and len(self.partitions) <= 1

    @property
    def wholly_on_device(self) -> bool:
        """Return whether no partition is on the host, as in a model without nodes."""
        return all(partition.side is Side.DEVICE for partition in self.partitions)

    @property
    def on_device(self) -> set[str]:
        """The names of the nodes on the device, those of subgraphs included."""
        nodes = chain.from_iterable(partition.nodes for partition in self.partitions if partition.side is Side.DEVICE)
        return {str(node.name) for node in with_nested(nodes)}


def plan(model: ir.Model, reasons: Mapping[ir.Node, str], *, made_only: bool = False) -> Partitioning:
    """Partition a model into as few pieces as possible.

    Outputs of the model that are constants or inputs pass through the device only if there is nothing else to compute.

    Args:
        model: its nodes in topological order; functions are opaque.
        reasons: nodes of the main graph that the device cannot run, and why.
        made_only: whether all outputs of the device must be results of nodes.
    """
    graph = model.graph
    planner = _Planner(graph)
    hosted = planner.with_followers(reasons)
    while (fewer := planner.with_fewer_islands(hosted)) is not None:
        hosted = fewer
    order = {node: index for index, node in enumerate(planner.operands)}
    partitions = tuple(planner.partitions(hosted))
    if not hosted:
        partitions = tuple(_without_host(graph, tuple(planner.operands), made_only))
    return Partitioning(
        partitions,
        {node: hosted[node] for node in sorted(hosted, key=order.__getitem__)},
        planner.work,
        tuple(node for node in planner.operands if node in reasons),
    )


def hosted(model: ir.Model, reasons: Mapping[ir.Node, str]) -> dict[ir.Node, str]:
    """Return the nodes that the device cannot run, and those that it cannot take the inputs of, with reasons."""
    return _Planner(model.graph).with_followers(reasons)


def extract(model: ir.Model, inputs: Iterable[str], outputs: Iterable[str]) -> ir.Model:
    """Extract the part of a model that computes some values from others, as a model of its own.

    Args:
        model: is not changed; the part shares its tensors.
        inputs: names of values of the main graph.
        outputs: names of values of the main graph.

    Raises:
        PassError: there is no such value, or the outputs need more than the inputs.
    """
    graph = model.graph
    known = {str(value.name): value for value in graph.inputs} | dict(graph.initializers)
    known |= {str(value.name): value for node in graph for value in node.outputs}
    if missing := sorted({*inputs, *outputs} - known.keys()):
        raise PassError(f"the model has no value {', '.join(missing)}")
    given, wanted = dict.fromkeys(known[name] for name in inputs), [known[name] for name in outputs]
    leading = leading_to((value for value in wanted if value not in given), given.__contains__)
    kept = [node for node in graph if node in leading]
    computed = {value for node in kept for value in node.outputs}
    used = dict.fromkeys((*wanted, *(value for node in kept for value in operands_of(node))))
    outer = [value for value in used if value not in given and value not in computed]
    for value in outer:
        if not value.is_initializer():
            raise PassError(f"the part needs {value.name} as well")
    view = ir.GraphView(
        tuple(given), wanted, nodes=kept, initializers=outer, doc_string=graph.doc_string,
        opset_imports=graph.opset_imports, name=graph.name, metadata_props=dict(graph.metadata_props),
    )  # fmt: skip
    part = view.clone()
    for value, twin in zip(given, part.inputs, strict=True):
        twin.const_value = None
        twin.meta.clear()
        if value in computed:  # by a node that another of its outputs needs
            other = next(
                output for node in part for output in node.outputs if output.name == value.name and output is not twin
            )
            other.name = f"{value.name}/unused"
            other.replace_all_uses_with(twin, replace_graph_outputs=True)
    return ir.Model(
        part,
        ir_version=max(model.ir_version, 4),  # before, initializers had to be inputs
        producer_name=model.producer_name,
        producer_version=model.producer_version,
        domain=model.domain,
        model_version=model.model_version,
        doc_string=model.doc_string,
        functions=[function.clone() for function in called_functions(part, model).values()],
        metadata_props=dict(model.metadata_props),
    )


def can_cross(value: ir.Value) -> bool:
    """Return whether the device can take a value: a numeric tensor of static shape."""
    return (
        isinstance(value.type, ir.TensorType)
        and value.dtype not in (None, ir.DataType.UNDEFINED, ir.DataType.STRING)
        and value.shape is not None
        and value.shape.is_static()
        and DISPUTED not in value.meta
    )


def is_constant(node: ir.Node) -> bool:
    """Return whether a node is a Constant, which belongs to every partition that uses it."""
    return node.op_type == "Constant" and node.domain == ""


def _without_host(graph: ir.Graph, nodes: tuple[ir.Node, ...], made_only: bool) -> Iterator[Partition]:
    """Yield a device partition with the outputs of the model in order, except those that cannot be on the device."""
    unmade = [value for value in graph.outputs if value.producer() is None or _is_constant(value)]
    bypassing = [value for value in unmade if made_only or not can_cross(value)]
    if bypassing:
        yield Partition(Side.HOST, (), tuple(value for value in bypassing if not _is_constant(value)), tuple(bypassing))
    outputs = tuple(value for value in graph.outputs if value not in bypassing)
    if nodes or outputs:
        taken = {*boundary(graph, nodes)[0], *outputs}
        yield Partition(Side.DEVICE, nodes, tuple(value for value in graph.inputs if value in taken), outputs)


class _Planner:
    """The facts that do not depend on the sides of nodes.

    ``operands`` has, for each node that outputs depend on, the values that it and its subgraphs use, without constants.
    """

    def __init__(self, graph: ir.Graph) -> None:
        self._graph = graph
        alive = needed(graph)
        self.operands: dict[ir.Node, list[ir.Value]] = {}
        self._users: dict[ir.Node, list[ir.Node]] = {}
        for node in graph:
            if node not in alive or is_constant(node):
                continue
            self.operands[node] = [value for value in operands_of(node) if not _is_constant(value)]
            self._users[node] = []
            for producer in self._producers(node):
                self._users[producer].append(node)
        self.work = {node: estimate(node) for node in self.operands}

    def with_followers(self, reasons: Mapping[ir.Node, str]) -> dict[ir.Node, str]:
        """Return the nodes on the host, with those that must be there because the device cannot take their inputs."""
        hosted = {node: reason for node, reason in reasons.items() if node in self.operands}
        for node, operands in self.operands.items():
            if node in hosted:
                continue
            for value in operands:
                producer = value.producer()
                if (producer is None or producer in hosted) and not can_cross(value):
                    hosted[node] = f"its input {value.name} {_why_not_on_device(value)}"
                    break
        return hosted

    def with_fewer_islands(self, hosted: Mapping[ir.Node, str]) -> dict[ir.Node, str] | None:
        """Return the nodes on the host, with islands of the device added; None if that gives no fewer partitions.

        All that are small enough are tried first, then half of them, and so on, then each of them alone: one at a time
        would take a time that grows with the square of their number.
        """
        levels, first = self._best(hosted)
        before = _cost(levels, first)[1]
        islands = self._islands(levels, hosted)
        count = len(islands)
        while count > 1:
            fewer = self._without(islands[:count], hosted)
            if before - _cost(*self._best(fewer))[1] >= 2 * count - 2:  # each joins the partitions around it
                return fewer
            count //= 2
        for nodes in islands:
            fewer = self._without([nodes], hosted)
            if _cost(*self._best(fewer))[1] < before:
                return fewer
        return None

    def _islands(self, levels: Mapping[ir.Node, int], hosted: Mapping[ir.Node, str]) -> list[list[ir.Node]]:
        """Return the partitions of the device that can be given up, the one with the least work first."""
        latest = self._latest(levels, hosted)
        partitions: dict[int, list[ir.Node]] = {}
        for node, level in levels.items():
            if node not in hosted and latest[node] == level:
                partitions.setdefault(level, []).append(node)
        total = sum(work for node, work in self.work.items() if node not in hosted)
        islands = []
        for work, level in sorted(
            (sum(self.work[node] for node in nodes), level) for level, nodes in partitions.items()
        ):
            if work > min(total // _ISLAND_SHARE, _ISLAND_WORK):
                break
            total -= work
            islands.append(partitions[level])
        return islands

    def _without(self, islands: Iterable[Iterable[ir.Node]], hosted: Mapping[ir.Node, str]) -> dict[ir.Node, str]:
        added = dict.fromkeys(chain.from_iterable(islands), "too little work for a partition of its own")
        return self.with_followers({**hosted, **added})

    def partitions(self, hosted: Mapping[ir.Node, str]) -> Iterator[Partition]:
        levels, first = self._best(hosted)
        results = dict.fromkeys(self._graph.outputs)
        constants = [value for value in results if _is_constant(value)]
        used_at: dict[ir.Value, set[int]] = {}
        for node, operands in self.operands.items():
            for value in operands:
                used_at.setdefault(value, set()).add(levels[node])
        members: dict[int, list[ir.Node]] = {}
        for node in self.operands:
            members.setdefault(levels[node], []).append(node)
        for level, nodes in sorted(members.items()):
            computed = dict.fromkeys(value for node in nodes for value in node.outputs)
            inputs = dict.fromkeys(value for node in nodes for value in self.operands[node] if value not in computed)
            outputs = [value for value in computed if value in results or used_at.get(value, set()) - {level}]
            side = first if level % 2 == 0 else first.other
            if side is Side.HOST:  # which can return constants
                outputs += constants
                constants = []
            yield Partition(side, tuple(nodes), tuple(inputs), tuple(outputs))

    def _best(self, hosted: Mapping[ir.Node, str]) -> tuple[dict[ir.Node, int], Side]:
        """Return the levels with the fewest partitions on the device, then in all, and the side of the first one."""
        both = [(self._levels(hosted, first), first) for first in (Side.HOST, Side.DEVICE)]
        return min(both, key=lambda each: _cost(*each))

    def _levels(self, hosted: Mapping[ir.Node, str], first: Side) -> dict[ir.Node, int]:
        """Return the earliest partition of each node; those of even index are on the side ``first``."""
        levels: dict[ir.Node, int] = {}
        for node in self.operands:
            earliest = max((levels[producer] for producer in self._producers(node)), default=0)
            odd = (node in hosted) != (first is Side.HOST)
            levels[node] = earliest + (earliest % 2 != odd)
        return levels

    def _latest(self, levels: Mapping[ir.Node, int], hosted: Mapping[ir.Node, str]) -> dict[ir.Node, int]:
        """Return the latest partition of each node on its side."""
        last = max(levels.values(), default=0)
        latest: dict[ir.Node, int] = {}
        for node in reversed(self.operands):
            limit = min((latest[user] for user in self._users[node]), default=last)
            latest[node] = limit - ((limit - levels[node]) % 2)
        return latest

    def _producers(self, node: ir.Node) -> Iterator[ir.Node]:
        for value in self.operands[node]:
            producer = value.producer()
            if producer is not None:
                yield producer


def _cost(levels: Mapping[ir.Node, int], first: Side) -> tuple[int, int]:
    """Return the numbers of partitions on the device and in all."""
    used = set(levels.values())
    return sum((level % 2 == 0) == (first is Side.DEVICE) for level in used), len(used)


def needed(graph: ir.Graph) -> set[ir.Node]:
    """Return the nodes of a graph that its outputs depend on."""
    return {node for node in leading_to(graph.outputs) if node.graph is graph}


def boundary(graph: ir.Graph, nodes: Iterable[ir.Node]) -> tuple[list[ir.Value], list[ir.Value]]:
    """Return the inputs of some nodes of a graph, without constants, and their outputs that are used elsewhere."""
    inside = set(nodes)
    computed = {value: None for node in graph if node in inside for value in node.outputs}
    taken = dict.fromkeys(
        value for node in graph if node in inside for value in operands_of(node) if not _is_constant(value)
    )
    wanted = {value for node in graph if node not in inside for value in operands_of(node)} | set(graph.outputs)
    return [value for value in taken if value not in computed], [value for value in computed if value in wanted]


def _is_constant(value: ir.Value) -> bool:
    producer = value.producer()
    return value.is_initializer() or (producer is not None and is_constant(producer))


def _why_not_on_device(value: ir.Value) -> str:
    if value.type is None:
        return "has no known type"
    if not isinstance(value.type, ir.TensorType):
        return f"is not a tensor but {value.type}"
    if value.dtype == ir.DataType.STRING:
        return "holds strings"
    producer = value.producer()
    return f"has no static shape{'' if producer is None else f': {producer.op_type} {producer.name} computes it'}"
