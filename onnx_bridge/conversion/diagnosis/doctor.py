"""A diagnosis of a model before anything is compiled: the verb ``doctor``."""

from __future__ import annotations

import functools
import os
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

import onnx_ir as ir

from onnx_bridge.conversion.cleaning import check_ranks, rewrite
from onnx_bridge.conversion.compiling.compiler import Compiler
from onnx_bridge.conversion.compiling.gpu_forecast import GpuForecast
from onnx_bridge.conversion.compiling.partition import Partitioned, partition, with_inferred_types
from onnx_bridge.conversion.diagnosis.diagnosis import (
    MIGRAPHX,
    NOT_NEEDED,
    UNKNOWN,
    Diagnosis,
    NodeDiagnosis,
    PlannedAction,
    tallied,
)
from onnx_bridge.conversion.diagnosis.raw_session import raw_session
from onnx_bridge.core.errors import InputError, RuntimeNotFound
from onnx_bridge.core.progress import Progress, Stage, silent
from onnx_bridge.migraphx import runtime as runtimes
from onnx_bridge.migraphx import worker as workers
from onnx_bridge.migraphx.architectures import named_architecture
from onnx_bridge.migraphx.gpu.compiler import GpuCompiler
from onnx_bridge.migraphx.gpu.rehearse import rehearsal
from onnx_bridge.migraphx.rehearsal.depth import Rehearsal
from onnx_bridge.migraphx.runtime import Runtime
from onnx_bridge.migraphx.targets import gpu_architecture, resolve_target, target_architecture
from onnx_bridge.model import io as models
from onnx_bridge.model import provenance
from onnx_bridge.model.int8_forecast import forecast
from onnx_bridge.provider import provider as providers
from onnx_bridge.reference.reference import load_error
from onnx_bridge.requests.conversion import CleanRequest, DoctorRequest
from onnx_bridge.samples.dimensions import named_dims
from onnx_bridge.verdicts.probed_runtime import ProbedRuntime
from passes.graphs import lineage
from passes.graphs.dependencies import unchanged_graphs
from passes.graphs.scopes import Scope, name_nodes, scopes, weight_bytes
from passes.graphs.tensors import constant_of
from passes.graphs.traversal import with_nested
from passes.isolation.limits import limited
from passes.legalize.legalize import Legalize
from passes.probing.node_verdicts import made_by_rule
from passes.probing.probe import Probe
from passes.rewriting.base import Proof, Status, Verdict
from passes.rewriting.pipeline import Pipeline, Step

if TYPE_CHECKING:
    from onnx_bridge.requests.keywords import DoctorOptions

_SAVING_FACTOR = 4.1
"""MIGraphX's peak memory while it saves a program, as a multiple of the weights (measured: 1.77 GB for 438 MB)."""
_BASE_BYTES = 150 * 2**20
"""The memory of MIGraphX's process without a model."""


def doctor(
    model: str | os.PathLike[str] | ir.Model,
    out: str | os.PathLike[str] | None = None,
    *,
    progress: Progress | None = None,
    **options: Unpack[DoctorOptions],
) -> Diagnosis:
    """Get the runtime's verdict on every node of a model, and the planned action of the pipeline.

    The target ``gpu`` is rehearsed on a machine without one: what ``ref`` computes right must be right after the gpu
    target's passes, too. If it is an architecture, as ``gpu:gfx942``, it must compile for that, kernels included.

    Args:
        model: an ONNX file, or a model in memory, which is not modified.
        out: the file to write the rewritten model to; None writes nothing.
        progress: called with each stage and each pass.
        options: the fields of `onnx_bridge.requests.conversion.DoctorRequest`.

    Raises:
        InputError: the model, the pipeline, a dimension or an input is wrong, or ``out`` cannot be written.
        RuntimeNotFound: there is no MIGraphX.
        NativeFailure: ONNX Runtime exceeded a limit.
    """
    return run(model, None if out is None else Path(out), DoctorRequest.of(options), progress)


def run(
    model: str | os.PathLike[str] | ir.Model, out: Path | None, request: DoctorRequest, progress: Progress | None = None
) -> Diagnosis:
    """Diagnose a model as a request says; errors are those of `doctor`."""
    with limited(request.limits):
        return _run(model, out, request, progress or silent)


def _run(
    model: str | os.PathLike[str] | ir.Model, out: Path | None, request: DoctorRequest, progress: Progress
) -> Diagnosis:
    runtime = runtimes.find(request.runtime)
    passes, notes = _rehearsal(request.target, runtime)
    provider = providers.shared(runtime=runtime) if request.application else None
    rehearsed = passes is not None or request.target == "gpu"
    aim = request.target if rehearsed else resolve_target(request.target, runtime)
    target = ProbedRuntime(
        runtime,
        cache=request.cache,
        budget=request.probe_budget,
        timeout=request.timeout,
        compile_for=aim.partition(":")[0],
        rehearsal=passes,
        provider=provider,
    )
    progress(Stage.LOAD)
    loaded = models.owned(model)
    facts = _facts(loaded)
    for scope in scopes(loaded):
        name_nodes(scope)  # so that nodes have the same names before and after the passes
    refusal = load_error(loaded)
    if refusal is not None:
        what = f"nothing can be compared, as ONNX Runtime does not take the model: {refusal.what}"
        notes.append(f"{what} ({refusal.hint})" if refusal.hint else what)
    session = None
    if provider is not None:
        progress("opening a session with the model as it is")
        session = raw_session(with_inferred_types(loaded.clone()), provider)
        notes.append(str(session))
    originals = [node for node in Scope(loaded, loaded.graph).nodes() if constant_of(node) is None]
    about = [(str(node.name), provenance.operator(node), provenance.module(node)) for node in originals]
    pipeline = Pipeline.parse(request.pipeline)
    names = [item if isinstance(item, str) else item.name for item in pipeline.items]
    first = names.index(Legalize.name) if Legalize.name in names else len(names)
    before = rewrite(loaded, request.cleaning, Pipeline(pipeline.items[:first]), target=target, progress=progress)
    progress("judging every node")
    verdicts = _Verdicts(with_inferred_types(before.model.clone()), target)
    after = rewrite(before.model, CleanRequest(), Pipeline(pipeline.items[first:]), target=target, progress=progress)
    if out is not None:
        models.save(after.model, out)
    progress(Stage.PARSE)
    compiler, gpu = Compiler(with_inferred_types(after.model), workers.shared(runtime)), None
    if request.compile_time:
        gpu = _for_counting(passes, request.target)
        progress(Stage.COMPILE)
    elsewhere = None if gpu is None else functools.partial(compiler.elsewhere, gpu)
    partitioned = partition(after.model, target, host=request.host, compiler=compiler, elsewhere=elsewhere)
    actions = _Actions(after.model, [*before.steps, *after.steps], partitioned)
    nodes = [
        NodeDiagnosis(name, operator, module, *verdicts.of(name, actions), *actions.of(name))
        for name, operator, module in about
    ]
    problem = partitioned.problem
    try:
        check_ranks(after.model)
    except InputError as error:
        problem = problem or str(error)
    weights = weight_bytes(after.model)
    return Diagnosis(
        path=None if isinstance(model, ir.Model) else str(Path(model)),
        runtime=f"MIGraphX {runtime.version}",
        facts=facts,
        nodes=nodes,
        partitions=[{"side": part.side.value, "nodes": len(part.nodes)} for part in partitioned.plan.partitions],
        share=partitioned.share,
        proofs=partitioned.proofs,
        kernels=forecast(after.model, partitioned.plan.on_device, target_architecture(aim)).kernels(),
        compiling=partitioned.forecast(runtime),
        target=aim,
        gpu=None if gpu is None or problem else GpuForecast.of(after.model, partitioned, gpu),
        memory=int(_BASE_BYTES + _SAVING_FACTOR * weights),
        parsed=partitioned.problem is None,
        problem=problem or "",
        notes=[*before.notes, *after.notes, *partitioned.notes, *notes],
        path_fixed=None if out is None else str(out),
        comparable=refusal is None,
        session=session,
    )


def _rehearsal(target: str, runtime: Runtime) -> tuple[Rehearsal | None, list[str]]:
    """Return the rehearsal of the gpu target if there is no GPU here, and a sentence on what was rehearsed."""
    if named_architecture(target) is None and (target != "gpu" or (gpu_architecture() and "gpu" in runtime.targets)):
        return None, []
    try:
        passes = rehearsal(target, runtime)
    except RuntimeNotFound as error:
        if target != "gpu":
            raise
        return None, [f"the gpu target is not rehearsed: {error}"]
    return passes, [] if passes is None else [passes.note]


def _for_counting(passes: Rehearsal | None, target: str) -> GpuCompiler:
    """Return the compiler whose kernels can be counted; raises InputError for another rehearsal."""
    if isinstance(passes, GpuCompiler):
        return passes
    what = f"kernels are counted for a GPU that is not here, and the target is {target}"
    raise InputError(what, where="--compile-time", hint="name an architecture, as --target gpu:gfx942")


_Told = tuple[str, str, Proof, str, str]
"""A verdict as a diagnosis shows it: its status, message and proof, why it is not proven at real size, its judge."""


class _Verdicts:
    """The verdicts on the nodes of a model that is clean and not legalized yet, in subgraphs as well."""

    @unchanged_graphs()
    def __init__(self, model: ir.Model, target: ProbedRuntime) -> None:
        scope = Scope(model, model.graph)
        probes = {node: Probe.of([node], scope) for node in scope.nodes() if constant_of(node) is None}
        possible = {node: probe for node, probe in probes.items() if probe.problem is None}
        judged = dict(zip(possible, target.verdicts(list(possible.values())), strict=True))
        self._told: dict[str, list[_Told]] = {}
        for node, probe in probes.items():
            for name in lineage.origin(node):
                self._told.setdefault(name, []).append(_told(probe, judged.get(node)))

    def of(self, name: str, actions: _Actions) -> _Told:
        """Return the verdict on a node of the original model: on what is compiled, or else on what is legalized."""
        told = [_told(None, verdict) for verdict in actions.verdicts(name)]
        action, by = actions.of(name)
        if not told and (action is not PlannedAction.REMOVED or by == Legalize.name):
            told = self._told.get(name, [])
        return max(told, key=_badness, default=(NOT_NEEDED, "", Proof.NONE, "", MIGRAPHX))


def _badness(told: _Told) -> tuple[int, int]:
    status, _, proof, *_ = told
    return (status != Status.OK.value) + (status not in (Status.OK.value, UNKNOWN)), list(Proof).index(proof)


def _told(probe: Probe | None, verdict: Verdict | None) -> _Told:
    if verdict is None:  # the node cannot be probed
        assert probe is not None
        return UNKNOWN if probe.randomness is None else Status.WRONG.value, str(probe.problem), Proof.NONE, "", MIGRAPHX
    return verdict.status.value, verdict.message, verdict.proof, str(verdict.unproven or ""), verdict.by or MIGRAPHX


class _Actions:
    """The actions of a pipeline on the nodes of a model, and where their replacements run."""

    def __init__(self, after: ir.Model, steps: Sequence[Step], partitioned: Partitioned) -> None:
        self._replacements: dict[str, list[ir.Node]] = {}
        self._reasons = {
            inner: reason for node, reason in partitioned.plan.reasons.items() for inner in with_nested([node])
        }
        self._verdicts = {
            inner: verdict for node, verdict in partitioned.verdicts.items() for inner in with_nested([node])
        }
        for scope in scopes(after):
            for node in scope.nodes():
                for name in lineage.origin(node):
                    self._replacements.setdefault(name, []).append(node)
        self._removers = {
            name: step.name for step in reversed(steps) for rewrite in step.result.rewrites for name in rewrite.before
        }

    def verdicts(self, name: str) -> list[Verdict]:
        """Return the verdicts on what MIGraphX gets for a node of the original model; none if that is legalized."""
        replacements = self._replacements.get(name, [])
        if any(node in self._reasons or made_by_rule(node) for node in replacements):
            return []
        return [self._verdicts[node] for node in replacements if node in self._verdicts]

    def of(self, name: str) -> tuple[PlannedAction, str]:
        """Return the action on a node of the original model, and the passes or the reason."""
        replacements = self._replacements.get(name, [])
        if not replacements:
            return PlannedAction.REMOVED, self._removers.get(name, "")
        reasons = dict.fromkeys(
            self._reasons[replacement] for replacement in replacements if replacement in self._reasons
        )
        if reasons:
            return PlannedAction.HOST, "; ".join(reasons)
        makers = dict.fromkeys(filter(None, map(_maker, replacements)))
        return (PlannedAction.REWRITTEN, ", ".join(makers)) if makers else (PlannedAction.UNCHANGED, "")


def _maker(node: ir.Node) -> str:
    """Return the pass that made a node; empty if it is the model's."""
    return node.metadata_props.get(lineage.PASS, "")


def _facts(model: ir.Model) -> dict[str, Any]:
    """Return properties of the file that may be obstacles."""
    scope = Scope(model, model.graph)
    nodes = list(scope.nodes())
    dims = (dim for value in model.graph.inputs for dim in named_dims(value) or ())
    sizes = dict.fromkeys(dim for dim in dims if isinstance(dim, str))
    foreign = Counter(node.domain for node in nodes if node.domain)
    names = Counter(value.name for value in dict.fromkeys(scope.values()) if value.name)
    facts = {
        "IR version": model.ir_version,
        "opsets": ", ".join(f"{domain or 'ai.onnx'} {version}" for domain, version in scope.opset_imports.items()),
        "open sizes": ", ".join(sizes),
        "subgraphs": sum(1 for _ in scope.graphs()) - 1,
        "functions": len(model.functions),
        "other domains": tallied(foreign),
        "shadowed names": sum(1 for count in names.values() if count > 1),
    }
    return {name: value for name, value in facts.items() if value}
