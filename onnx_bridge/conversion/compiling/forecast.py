"""A forecast of the time that MIGraphX takes to compile the programs of a model, before it compiles."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

import onnx_ir as ir

from onnx_bridge.core.progress import duration
from onnx_bridge.migraphx.runtime import Runtime
from onnx_bridge.verdicts.run_time import growth
from passes.core.text import counted
from passes.graphs import lineage
from passes.graphs.traversal import with_nested
from passes.probing.instructions import instructions, of_node

_SHARE, _NAMED = 0.1, 3
"""The least share of all instructions of a node that is named, and the most nodes that are."""


@dataclass(frozen=True)
class CompileForecast:
    """The forecast for some programs.

    Attributes:
        seconds: the processor's time for compiling and saving them for ``ref``; kernels of a GPU come on top.
        instructions: the number of MIGraphX's instructions in them.
        programs: the number of programs.
        costs: the instructions of the nodes of the original model that many come from, the most first.
        target: the target that the seconds are of.
    """

    seconds: float
    instructions: int
    programs: int
    costs: dict[str, int]
    target: str = "ref"

    @classmethod
    def of(cls, programs: Sequence[Sequence[ir.Node]], runtime: Runtime) -> CompileForecast:
        """Return the forecast for programs, each given by its nodes."""
        sizes = [instructions(nodes) for nodes in programs]
        origins: Counter[str] = Counter()
        for node in chain.from_iterable(programs):
            origins[next(iter(lineage.origin(node)), str(node.name))] += sum(map(of_node, with_nested([node])))
        costs = {name: count for name, count in origins.most_common(_NAMED) if count > max(_SHARE * sum(sizes), 100)}
        return cls(growth(runtime) * sum(size**2 for size in sizes), sum(sizes), len(sizes), costs)

    def __str__(self) -> str:
        about = duration(self.seconds) if self.seconds >= 1 else "a second or less"
        several = f" in {self.programs} programs" if self.programs > 1 else ""
        costs = ", ".join(f"{count:,} of {name}" for name, count in self.costs.items())
        return f"about {about} for {counted(self.instructions, 'instruction')}{several}{f' ({costs})' * bool(costs)}"
