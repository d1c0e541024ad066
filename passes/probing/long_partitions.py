"""Cut device partitions of many instructions into programs that the device's compiler is done with in time.

    20,000 nodes, 72 seconds        →  3 partitions of about 6,700 nodes, 24 seconds in all

MIGraphX compiles and saves a program in a time that grows with the square of its instructions, so that n programs take
an n-th of it. But values between programs pass through the host in each run: about half a millisecond for each program.
The number of programs is that with the least sum, if `RUNS` runs count as much as compiling; borders are where few
values cross. A node with subgraphs stays whole.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import accumulate, chain, pairwise, takewhile

import onnx_ir as ir

from passes.graphs.traversal import operands_of
from passes.probing.instructions import instructions
from passes.probing.partition import Partition, Partitioning, Side, can_cross

RUNS = 20_000
"""The number of runs of a program that its compilation pays for."""
_CROSSING = 5e-4
"""The seconds of a run that a further program takes."""


def cut(plan: Partitioning, growth: float) -> Partitioning:
    """Cut the device partitions of a plan.

    Args:
        growth: the seconds that compiling takes for each squared instruction.
    """
    pieces = (_pieces(partition, growth) for partition in plan.partitions)
    return replace(plan, partitions=tuple(chain.from_iterable(pieces)))


def _largest(total: int, growth: float) -> int:
    """Return the most instructions of a program: n programs take ``seconds`` / n, and n crossings in each run."""
    seconds = growth * total**2
    return math.ceil(total / max(round(math.sqrt(seconds / (RUNS * _CROSSING))), 1))


def _pieces(partition: Partition, growth: float) -> Iterator[Partition]:
    nodes, wanted = partition.nodes, dict.fromkeys(partition.outputs)
    sizes = [0] if partition.side is Side.HOST else [instructions([node]) for node in nodes]
    largest = _largest(sum(sizes), growth)
    if sum(sizes) <= largest:
        yield partition
        return
    operands = [operands_of(node) for node in nodes]
    producers = {value: index for index, node in enumerate(nodes) for value in node.outputs}
    last_use = {value: index for index, values in enumerate(operands) for value in values}
    given = set(partition.inputs)
    parts = list(pairwise(_borders(producers, last_use, sizes, largest)))
    apart = growth * sum(sum(sizes[start:end]) ** 2 for start, end in parts) + RUNS * _CROSSING * (len(parts) - 1)
    if apart >= growth * sum(sizes) ** 2:  # most instructions are those of one node
        yield partition
        return
    for start, end in parts:
        used = dict.fromkeys(chain.from_iterable(operands[start:end]))
        inputs = [value for value in used if value in given or producers.get(value, start) < start]
        outputs = [v for node in nodes[start:end] for v in node.outputs if v in wanted or last_use.get(v, 0) >= end]
        if end == len(nodes):  # also returns what no node makes
            outputs += [value for value in wanted if value not in producers]
            inputs += [value for value in wanted if value in given and value not in used]
        yield Partition(partition.side, nodes[start:end], tuple(inputs), tuple(outputs))


def _borders(
    producers: dict[ir.Value, int], last_use: dict[ir.Value, int], sizes: Sequence[int], largest: int
) -> Iterator[int]:
    """Return where pieces begin, and the end: the narrowest places in the second half of the largest piece."""
    count = len(sizes)
    change, blocked = [0] * (count + 1), [0] * (count + 1)
    for value, index in producers.items():
        user = last_use.get(value, index)
        for step in (change, *((blocked,) if not can_cross(value) else ())):
            step[index + 1] += 1  # it crosses the places after the node that makes it
            step[user + 1] -= 1  # up to the one before its last user
    width, closed = list(accumulate(change)), list(accumulate(blocked))
    before = list(accumulate(sizes, initial=0))
    start = 0
    yield start
    while before[count] - before[start] > largest:
        half = bisect_left(before, before[start] + largest / 2, start + 1)
        last = bisect_right(before, before[start] + largest) - 1
        places = (place for place in range(half, count) if not closed[place])
        first = next(places, None)
        if first is None:
            break
        near = [first, *takewhile(last.__ge__, places)]
        start = min(near, key=lambda place: (width[place], -place))
        yield start
    yield count
