"""Partitioning a model by MIGraphX's verdicts, and compiling the device partitions.

A verdict on a node is a hypothesis about the whole. If a partition is rejected, or ends the process, although each of
its nodes was accepted, the smallest part that fails is found by bisection, and its nodes move to the host.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import onnx_ir as ir

from onnx_bridge.bundle.manifest.work_share import WorkShare
from onnx_bridge.conversion.compiling.compiler import CompilationFailed, Compiler
from onnx_bridge.conversion.compiling.forecast import CompileForecast
from onnx_bridge.conversion.compiling.retry import Ladder
from onnx_bridge.conversion.selecting_inputs import selecting
from onnx_bridge.conversion.sizes.buckets import value_text
from onnx_bridge.core.errors import InputError, RuntimeFailure
from onnx_bridge.migraphx import worker as workers
from onnx_bridge.migraphx.remote_program import RemoteProgram
from onnx_bridge.migraphx.runtime import Runtime
from onnx_bridge.reference.onnxruntime_errors import OnnxRuntimeError
from onnx_bridge.reference.reference import Reference
from onnx_bridge.samples import inputs as samplers
from onnx_bridge.verdicts.probed_runtime import ProbedRuntime
from onnx_bridge.verdicts.proof_counts import ProofCounts
from onnx_bridge.verdicts.run_time import growth
from passes.cleanup.infer_shapes import InferShapes
from passes.core.text import counted
from passes.graphs.cost import has_known_work
from passes.graphs.scopes import Scope, name_nodes
from passes.graphs.structural_inputs import structural_inputs
from passes.probing.long_partitions import cut
from passes.probing.node_verdicts import UNSOLVED, Finding, NodeVerdicts
from passes.probing.partition import Partitioning, Side, can_cross, extract, is_constant, needed, plan
from passes.probing.probe import Probe
from passes.rewriting.base import Context, Obstacle, Status, Unproven, Verdict

_DOES = {
    Status.REJECTED: "rejects it",
    Status.CRASHES: "crashes on it",
    Status.HANGS: "takes too long for it",
    Status.WRONG: "computes wrong numbers",
    Status.COSTLY: "makes too much of it",
}
_ON_HOST = "without --no-host they run on ONNX Runtime, in host partitions"
_LISTED = 3
"""The number of nodes that a note lists."""
_SHOWN = 8
"""The number of elements of a value that a note shows."""


@dataclass
class Partitioned:
    """A model in partitions.

    Attributes:
        plan: the partitions, and why nodes are on the host.
        programs: the program of each partition; None for a host partition.
        elsewhere: the programs of the device partitions for a GPU elsewhere, if they are wanted.
        error: why the model cannot run; None if it can.
        environment: the variables that MIGraphX needed in addition to compile the programs.
        verdicts: the verdicts on the nodes that MIGraphX accepts, or may accept as parts of the whole.
    """

    plan: Partitioning
    programs: list[RemoteProgram | None] = field(default_factory=list)
    elsewhere: list[RemoteProgram | None] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    error: RuntimeFailure | None = None
    environment: dict[str, str] = field(default_factory=dict)
    verdicts: Mapping[ir.Node, Verdict] = field(default_factory=dict)

    @property
    def proofs(self) -> ProofCounts:
        """The number of nodes on the device that are proven by themselves, by level."""
        nodes = [
            node for partition in self.plan.partitions if partition.side is Side.DEVICE for node in partition.nodes
        ]
        return ProofCounts.of(self.verdicts[node] for node in nodes if node in self.verdicts)

    def forecast(self, runtime: Runtime) -> CompileForecast:
        """Return the forecast of the time to compile the programs."""
        on_device = [partition.nodes for partition in self.plan.partitions if partition.side is Side.DEVICE]
        return CompileForecast.of(on_device, runtime)

    @property
    def problem(self) -> str | None:
        return None if self.error is None else str(self.error)

    @property
    def share(self) -> WorkShare:
        """The share of the estimated work on MIGraphX."""
        hosted, work = self.plan.reasons, self.plan.work
        return WorkShare.of((node not in hosted, 1, work[node], int(not has_known_work(node))) for node in work)


def with_inferred_types(model: ir.Model) -> ir.Model:
    """Name the nodes of a model, and infer the types and shapes of its values, in place.

    Probes need them, and so do the borders of partitions; the pipeline need not have inferred them.
    """
    name_nodes(Scope(model, model.graph))
    if not all(map(can_cross, (value for node in model.graph for value in node.outputs))):
        InferShapes().run(model, Context())
    return model


def partition(
    model: ir.Model,
    verdicts: ProbedRuntime,
    *,
    host: bool = True,
    one_program: bool = False,
    compiler: Compiler | None = None,
    ladder: Ladder | None = None,
    elsewhere: Callable[[Mapping[str, str]], Compiler] | None = None,
) -> Partitioned:
    """Partition a model, and compile its device partitions.

    Args:
        model: the cleaned model, `with_inferred_types`.
        host: whether there may be host partitions; otherwise the need for one is an error.
        one_program: whether consecutive nodes on the device must be one program, however long.
        compiler: a compiler of the same model; default: one that only parses.
        ladder: the attempts after MIGraphX crashes, hangs or runs out of memory; keep it open while programs are in
            use.
        elsewhere: makes the compiler for a GPU elsewhere, given the variables that the first one needs.

    Returns:
        The partitions, with an error if the model cannot run: MIGraphX's, or that neither it nor ONNX Runtime can run a
        node.

    Raises:
        RuntimeFailure: MIGraphX failed in a way that says nothing about the model.
    """
    compiler = compiler or Compiler(model, workers.shared(verdicts.runtime))
    judged = judge(model, verdicts)
    partitioned = _Attempts(model, compiler, ladder, dict(judged.reasons), one_program, elsewhere).run(host)
    partitioned.verdicts = judged.verdicts
    if partitioned.error is not None:
        return partitioned
    if ladder is not None and ladder.rung is not None:
        partitioned.environment = ladder.rung.environment
        partitioned.notes += [ladder.note] if ladder.note else []
    if (programs := partitioned.plan.cuts + 1) > 1:
        partitioned.notes.append(
            f"MIGraphX's part is cut into {programs} programs: the time to compile one grows with the square of the "
            f"number of its instructions, and is now {partitioned.forecast(verdicts.runtime)}"
        )
    partitioned.error = _check_host(model, partitioned.plan)
    if partitioned.error is None and not partitioned.plan.wholly_on_device:
        partitioned.notes = [_summary(partitioned), *partitioned.notes]
        partitioned.notes += _inputs_to_freeze(model)
    return partitioned


@dataclass
class _Attempts:
    """Compiles partitions, and moves nodes to the host (``reasons`` says why), until MIGraphX accepts the rest."""

    model: ir.Model
    compiler: Compiler
    ladder: Ladder | None
    reasons: dict[ir.Node, str]
    one_program: bool = False
    elsewhere: Callable[[Mapping[str, str]], Compiler] | None = None
    notes: list[str] = field(default_factory=list)
    made_only: bool = False

    def run(self, host: bool) -> Partitioned:
        worker = self.compiler.worker
        first: CompilationFailed | None = None
        while True:
            planned = plan(self.model, self.reasons, made_only=self.made_only)
            partitioned = Partitioned(
                planned if self.one_program else cut(planned, growth(worker.runtime)), notes=self.notes
            )
            if not host and not partitioned.plan.wholly_on_device:
                runs = _check_host(self.model, partitioned.plan) is None
                partitioned.error = _host_forbidden(partitioned.plan, _ON_HOST if runs else None)
                return partitioned
            try:
                partitions = partitioned.plan.partitions
                partitioned.programs = [self.compiler.compile(partition) for partition in partitions]
                if self.elsewhere is not None:
                    rung = self.ladder.rung if self.ladder else None
                    compiler = self.elsewhere(rung.environment if rung else {})
                    device = (partition for partition in partitions if partition.side is Side.DEVICE)
                    partitioned.elsewhere = [compiler.compile(partition) for partition in device]
                return partitioned
            except CompilationFailed as failed:
                here = failed.compiler is self.compiler
                first = first or failed if here else failed
                next_worker = (
                    self.ladder.climb(failed.error, compiling=failed.compiling) if here and self.ladder else None
                )
                self.compiler.worker = next_worker or worker
                if next_worker:
                    continue
            assert first is not None
            if not self._without_failing_part(first):
                partitioned.error = first.compiler.described(first.error)
                return partitioned
            first = None

    def _without_failing_part(self, failed: CompilationFailed) -> bool:
        """Move what fails to the host, and return whether there was anything to move."""
        if failed.accidental:
            raise failed.compiler.described(failed.error) from None
        part = failed.compiler.smallest_failing_part(failed)
        if part:
            what = failed.error.what
            self.reasons |= dict.fromkeys(part, f"MIGraphX accepts each node of it, but not all together: {what}")
            gpu = failed.compiler.gpu
            where = f" for {gpu.architecture.name}" if gpu else ""
            self.notes.append(f"MIGraphX rejects {_named(part)}{where}, although it accepts each node: {what}")
            return True
        if not self.made_only:  # the cause may be an output that is a constant, which no node accounts for
            self.made_only = True
            return True
        return False


@dataclass(frozen=True)
class Judged:
    """The nodes of the main graph: why MIGraphX cannot run some, and the verdicts on the others."""

    reasons: Mapping[ir.Node, str]
    verdicts: Mapping[ir.Node, Verdict]


def judge(model: ir.Model, verdicts: ProbedRuntime) -> Judged:
    """Judge the nodes of the main graph.

    Nodes that cannot be probed because a shape is unknown may run: MIGraphX may infer shapes that ONNX cannot, so that
    the model is tried as a whole.
    """
    asked = NodeVerdicts(verdicts, Scope(model, model.graph))
    alive = needed(model.graph)
    findings = asked.of_nodes([node for node in model.graph if node in alive and not is_constant(node)])
    failing = {node: finding for node, finding in findings.items() if finding.fails}
    reasons = {node: _why(finding) for node, finding in failing.items() if not _may_try(finding.probe)}
    for cluster in asked.failing_clusters(alive - failing.keys()):
        if reasons.keys().isdisjoint(cluster.nodes):
            reasons[cluster.nodes[0]] = _why(cluster)  # the first is the cheapest to move
    return Judged(
        {node: reasons[node] for node in findings if node in reasons},
        {node: _verdict(finding) for node, finding in findings.items() if node not in reasons},
    )


def _verdict(finding: Finding) -> Verdict:
    """Return the verdict on a node that may run."""
    problem = finding.probe.problem
    return finding.verdict if problem is None else Verdict(Status.OK, unproven=Unproven(Obstacle.SHAPE, problem))


def _why(finding: Finding) -> str:
    if finding.probe.problem is not None:
        return finding.probe.problem
    together = f" together with {finding.nodes[-1].name}" if len(finding.nodes) > 1 else ""
    rules = finding.nodes[-1].metadata_props.get(UNSOLVED)
    unsolved = "" if rules is None else f"; {rules}"
    judge = finding.verdict.by or "MIGraphX"
    return f"{judge} {_DOES[finding.verdict.status]}{together}: {finding.verdict.message}{unsolved}"


def _may_try(probe: Probe) -> bool:
    """Return whether unknown shapes are the only obstacle to a probe."""
    if probe.problem is None or probe.randomness is not None:
        return False
    values = (*probe.inputs, *probe.outputs)
    tensors = all(value.type is None or isinstance(value.type, ir.TensorType) for value in values)
    numeric = tensors and all(value.dtype != ir.DataType.STRING for value in values)
    return numeric and not all(map(can_cross, probe.inputs))


def _check_host(model: ir.Model, partitioning: Partitioning) -> RuntimeFailure | None:
    """Return why ONNX Runtime rejects a host partition; None if it accepts all of them."""
    for partition in partitioning.partitions:
        if partition.side is not Side.HOST:
            continue
        inputs, outputs = ([str(value.name) for value in values] for values in (partition.inputs, partition.outputs))
        try:
            Reference(extract(model, inputs, outputs))
        except InputError as error:
            named = error.names if isinstance(error, OnnxRuntimeError) else lambda *_: False
            guilty = [node for node in partition.nodes if named(node.op_type, node.name)] or list(partition.nodes)
            reason = partitioning.reasons[guilty[0]] if guilty else "MIGraphX cannot take it"
            what = f"neither MIGraphX nor ONNX Runtime can run the node: {reason}; {error.what}"
            return RuntimeFailure(what, where=f"node {_named(guilty)}", hint=error.hint)
    return None


def _host_forbidden(partitioning: Partitioning, hint: str | None) -> RuntimeFailure:
    listed = "; ".join(f"{node.op_type} {node.name} ({reason})" for node, reason in partitioning.reasons.items())
    if not listed:
        what = "outputs that are constants or inputs cannot go through MIGraphX"
    else:
        what = (
            f"{len(partitioning.reasons)} of {counted(len(partitioning.work), 'node')} cannot run on MIGraphX: {listed}"
        )
    return RuntimeFailure(what, hint=hint)


def _summary(partitioned: Partitioned) -> str:
    reasons, causes = partitioned.plan.reasons, partitioned.plan.causes
    listed = listed_reasons(reasons, causes)
    if not reasons:
        return "outputs that are constants or inputs, which MIGraphX cannot take, go through ONNX Runtime"
    if len(reasons) == len(partitioned.plan.work):
        return f"the whole model runs on ONNX Runtime, and nothing on MIGraphX: {listed}"
    share = f"{partitioned.share.rest:.2%} of the estimated work"
    return f"{len(reasons)} of {counted(len(partitioned.plan.work), 'node')}, {share}, run on ONNX Runtime: {listed}"


def listed_reasons(reasons: Mapping[ir.Node, str], causes: Collection[ir.Node]) -> str:
    """Return the first nodes with their reasons, the causes of the others first, and how many more there are."""
    first = sorted(reasons, key=lambda node: node not in causes)[:_LISTED]
    listed = "; ".join(f"{node.op_type} {node.name} ({reasons[node]})" for node in first)
    return listed + (f"; and {len(reasons) - _LISTED} more" if len(reasons) > _LISTED else "")


def _inputs_to_freeze(model: ir.Model) -> list[str]:
    """Return notes on the inputs without whose values MIGraphX cannot know shapes, with what to type."""
    notes = []
    if names := structural_inputs(model):
        example = " ".join(f"--freeze {shlex.quote(_example(model, name))}" for name in names)
        notes.append(
            f"{', '.join(names)}: shapes within the model depend on the values of these inputs, which MIGraphX needs "
            f"as constants; freeze them, as in {example}, or with a sample, --freeze {names[0]}=@SAMPLE.npz"
        )
    chosen = selecting(model)
    for value in (value for value in model.graph.inputs if value.name in chosen):
        texts = [value_text(value, number) for number in chosen[str(value.name)]]
        frozen = " or ".join(f"--freeze {value.name}={text}" for text in texts)
        notes.append(
            f"{value.name} selects between branches: convert it into a folder, with a program for each of its values "
            f"(--bucket {value.name}={','.join(texts)}), or for one of them, {frozen}"
        )
    return notes


def _example(model: ir.Model, name: str) -> str:
    """Return ``NAME=VALUE`` with a generated value of an input."""
    try:
        spec = next(spec for spec in samplers.specs(model) if spec.name == name)
        array = np.asarray(samplers.generate([spec])[0][name])
    except InputError:  # another input has a type that no sample has
        return f"{name}=VALUE"
    return f"{name}={json.dumps(array.tolist(), separators=(',', ':'))}" if array.size <= _SHOWN else f"{name}=VALUE"


def _named(nodes: Sequence[ir.Node]) -> str:
    more = f" and {len(nodes) - _LISTED} more" if len(nodes) > _LISTED else ""
    return ", ".join(str(node.name) for node in nodes[:_LISTED]) + more
