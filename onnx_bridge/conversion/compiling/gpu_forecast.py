"""The cost of compiling for a GPU: the kernels of compiled programs, what a card would tune, and the nodes behind both.

    18 kernels, 9 of them distinct   →  9 to compile, about half a second of a core each; 9 repeats
    12 products, 7 of them distinct  →  7 problems, for each of which MLIR compiles and times 20 to 40 candidates

Nodes are named by a run: what a kernel computes is a value of the model, and its nodes lie between that and the values
that it takes. A call of a library, whose result is not looked at, is named by the products there.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import onnx_ir as ir

from onnx_bridge.bundle.device import to_tensors
from onnx_bridge.conversion.compiling.partition import Partitioned
from onnx_bridge.core.errors import BridgeError
from onnx_bridge.core.schema import JsonRecord
from onnx_bridge.core.values import Array
from onnx_bridge.migraphx.gpu.compiler import GpuCompiler
from onnx_bridge.migraphx.gpu.kernels import Step, kernels, steps
from onnx_bridge.migraphx.remote_program import RemoteProgram
from onnx_bridge.reference.comparison.inside import InsideModel
from onnx_bridge.reference.comparison.tolerances import Tolerances
from onnx_bridge.reference.likeness import likenesses
from onnx_bridge.samples import inputs as samples
from passes.core.text import counted
from passes.graphs import lineage
from passes.graphs.cost import work
from passes.graphs.traversal import leading_to
from passes.probing.partition import Partition, Side

_CANDIDATES = (20, 40)
"""The candidates of a product or convolution in rocMLIR's list for quick tuning, at least and at most."""
_TUNED = re.compile(r"gpu::.*(gemm|dot|convolution)")
"""Calls that MLIR makes kernels of, if MIGraphX is built with it, and that libraries have several kernels for."""
Places = frozenset[int]


@dataclass
class DistinctStep:
    """A kernel or a call in some programs.

    Attributes:
        name: the kernel's name, which MIGraphX makes of the operators in it, or MIGraphX's name of the call.
        shapes: the sizes of what it takes and gives.
        code_bytes: the size of its code object; 0 for a call.
        uses: how often the programs have it.
        nodes: the nodes of the original model that it computes, all uses together.
    """

    name: str
    shapes: str
    code_bytes: int
    uses: int = 0
    nodes: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class GpuForecast(JsonRecord):
    """The cost of compiling programs for one architecture.

    Attributes:
        architecture: the GPU's ("gfx942").
        compiler: what compiled them, in words.
        kernels: the distinct kernels that MIGraphX generates, the largest code first.
        problems: the distinct products and convolutions, the most frequent first.
        unnamed: why nodes are not named; empty if they are.
    """

    in_json = ("candidates", "lines")

    architecture: str
    compiler: str
    kernels: list[DistinctStep]
    problems: list[DistinctStep]
    unnamed: str = ""

    @classmethod
    def of(cls, model: ir.Model, partitioned: Partitioned, gpu: GpuCompiler) -> GpuForecast:
        """Return the forecast for the programs of a cleaned model that were compiled for the GPU."""
        distinct: dict[bytes, DistinctStep] = {}
        unnamed = "" if gpu.computes else f"{gpu.architecture.name} is not emulated"
        device = [partition for partition in partitioned.plan.partitions if partition.side is Side.DEVICE]
        for partition, program in zip(device, partitioned.elsewhere, strict=True):
            assert program is not None
            found, returned = steps(program)
            nodes: Sequence[set[ir.Node]] = [set()] * len(found)
            try:
                known = {} if unnamed else _known(model, program, partition, found)
                nodes = nodes if unnamed else _nodes(partition, found, returned, known)
            except BridgeError as error:
                unnamed = error.what
            for step, computed in zip(found, nodes, strict=True):
                same = distinct.setdefault(step.identity, DistinctStep(step.name, step.shapes, len(step.code)))
                same.uses += 1
                origins = [name for node in partition.nodes if node in computed for name in lineage.origin(node)]
                same.nodes = [*dict.fromkeys([*same.nodes, *origins])]
        ranked = sorted(distinct.values(), key=lambda step: (-step.code_bytes, -step.uses))
        return cls(
            gpu.architecture.name,
            gpu.made_by,
            [step for step in ranked if step.code_bytes],
            [step for step in ranked if _TUNED.match(step.name)],
            unnamed,
        )

    @property
    def candidates(self) -> tuple[int, int]:
        """The candidates that a MIGraphX with MLIR compiles and times on a card by default, at least and at most."""
        least, most = (count * len(self.problems) for count in _CANDIDATES)
        return least, most

    @property
    def lines(self) -> list[str]:
        """The forecast in sentences."""
        kernels, problems = (sum(step.uses for step in some) for some in (self.kernels, self.problems))
        least, most = self.candidates
        repeats = kernels - len(self.kernels)
        lines = [
            f"for {self.architecture}, {counted(len(self.kernels), 'distinct kernel')}, about half a second of a core "
            f"each, by {self.compiler}; {counted(repeats, 'repeat')}, at no cost if compiled code is kept"
        ]
        if self.problems:
            lines.append(
                f"products and convolutions: {problems}, of which {len(self.problems)} distinct, here calls of "
                f"libraries, at no cost; on a card, with MLIR, {least} to {most} candidates, each compiled and timed, "
                "and ten times as many and more with exhaustive_tune"
            )
        return [*lines, *([f"the nodes are not named: {self.unnamed}"] if self.unnamed else [])]


def _known(model: ir.Model, program: RemoteProgram, partition: Partition, found: Sequence[Step]) -> dict[int, ir.Value]:
    """Return the value of the model that a kernel computes, by the kernel's place, if it is one.

    Raises:
        BridgeError: the program, or the model, cannot run.
    """
    sample = samples.generate(model)[0]
    inside = InsideModel(model, sample)
    inner = [value for node in partition.nodes for value in node.outputs if value.name in inside.names]
    by_name = {str(value.name): value for value in (*partition.inputs, *inner)}
    computed = {**sample, **inside.values(sample, [name for name in by_name if name not in sample])}
    arrays = {name: array for name in by_name if isinstance(array := computed[name], np.ndarray) and _varies(array)}
    traced = (place for place, step in enumerate(found) if step.traced)
    known = {}
    for place, kernel in zip(traced, kernels(program, to_tensors(program, computed)), strict=False):
        if names := [like.name for like in likenesses(kernel.output, arrays, Tolerances()) if not like.wrong.any()]:
            known[place] = by_name[names[-1]]
    return known


def _nodes(
    partition: Partition, found: Sequence[Step], returned: Sequence[Places], known: Mapping[int, ir.Value]
) -> list[set[ir.Node]]:
    """Return the nodes that each step computes, as they lie between known values."""
    before: list[set[int]] = []  # the steps before each, up to known ones

    def unknown(operands: Places) -> set[int]:
        direct = set(operands - known.keys())
        return direct.union(*(before[place] for place in direct))

    for step in found:
        before.append(unknown(step.operands))
    ends = [(value, found[place].operands, {place}) for place, value in known.items()]
    ends += [(value, operands, set()) for value, operands in zip(partition.outputs, returned, strict=False)]
    regions: list[list[set[ir.Node]]] = [[] for _ in found]
    for value, operands, own in ends:
        taken = operands.union(*(found[place].operands for place in unknown(operands)))
        given = {known[place] for place in taken if place in known} | set(partition.inputs)
        between = leading_to({value} - given, given.__contains__)
        for place in own | unknown(operands):
            regions[place].append(between)
    nodes: list[set[ir.Node]] = []
    for step, some, earlier in zip(found, regions, before, strict=True):
        for region in (set[ir.Node]().union(*some[:1]).intersection(*some), set[ir.Node]().union(*some)):
            likely = _likely(step, region)
            left = likely.difference(*(nodes[place] for place in earlier))
            if not earlier:
                left &= _depending(region, [known[operand] for operand in step.operands])
            if left:
                break
        nodes.append(left or likely)
    return nodes


def _likely(step: Step, region: set[ir.Node]) -> set[ir.Node]:
    """Return the products of a region for a call, those of its size if there are any; for a kernel the other nodes."""
    tuned = _TUNED.match(step.name) is not None
    kind = {node for node in region if (work(node).multiplied + work(node).convolved > 0) is tuned} or region
    shapes = {node: node.outputs[0].shape for node in kind}
    alike = {
        node for node, shape in shapes.items() if shape and shape.is_static() and math.prod(shape) == step.elements
    }
    return (tuned and alike) or kind


def _depending(region: set[ir.Node], values: list[ir.Value]) -> set[ir.Node]:
    """Return the nodes of a region that depend on some values, within the region."""
    depending: set[ir.Node] = set()
    while values:
        users = {usage.node for usage in values.pop().uses()} & region - depending
        depending |= users
        values += [value for node in users for value in node.outputs]
    return depending


def _varies(array: Array) -> bool:
    """Return whether an array can be told from others: its elements are not all the same."""
    return array.size > 0 and bool((array != array.flat[0]).any())
