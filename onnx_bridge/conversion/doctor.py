"""What a runtime makes of a model before anything is compiled, node by node: the verb ``doctor``."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import onnx_ir as ir

from onnx_bridge.conversion.clean import clean
from onnx_bridge.conversion.partition import Partitioned, partition, with_inferred_types
from onnx_bridge.core.values import Array
from onnx_bridge.migraphx import runtime as runtimes
from onnx_bridge.model import io as models
from onnx_bridge.model import provenance
from onnx_bridge.model.int8_forecast import forecast
from onnx_bridge.verdicts.probed_runtime import ProbedRuntime
from passes.core import graphs
from passes.core.base import Status
from passes.core.graphs import Scope
from passes.core.pipeline import Step
from passes.target.probe import Probe

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

AS_IS, REWRITTEN, REMOVED, HOST = "as it is", "rewritten", "removed", "host partition"

_SAVING_FACTOR = 4.1
"""MIGraphX's peak of memory while it saves a program, as a multiple of the weights (measured: 1.77 GB for 438 MB)."""
_BASE_BYTES = 150 * 2**20
"""What its process takes without a model."""


@dataclass(frozen=True)
class NodeFinding:
    """One node of the model as it was given.

    Attributes:
        name: its name.
        operator: with its domain, where that is not ONNX's own.
        module: the PyTorch module that it comes from, where the exporter wrote that down.
        verdict: what the runtime makes of it as it is: a `passes.core.base.Status`, or ``unknown`` where it cannot be
        asked. message: the runtime's words, or why it cannot be asked.
        plan: what becomes of it: `AS_IS`, `REWRITTEN`, `REMOVED` or `HOST`.
        by: the passes that rewrite or remove it, or why it is on the host.
    """

    name: str
    operator: str
    module: str
    verdict: str
    message: str
    plan: str
    by: str = ""


@dataclass(frozen=True)
class Diagnosis:
    """What `doctor` found.

    Attributes:
        path: the model's file; None for a model in memory.
        runtime: which MIGraphX was asked.
        facts: of the file: IR version, opsets, open sizes, subgraphs, foreign domains, shadowed names.
        nodes: every node but constants.
        partitions: what the bundle would be made of: the side and the number of nodes of each partition.
        share: of the estimated work on MIGraphX, from 0 to 1.
        kernels: how many convolutions and matrix products the gpu target will run in int8, fp8, int4 weights or float.
        memory: bytes that MIGraphX will take at most, predicted.
        parsed: whether MIGraphX has parsed all of its partitions as a whole.
        problem: why not, or why the model will not run.
        notes: what else the user should know.
        path_fixed: where the rewritten model was written; None where it was not.
    """

    path: str | None
    runtime: str
    facts: dict[str, Any]
    nodes: list[NodeFinding]
    partitions: list[dict[str, Any]]
    share: float
    kernels: dict[str, int]
    memory: int
    parsed: bool
    problem: str = ""
    notes: list[str] = field(default_factory=list)
    path_fixed: str | None = None

    @property
    def passed(self) -> bool:
        """Whether everything will run."""
        return self.parsed and not self.problem

    def to_json(self) -> dict[str, Any]:
        """As JSON values."""
        return {
            **{key: value for key, value in asdict(self).items() if key != "nodes"},
            "passed": self.passed,
            "totals": self.totals(),
            "nodes": [asdict(each) for each in self.nodes],
        }

    def totals(self) -> dict[str, int]:
        """How many nodes there are by what becomes of them."""
        counts = Counter(each.plan for each in self.nodes)
        return {plan: counts[plan] for plan in (AS_IS, REWRITTEN, REMOVED, HOST)}

    def render(self, *, verbose: bool = False) -> RenderableType:
        """As tables: by operator, or, if ``verbose``, by node."""
        from rich.console import Group

        totals = ", ".join(f"{count} {plan}" for plan, count in self.totals().items())
        partitions = " → ".join(f"{each['side']} ({each['nodes']} nodes)" for each in self.partitions) or "none"
        lines = [
            "",
            *(f"{name}: {value}" for name, value in self.facts.items()),
            f"nodes: {totals}",
            f"partitions: {partitions}; {self.share:.1%} of the work on MIGraphX",
            f"products: {', '.join(f'{count} in {kernel}' for kernel, count in self.kernels.items()) or 'none'}",
            f"memory: about {self.memory / 2**30:.1f} GiB while MIGraphX saves the program",
            *(f"note: {note}" for note in self.notes),
            self._conclusion(),
        ]
        return Group(self._by_node() if verbose else self._by_operator(), *lines)

    def _conclusion(self) -> str:
        fixed = f"; the rewritten model is {self.path_fixed}" if self.path_fixed else ""
        if not self.passed:
            return f"[red]it will not run[/]: {self.problem}{fixed}"
        host = ", with ONNX Runtime on the host" if any(each["side"] == "host" for each in self.partitions) else ""
        return f"[green]everything will run[/]{host}: {self.runtime} has parsed the whole of it{fixed}"

    def _by_operator(self) -> RenderableType:
        table = _table("operator", "nodes", "verdict", "what becomes of it", "MIGraphX says")
        groups: dict[str, list[NodeFinding]] = {}
        for each in self.nodes:
            groups.setdefault(each.operator, []).append(each)
        # what stands in the way comes first, then what is most frequent
        for operator, group in sorted(groups.items(), key=lambda item: (_rank(item[1]), -len(item[1]))):
            verdicts = Counter(each.verdict for each in group)
            plans = Counter(f"{each.plan}{f': {each.by}' if each.plan == REWRITTEN else ''}" for each in group)
            messages = dict.fromkeys(each.message for each in group if each.message)
            table.add_row(operator, str(len(group)), _counted(verdicts), _counted(plans), next(iter(messages), ""))
        return table

    def _by_node(self) -> RenderableType:
        table = _table("node", "operator", "module", "verdict", "what becomes of it", "MIGraphX says")
        for each in self.nodes:
            plan = f"{each.plan}{f': {each.by}' if each.by else ''}"
            table.add_row(each.name, each.operator, each.module, each.verdict, plan, each.message)
        return table


def doctor(
    model: str | os.PathLike[str] | ir.Model,
    out: str | os.PathLike[str] | None = None,
    *,
    pipeline: str = "default",
    dims: Mapping[str, int] | None = None,
    shapes: Mapping[str, Sequence[int]] | None = None,
    freeze: Mapping[str, Array | str] | None = None,
    host: bool = True,
    cache: bool = True,
    runtime: str | None = None,
    progress: Callable[[str], None] | None = None,
) -> Diagnosis:
    """Ask the runtime about every node of a model, and say what the pipeline will do about what it rejects.

    Args:
        model: an ONNX file, or a model in memory, which is left as it is.
        out: where to write the rewritten model; None writes nothing.
        pipeline: the passes that `convert` would run.
        dims: sizes of symbolic dimensions by name; those left open become 1.
        shapes: whole shapes by input name.
        freeze: inputs that become constant, by name: an array, or a value as JSON.
        host: whether nodes may run on the host; if not, the first of them is a problem.
        cache: whether to use verdicts of earlier runs.
        runtime: which MIGraphX (see `onnx_bridge.migraphx.runtime.find`).
        progress: told what is being done.

    Raises:
        InputError: the model, the pipeline, a dimension or an input is wrong, or ``out`` cannot be written.
        RuntimeNotFound: there is no MIGraphX to ask.
    """
    tell = progress or (lambda _stage: None)
    found = runtimes.find(runtime)
    target = ProbedRuntime(found, cache=cache)
    tell("load")
    loaded = model.clone() if isinstance(model, ir.Model) else models.load(model)
    facts = _facts(loaded)
    for scope in graphs.scopes(loaded):
        graphs.name_nodes(scope)  # so that both of the following know the nodes by the same names
    before = clean(loaded, pipeline="infer-shapes", dims=dims, shapes=shapes, freeze=freeze, default_dim=1)
    tell("ask about every node")
    verdicts = _verdicts(before.model, target)
    after = clean(
        loaded,
        out,
        pipeline=pipeline,
        dims=dims,
        shapes=shapes,
        freeze=freeze,
        default_dim=1,
        target=target,
        progress=progress,
    )
    tell("parse")
    partitioned = partition(with_inferred_types(after.model), target, host=host)
    fates = _Fates(after.model, after.steps, partitioned)
    nodes = [
        NodeFinding(str(node.name), provenance.operator(node), provenance.module(node), *verdict, *fates.of(node))
        for node, verdict in verdicts.items()
    ]
    weights = sum(value.const_value.nbytes for value in after.model.graph.initializers.values() if value.const_value)
    return Diagnosis(
        path=None if isinstance(model, ir.Model) else str(Path(model)),
        runtime=f"MIGraphX {found.version}",
        facts=facts,
        nodes=nodes,
        partitions=[{"side": each.side.value, "nodes": len(each.nodes)} for each in partitioned.plan.partitions],
        share=partitioned.share,
        kernels=forecast(after.model).kernels(),
        memory=int(_BASE_BYTES + _SAVING_FACTOR * weights),
        parsed=partitioned.problem is None,
        problem=partitioned.problem or "",
        notes=[*after.notes, *partitioned.notes],
        path_fixed=str(out) if out is not None else None,
    )


def _verdicts(model: ir.Model, target: ProbedRuntime) -> dict[ir.Node, tuple[str, str]]:
    """Verdict and words on each node but constants, in order; on those of subgraphs as well."""
    scope = Scope(model, model.graph)
    probes = {node: Probe.of([node], scope) for node in scope.nodes() if graphs.constant_of(node) is None}
    possible = {node: probe for node, probe in probes.items() if probe.problem is None}
    found = dict(zip(possible, target.verdicts(list(possible.values())), strict=True))
    return {
        node: (found[node].status.value, found[node].message) if node in found else _unasked(probe)
        for node, probe in probes.items()
    }


def _unasked(probe: Probe) -> tuple[str, str]:
    """What is known of a probe that was not put to the runtime."""
    return "unknown" if probe.randomness is None else Status.WRONG.value, str(probe.problem)


class _Fates:
    """What became of the nodes of a model in a pipeline, and where their successors run."""

    def __init__(self, after: ir.Model, steps: Sequence[Step], partitioned: Partitioned) -> None:
        self._successors: dict[str, list[ir.Node]] = {}
        self._reasons = {
            inner: reason for node, reason in partitioned.plan.reasons.items() for inner in graphs.with_nested([node])
        }
        for scope in graphs.scopes(after):
            for node in scope.nodes():
                for name in graphs.origin(node):
                    self._successors.setdefault(name, []).append(node)
        self._removers = {
            name: step.name for step in reversed(steps) for rewrite in step.result.rewrites for name in rewrite.before
        }

    def of(self, node: ir.Node) -> tuple[str, str]:
        """What becomes of a node, and by what."""
        name = str(node.name)
        successors = self._successors.get(name, [])
        if not successors:
            return REMOVED, self._removers.get(name, "")
        reasons = dict.fromkeys(self._reasons[each] for each in successors if each in self._reasons)
        if reasons:
            return HOST, "; ".join(reasons)
        makers = dict.fromkeys(maker for each in successors if (maker := each.metadata_props.get(graphs.PASS)))
        return (REWRITTEN, ", ".join(makers)) if makers else (AS_IS, "")


def _facts(model: ir.Model) -> dict[str, Any]:
    """What of the file itself may stand in the way."""
    scope = Scope(model, model.graph)
    nodes = list(scope.nodes())
    sizes = {
        str(dim.value or f"{value.name}[{index}]"): None
        for value in model.graph.inputs
        if value.shape is not None
        for index, dim in enumerate(value.shape)
        if isinstance(dim, ir.SymbolicDim)
    }
    foreign = Counter(node.domain for node in nodes if node.domain)
    names = Counter(value.name for graph in scope.graphs() for value in _named(graph))
    facts = {
        "IR version": model.ir_version,
        "opsets": ", ".join(f"{domain or 'ai.onnx'} {version}" for domain, version in scope.opset_imports.items()),
        "open sizes": ", ".join(sizes),
        "subgraphs": sum(1 for _ in scope.graphs()) - 1,
        "functions": len(model.functions),
        "other domains": _counted(foreign),
        "shadowed names": sum(1 for count in names.values() if count > 1),
    }
    return {name: value for name, value in facts.items() if value}


def _named(graph: ir.Graph) -> Iterator[ir.Value]:
    values = dict.fromkeys(
        (*graph.inputs, *graph.initializers.values(), *(out for node in graph for out in node.outputs))
    )
    return (value for value in values if value.name)


def _rank(group: Sequence[NodeFinding]) -> int:
    order = (HOST, REWRITTEN, REMOVED, AS_IS)
    bad = any(each.verdict not in (Status.OK.value, "unknown") for each in group)
    return min(order.index(each.plan) for each in group) + (0 if bad else len(order))


def _counted(counts: Counter[str]) -> str:
    if len(counts) == 1:
        return next(iter(counts))
    return ", ".join(f"{count} {name}" for name, count in counts.most_common())


def _table(*headings: str) -> Table:
    from rich.table import Table

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for heading in headings:
        table.add_column(heading, overflow="fold", justify="right" if heading == "nodes" else "left")
    return table
