"""Cutting a model into partitions as MIGraphX's verdicts want it, and having MIGraphX take those that are its own.

A verdict on a node is a hypothesis about the whole. Where MIGraphX rejects a partition, or crashes on it, though it
accepted every node of it, the smallest piece that fails is found by bisection, and its nodes go to the host.
"""

from __future__ import annotations

import contextlib
import math
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import onnx_ir as ir

from onnx_bridge.bundle.submodel import parse, part_file
from onnx_bridge.conversion.precision import QuantizationError, Quantizer
from onnx_bridge.conversion.retry import RECOVERABLE, Ladder
from onnx_bridge.core.delta_debug import bisect_first
from onnx_bridge.core.errors import (
    InputError,
    OutOfMemory,
    ProgramLost,
    RuntimeFailure,
    RuntimeNotFound,
    WorkerCrashed,
    WorkerTimeout,
)
from onnx_bridge.core.progress import Stage as Phase
from onnx_bridge.migraphx import worker as workers
from onnx_bridge.migraphx.compile_options import NO_OPTIONS, CompileOptions
from onnx_bridge.migraphx.remote_program import RemoteProgram
from onnx_bridge.migraphx.worker import Worker
from onnx_bridge.reference.onnxruntime_errors import OnnxRuntimeError
from onnx_bridge.reference.reference import Reference
from onnx_bridge.verdicts.probed_runtime import ProbedRuntime
from passes.analysis.structural_inputs import structural_inputs
from passes.cleanup.infer_shapes import InferShapes
from passes.core.base import Context, Status
from passes.core.graphs import Scope, name_nodes
from passes.target.judge import Failure, Judge
from passes.target.partition import Partition, Plan, Side, boundary, can_cross, extract, is_constant, needed, plan
from passes.target.probe import Probe

Timed = Callable[[Phase], contextlib.AbstractContextManager[None]]

_SAYS = {
    Status.REJECTED: "MIGraphX rejects it",
    Status.CRASHES: "MIGraphX crashes on it",
    Status.HANGS: "MIGraphX does not end with it",
    Status.WRONG: "MIGraphX computes something else",
}
_LIMITS = (OutOfMemory, WorkerTimeout, RuntimeNotFound, ProgramLost)
"""Failures that say nothing about a node."""
_LISTED = 3
"""How many nodes a note names."""
_PATIENCE = 60.0
"""Seconds that the search for a piece that fails may be foreseen to take."""


@dataclass
class Partitioned:
    """A model in partitions.

    Attributes:
        plan: the partitions, and why what is on the host is there.
        programs: for each partition its program; None on the host.
        notes: what the user should know, in sentences.
        error: why it will not run; None where it will.
        environment: the variables that MIGraphX had to be given for its programs.
    """

    plan: Plan
    programs: list[RemoteProgram | None] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    error: RuntimeFailure | None = None
    environment: dict[str, str] = field(default_factory=dict)

    @property
    def problem(self) -> str | None:
        """Why it will not run, in words."""
        return None if self.error is None else str(self.error)

    @property
    def share(self) -> float:
        """Of the estimated work, how much is done on MIGraphX; of the nodes, where nothing is estimated to be work."""
        work = self.plan.work
        total = sum(work.values())
        if not total:
            return 1 - len(self.plan.reasons) / len(work) if work else 1.0
        return 1 - sum(work[node] for node in self.plan.reasons) / total


def completed(model: ir.Model) -> ir.Model:
    """Give nodes names, and values the types and shapes that can be inferred, which the pipeline need not have done.

    About what is unknown, nothing can be asked; and what lies on a border of partitions is read from the model's file.
    """
    name_nodes(Scope(model, model.graph))
    if not all(map(can_cross, (value for node in model.graph for value in node.outputs))):
        InferShapes().run(model, Context())
    return model


def partition(
    model: ir.Model,
    target: ProbedRuntime,
    *,
    host: bool = True,
    compile_for: str | None = None,
    path: Path | None = None,
    timed: Timed | None = None,
    ladder: Ladder | None = None,
    quantize: Quantizer | None = None,
    options: CompileOptions = NO_OPTIONS,
) -> Partitioned:
    """Cut a model into partitions, and have MIGraphX parse, and perhaps compile, what it is to run.

    Args:
        model: cleaned, and then `completed`.
        target: the runtime.
        host: whether partitions may run on the host; where one would have to, that is the error.
        compile_for: a MIGraphX target; None only parses.
        path: where the model lies as a file, for MIGraphX to read as a whole.
        timed: entered with the name of what is done meanwhile.
        ladder: what is tried where MIGraphX crashes, hangs or runs out of memory; it must be held as long as the
            programs are needed. None tries nothing.
        quantize: what quantizes the programs between parsing and compiling.
        options: of compiling.

    Returns:
        What there is, with the error that stands in the way, if one does: MIGraphX's, or that neither it nor ONNX
        Runtime can run a node.
    """
    ground = workers.shared(target.runtime, options.environment)
    builder = _Builder(model, ground, compile_for, path, timed or _untimed, quantize, options.compile)
    reasons = judged(model, target)
    notes: list[str] = []
    made_only = False
    first_failed: _Failed | None = None
    while True:
        partitioned = Partitioned(plan(model, reasons, made_only=made_only), notes=notes)
        if not host and not partitioned.plan.wholly_on_device:
            partitioned.error = _forbidden(partitioned.plan)
            return partitioned
        try:
            partitioned.programs = [builder.build(each) for each in partitioned.plan.partitions]
            break
        except _Failed as failed:
            first_failed = first_failed or failed
            if ladder is not None and (worker := ladder.climb(failed.error, compiling=failed.compiling)) is not None:
                builder.worker = worker
                continue
            builder.worker = ground
            failed, first_failed = first_failed, None
            if _by_chance(failed.error):
                raise failed.error from None
            piece = builder.smallest(failed)
            if not piece and not made_only:  # it may be an output that is a constant, which no node accounts for
                made_only = True
                continue
            if not piece:
                partitioned.error = failed.error
                return partitioned
            said = f"MIGraphX accepts each node of it and not the whole: {failed.error.what}"
            reasons |= dict.fromkeys(piece, said)
            notes.append(f"MIGraphX does not take {_named(piece)}, though it accepts each node: {failed.error.what}")
    if ladder is not None and ladder.rung is not None:
        partitioned.environment = ladder.rung.environment
        notes += [ladder.note] if ladder.note else []
    partitioned.error = _check_host(model, partitioned.plan)
    if partitioned.error is None and not partitioned.plan.wholly_on_device:
        notes.insert(0, _summary(partitioned))
        if names := structural_inputs(model):
            notes.append(
                f"{', '.join(names)}: how the model computes depends on these inputs, which MIGraphX wants constant; "
                "freeze them with --freeze NAME=VALUE, or NAME=@SAMPLE.npz"
            )
    return partitioned


def judged(model: ir.Model, target: ProbedRuntime) -> dict[ir.Node, str]:
    """The nodes of the main graph that MIGraphX cannot run, and why.

    Nodes that it cannot be asked about for want of a shape are left to the attempt on the whole: MIGraphX may know
    shapes where ONNX's inference does not.
    """
    judge = Judge(target, Scope(model, model.graph))
    alive = needed(model.graph)
    nodes = [node for node in model.graph if node in alive and not is_constant(node)]
    alone = judge.failing_nodes(nodes)
    reasons = {node: _why(each) for node, each in alone.items() if not _may_try(each.probe)}
    for each in judge.failing_clusters(alive - alone.keys()):
        if reasons.keys().isdisjoint(each.nodes):
            reasons[each.nodes[0]] = _why(each)  # what comes first is the small part
    return {node: reasons[node] for node in nodes if node in reasons}


def _why(found: Failure) -> str:
    """A finding for the user."""
    if found.probe.problem is not None:
        return found.probe.problem
    together = f" together with {found.nodes[-1].name}" if len(found.nodes) > 1 else ""
    return f"{_SAYS[found.verdict.status]}{together}: {found.verdict.message}"


def _may_try(probe: Probe) -> bool:
    """Whether shapes alone keep a probe from being asked."""
    if probe.problem is None or probe.randomness is not None:
        return False
    values = (*probe.inputs, *probe.outputs)
    tensors = all(value.type is None or isinstance(value.type, ir.TensorType) for value in values)
    plain = tensors and all(value.dtype != ir.DataType.STRING for value in values)
    return plain and not all(map(can_cross, probe.inputs))


def _by_chance(error: RuntimeFailure) -> bool:
    """Whether it says nothing about a node; the system, or somebody, ends processes by SIGKILL."""
    return isinstance(error, _LIMITS) or (isinstance(error, WorkerCrashed) and error.signal is signal.SIGKILL)


class _Failed(Exception):
    """A partition that MIGraphX does not take.

    Attributes:
        nodes: the partition's.
        error: MIGraphX's.
        compiling: whether it was parsed and did not compile.
        seconds: how long the attempt took.
    """

    def __init__(self, nodes: Sequence[ir.Node], error: RuntimeFailure, compiling: bool, seconds: float) -> None:
        super().__init__(error)
        self.nodes, self.error, self.compiling, self.seconds = nodes, error, compiling, seconds


@dataclass
class _Builder:
    """Makes programs of partitions, and finds what it is in them that fails."""

    model: ir.Model
    worker: Worker
    compile_for: str | None
    path: Path | None
    timed: Timed
    quantize: Quantizer | None = None
    options: Mapping[str, bool] = field(default_factory=dict)

    def build(self, partition: Partition) -> RemoteProgram | None:
        """The program of a partition; None for one on the host."""
        if partition.side is Side.HOST:
            return None
        graph = self.model.graph
        ends = [value for value in graph.inputs if not value.is_initializer()], list(graph.outputs)
        whole = self.path if (list(partition.inputs), list(partition.outputs)) == ends else None
        started, compiling = time.perf_counter(), False
        try:
            with self.timed(Phase.PARSE):
                program = self._parse(partition.inputs, partition.outputs, whole)
            if self.quantize is not None and self.compile_for is not None:
                with self.timed(Phase.QUANTIZE):
                    self.quantize(program, partition)
            compiling = True
            if self.compile_for is not None:
                with self.timed(Phase.COMPILE):
                    program.compile(self.compile_for, **self.options)
        except RuntimeFailure as error:
            if isinstance(error, QuantizationError) or (
                isinstance(error, _LIMITS) and not isinstance(error, RECOVERABLE)
            ):
                raise
            raise _Failed(partition.nodes, error, compiling, time.perf_counter() - started) from error
        return program

    def smallest(self, failed: _Failed) -> list[ir.Node]:
        """The smallest piece of a partition, found by halving, that fails in the same step; empty where the search is
        too long, or the failure does not show again."""
        nodes = list(failed.nodes)
        if not nodes:
            return []
        attempts = 2 * math.ceil(math.log2(len(nodes) + 1)) + 2
        if failed.seconds * attempts > _PATIENCE:
            return []

        def fails(piece: Sequence[ir.Node]) -> bool:
            return bool(piece) and self._fails(piece, failed.compiling)

        if not fails(nodes):
            return []
        end = bisect_first(range(1, len(nodes) + 1), lambda count: fails(nodes[:count]))
        start = end - bisect_first(range(1, end + 1), lambda count: fails(nodes[end - count : end]))
        piece = nodes[start:end]
        related = _leading_to(piece)
        return related if fails(related) else piece

    def _fails(self, piece: Sequence[ir.Node], compiling: bool) -> bool:
        inputs, outputs = boundary(self.model.graph, piece)
        if not all(map(can_cross, inputs)):
            return False  # what is cut through here cannot be given to MIGraphX, which proves nothing
        try:
            program = self._parse(inputs, outputs, None)
            if compiling and self.compile_for is not None:
                program.compile(self.compile_for, **self.options)
        except _LIMITS:
            raise
        except RuntimeFailure:
            return True
        return False

    def _parse(self, inputs: Sequence[ir.Value], outputs: Sequence[ir.Value], whole: Path | None) -> RemoteProgram:
        part = part_file(self.model, _names(inputs), _names(outputs))
        with part if whole is None else contextlib.nullcontext(whole) as path:
            program = parse(self.worker, path, {str(each.name): _sizes(each) for each in inputs})
        given = len(program.get_output_shapes())
        if given != len(outputs):
            names = ", ".join(str(value.name) for value in outputs)
            raise RuntimeFailure(f"MIGraphX gives {given} outputs where there are {len(outputs)} ({names})")
        for value, shape in zip(outputs, program.get_output_shapes(), strict=True):
            wanted = _sizes(value)
            if shape.dynamic:
                raise RuntimeFailure(f"MIGraphX leaves the shape of {value.name} open")
            if wanted is not None and None not in wanted and list(shape.lens) != (wanted or [1]):
                raise RuntimeFailure(f"MIGraphX gives {value.name} the shape {list(shape.lens)} instead of {wanted}")
        return program


def _names(values: Sequence[ir.Value]) -> list[str]:
    return [str(each.name) for each in values]


def _sizes(value: ir.Value) -> list[int | None] | None:
    return None if value.shape is None else [dim if isinstance(dim, int) else None for dim in value.shape]


def _leading_to(piece: Sequence[ir.Node]) -> list[ir.Node]:
    """The nodes of a piece that its last one depends on, and that one."""
    inside, found, pending = set(piece), set(), [piece[-1]]
    while pending:
        node = pending.pop()
        found.add(node)
        pending += [each for each in node.predecessors() if each in inside and each not in found]
    return [node for node in piece if node in found]


def _check_host(model: ir.Model, found: Plan) -> RuntimeFailure | None:
    """Why ONNX Runtime does not take a partition; None where it takes all of them."""
    for each in found.partitions:
        if each.side is not Side.HOST:
            continue
        try:
            Reference(extract(model, _names(each.inputs), _names(each.outputs)))
        except InputError as error:
            named = error.names if isinstance(error, OnnxRuntimeError) else lambda *_: False
            guilty = [node for node in each.nodes if named(node.op_type, node.name)] or list(each.nodes)
            reason = found.reasons[guilty[0]] if guilty else "MIGraphX cannot take it"
            what = f"neither MIGraphX nor ONNX Runtime can run it: {reason}; {error.what}"
            return RuntimeFailure(what, where=f"node {_named(guilty)}", hint=error.hint)
    return None


def _forbidden(found: Plan) -> RuntimeFailure:
    listed = "; ".join(f"{node.op_type} {node.name} ({reason})" for node, reason in found.reasons.items())
    if not listed:
        what = "outputs that are constants or inputs cannot go through MIGraphX"
    else:
        what = f"{len(found.reasons)} of {len(found.work)} nodes cannot run on MIGraphX: {listed}"
    return RuntimeFailure(what, hint="without --no-host they run on ONNX Runtime, in partitions of their own")


def _summary(partitioned: Partitioned) -> str:
    reasons = partitioned.plan.reasons
    listed = "; ".join(f"{node.op_type} {node.name} ({said})" for node, said in list(reasons.items())[:_LISTED])
    more = f"; and {len(reasons) - _LISTED} more" if len(reasons) > _LISTED else ""
    if not reasons:
        return "outputs that are constants or inputs, which MIGraphX cannot take, go through ONNX Runtime"
    if len(reasons) == len(partitioned.plan.work):
        return f"nothing of it runs on MIGraphX, all of it on ONNX Runtime: {listed}{more}"
    share = f"{1 - partitioned.share:.2%} of the estimated work"
    return f"{len(reasons)} of {len(partitioned.plan.work)} nodes, {share}, run on ONNX Runtime: {listed}{more}"


def _named(nodes: Sequence[ir.Node]) -> str:
    more = f" and {len(nodes) - _LISTED} more" if len(nodes) > _LISTED else ""
    return ", ".join(str(node.name) for node in nodes[:_LISTED]) + more


@contextlib.contextmanager
def _untimed(_stage: Phase) -> Iterator[None]:
    yield
