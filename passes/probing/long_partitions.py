"""Cut device partitions of many nodes into programs that the device's compiler is done with in time.

    20,000 nodes        →  20 partitions of about 1,000 nodes each, one after another

MIGraphX compiles and saves a program in a time that grows with the square of its instructions: 0.2 seconds for 1,000
nodes, 40 for 5,000, many minutes for 20,000. Between programs, values pass through the host, so that only what could
hardly be compiled otherwise is cut, and where few values cross. A node with subgraphs stays whole.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import accumulate, chain, pairwise

import onnx_ir as ir

from passes.graphs.traversal import operands_of
from passes.probing.partition import Partition, Partitioning, Side, can_cross

MOST = 8000
"""The most nodes of a partition that stays whole."""
PIECE = 1000
"""The most nodes of a program that a longer one is cut into, where values can cross there."""


def cut(plan: Partitioning) -> Partitioning:
    """Cut the device partitions of a plan that have more than `MOST` nodes."""
    return replace(plan, partitions=tuple(chain.from_iterable(map(_pieces, plan.partitions))))


def _pieces(partition: Partition) -> Iterator[Partition]:
    if partition.side is Side.HOST or len(partition.nodes) <= MOST:
        yield partition
        return
    nodes, wanted = partition.nodes, dict.fromkeys(partition.outputs)
    operands = [operands_of(node) for node in nodes]
    producers = {value: index for index, node in enumerate(nodes) for value in node.outputs}
    last_use = {value: index for index, values in enumerate(operands) for value in values}
    given = set(partition.inputs)
    borders = list(_borders(producers, last_use, len(nodes)))
    for start, end in pairwise(borders):
        used = dict.fromkeys(chain.from_iterable(operands[start:end]))
        inputs = [value for value in used if value in given or producers.get(value, start) < start]
        outputs = [v for node in nodes[start:end] for v in node.outputs if v in wanted or last_use.get(v, 0) >= end]
        if end == len(nodes):  # also returns what no node makes
            outputs += [value for value in wanted if value not in producers]
            inputs += [value for value in wanted if value in given and value not in used]
        yield Partition(partition.side, nodes[start:end], tuple(inputs), tuple(outputs))


def _borders(producers: dict[ir.Value, int], last_use: dict[ir.Value, int], count: int) -> Iterator[int]:
    """Return where pieces begin, and the end: the narrowest places in the second half of what a piece may be."""
    change, blocked = [0] * (count + 1), [0] * (count + 1)
    for value, index in producers.items():
        user = last_use.get(value, index)
        for step in (change, *((blocked,) if not can_cross(value) else ())):
            step[index + 1] += 1  # it crosses the places after the node that makes it
            step[user + 1] -= 1  # up to the one before its last user
    width, closed = list(accumulate(change)), list(accumulate(blocked))
    start = 0
    yield start
    while count - start > PIECE:
        places = (place for place in range(start + PIECE // 2, count) if not closed[place])
        first = next(places, None)
        if first is None:
            break
        near = [first, *(place for place in places if place <= start + PIECE)]
        start = min(near, key=lambda place: (width[place], -place))
        yield start
    yield count
