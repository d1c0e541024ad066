"""A drawing of the graph around a node: its nodes, their places, and the edges between them.

The layout is Sugiyama's: each node is placed in a layer below all of its producers (longest path); edges that span
several layers pass through invisible nodes; within a layer, nodes are ordered by the mean position of their neighbours
(barycentre), sweeping down and up; an edge is a smooth curve from box to box.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from onnx_bridge.parity.checking.evidence import Network, NetworkNode

WIDTH, HEIGHT, GAP_X, GAP_Y, MARGIN = 168, 44, 18, 34, 10
"""Sizes of boxes and the gaps between them, in pixels."""
_SWEEPS = 6
_LETTERS = 22
"""The characters that fit into a box."""


@dataclass
class Box:
    """A node, or an input or output of the model; ``x`` and ``y`` are the upper left corner."""

    name: str
    title: str
    subtitle: str
    hint: str
    status: str
    x: float = 0.0
    y: float = 0.0


@dataclass(frozen=True)
class Drawing:
    """Boxes and edges (the ``d`` of an SVG path, with the name of the value), in a frame of this size."""

    width: float
    height: float
    boxes: tuple[Box, ...]
    lines: tuple[tuple[str, str], ...]
    hidden: int = 0


def around(network: Network, names: Collection[str], *, radius: int = 4, limit: int = 24) -> list[NetworkNode]:
    """Return the nodes within ``radius`` edges of the named ones, at most ``limit``, nearest first; in graph order."""
    makers = {value: node for node in network.nodes for value in node.outputs}
    users: dict[str, list[NetworkNode]] = {}
    for node in network.nodes:
        for value in node.inputs:
            users.setdefault(value, []).append(node)
    distances = {node.name: 0 for node in network.nodes if node.name in names}
    pending = deque(node for node in network.nodes if node.name in distances)
    while pending and len(distances) < limit:
        node = pending.popleft()
        if distances[node.name] == radius:
            continue
        before = [makers[value] for value in node.inputs if value in makers]
        for neighbour in (*before, *(user for value in node.outputs for user in users.get(value, ()))):
            if neighbour.name not in distances and len(distances) < limit:
                distances[neighbour.name] = distances[node.name] + 1
                pending.append(neighbour)
    return [node for node in network.nodes if node.name in distances]


def draw(network: Network, names: Collection[str], status: Mapping[str, str] | None = None) -> Drawing | None:
    """Draw the graph around named nodes; None if the network has none of them.

    ``status`` has a word for some nodes, which becomes the class of their box.
    """
    nodes = around(network, names)
    if not nodes:
        return None
    status = status or {}
    boxes = [
        Box(node.name, _cut(node.operator), _cut(node.name), _hint(node), status.get(node.name, "plain"))
        for node in nodes
    ]
    places = {node.name: index for index, node in enumerate(nodes)}
    makers = {value: places[node.name] for node in nodes for value in node.outputs}
    edges: dict[tuple[int, int], str] = {}
    ends: dict[tuple[str, str], int] = {}  # of the model: they are boxes, too

    def end(value: str, kind: str) -> int:
        if (value, kind) not in ends:
            ends[value, kind] = len(boxes)
            boxes.append(Box(value, _cut(value), kind, f"{kind} {value}", "end"))
        return ends[value, kind]

    for index, node in enumerate(nodes):
        for value in node.inputs:
            if value in makers:
                edges.setdefault((makers[value], index), value)
            elif value in network.inputs:
                edges.setdefault((end(value, "input"), index), value)
        for value in node.outputs:
            if value in network.outputs:
                edges.setdefault((index, end(value, "output")), value)
    layout = _Layout(len(boxes), list(edges))
    for box, (x, y) in zip(boxes, layout.places(), strict=False):
        box.x, box.y = x, y
    lines = tuple((layout.path(edge), value) for edge, value in edges.items())
    width = max(x for x, _ in layout.places()) + WIDTH + MARGIN
    height = max(box.y for box in boxes) + HEIGHT + MARGIN
    return Drawing(width, height, tuple(boxes), lines, len(network.nodes) - len(nodes))


def _cut(text: str) -> str:
    """Return the end of a name, which says more than its beginning, the module path."""
    return text if len(text) <= _LETTERS else f"…{text[1 - _LETTERS :]}"


def _hint(node: NetworkNode) -> str:
    origin = [name for name in node.origin if name != node.name]
    parts = [f"{node.operator} {node.name}", f"({', '.join(node.inputs)}) → {', '.join(node.outputs)}"]
    parts += [f"made by {node.made_by}{f' from {chr(44).join(origin)}' if origin else ''}"] if node.made_by else []
    return "\n".join(parts)


@dataclass
class _Layout:
    """The positions of ``count`` boxes, given acyclic edges from upper to lower ones."""

    count: int
    edges: list[tuple[int, int]]
    layers: list[list[int]] = field(default_factory=list)
    chains: dict[tuple[int, int], list[int]] = field(default_factory=dict)
    x: dict[int, float] = field(default_factory=dict)
    y: dict[int, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        depth = self._depths()
        self.layers = [[] for _ in range(max(depth) + 1)]
        for box, layer in enumerate(depth):
            self.layers[layer].append(box)
        above: dict[int, list[int]] = {}
        below: dict[int, list[int]] = {}
        number = self.count
        for edge in self.edges:
            chain = [edge[0]]
            for layer in range(depth[edge[0]] + 1, depth[edge[1]]):
                self.layers[layer].append(number)
                chain.append(number)
                number += 1
            chain.append(edge[1])
            self.chains[edge] = chain
            for upper, lower in pairwise(chain):
                below.setdefault(upper, []).append(lower)
                above.setdefault(lower, []).append(upper)
        self._place()
        for sweep in range(_SWEEPS):
            downward = sweep % 2 == 0
            neighbours = above if downward else below
            for boxes in self.layers if downward else self.layers[::-1]:
                boxes.sort(key=lambda box: _mean([self.x[other] for other in neighbours.get(box, [])], self.x[box]))
                self._spread(boxes, neighbours)
        left = min(self.x.values())
        self.x = {box: place - left + MARGIN for box, place in self.x.items()}

    def places(self) -> list[tuple[float, float]]:
        """Return the upper left corners of all boxes, followed by those of the invisible ones."""
        return [(self.x[box], self.y[box]) for box in sorted(self.x)]

    def path(self, edge: tuple[int, int]) -> str:
        """Return a curve from the bottom of a box to the top of another."""
        middle = [(self.x[box] + WIDTH / 2, self.y[box]) for box in self.chains[edge]]
        (x, y), *rest = middle
        y += HEIGHT
        parts = [f"M{x:.0f} {y:.0f}"]
        for index, (next_x, next_y) in enumerate(rest):
            bend = (next_y - y) / 2
            parts.append(f"C{x:.0f} {y + bend:.0f} {next_x:.0f} {next_y - bend:.0f} {next_x:.0f} {next_y:.0f}")
            x, y = next_x, next_y
            if index < len(rest) - 1:  # straight past the boxes of the layer
                y += HEIGHT
                parts.append(f"L{x:.0f} {y:.0f}")
        return "".join(parts)

    def _depths(self) -> list[int]:
        """Return the layer of each box: one below its lowest producer; inputs are just above their consumer."""
        above: dict[int, list[int]] = {}
        below: dict[int, list[int]] = {}
        for upper, lower in self.edges:
            above.setdefault(lower, []).append(upper)
            below.setdefault(upper, []).append(lower)
        depth: list[int | None] = [None] * self.count

        def of(box: int) -> int:
            if depth[box] is None:
                depth[box] = 1 + max((of(upper) for upper in above.get(box, ())), default=-1)
            return depth[box] or 0

        depths = [of(box) for box in range(self.count)]
        for box in range(self.count):
            if box not in above and box in below:
                depths[box] = min(depths[lower] for lower in below[box]) - 1
        return [depth - min(depths) for depth in depths]

    def _place(self) -> None:
        for layer, boxes in enumerate(self.layers):
            for index, box in enumerate(boxes):
                self.x[box] = (index - (len(boxes) - 1) / 2) * (WIDTH + GAP_X)
                self.y[box] = MARGIN + layer * (HEIGHT + GAP_Y)

    def _spread(self, layer: Sequence[int], neighbours: Mapping[int, list[int]]) -> None:
        """Move each box of a layer as close to its neighbours as the order and the gaps allow."""
        wanted = [_mean([self.x[other] for other in neighbours.get(box, [])], self.x[box]) for box in layer]
        step = WIDTH + GAP_X
        right = list(wanted)
        for index in range(1, len(right)):
            right[index] = max(right[index], right[index - 1] + step)
        left = list(wanted)
        for index in range(len(left) - 2, -1, -1):
            left[index] = min(left[index], left[index + 1] - step)
        for box, low, high in zip(layer, left, right, strict=True):  # both are apart enough, and so is their mean
            self.x[box] = (low + high) / 2


def _mean(numbers: Sequence[float], otherwise: float) -> float:
    return sum(numbers) / len(numbers) if numbers else otherwise
