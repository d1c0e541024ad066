"""Placing the nodes of a cleaned model: what the provider gets wrong is hidden from it, until all sessions are right.

A node is hidden if MIGraphX, or the provider, cannot run it, or if its shapes depend on the data; then the whole model
is asked. If no session can be created, or an output is wrong, the first node is hidden with which it is so: the model
up to that node fails, and up to the one before it does not.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import onnx_ir as ir

from onnx_bridge.conversion.compiling.partition import judge, with_inferred_types
from onnx_bridge.conversion.serving.trial import Trial
from onnx_bridge.core.errors import InputError
from onnx_bridge.provider.hidden import HIDDEN, LEAST_OPSET, claim_nothing, hide, shape_scalars
from onnx_bridge.provider.provider import MIGRAPHX, Provider, Session
from onnx_bridge.provider.runs import keep, runs
from onnx_bridge.samples.inputs import Sample
from onnx_bridge.verdicts.probed_runtime import ProbedRuntime
from passes.graphs.cost import estimate
from passes.graphs.scopes import Scope
from passes.probing.partition import Side, hosted, is_constant, plan
from passes.rewriting.base import Context, Verdict
from passes.specialize.convert_opset import ConvertOpset

_MOST = 64
"""The number of nodes that are hidden one by one; then all of the rest are."""
_WORTH = 100_000
"""The least estimated multiply-adds of a run that is kept on the provider."""


@dataclass
class Placed:
    """A model whose sessions with the provider are right.

    Attributes:
        model: the model, with its hidden nodes.
        reasons: why nodes run on the CPU, by name; those between them are hidden, too.
        verdicts: the verdicts on the nodes that are not.
    """

    model: ir.Model
    reasons: dict[str, str] = field(default_factory=dict)
    verdicts: Mapping[ir.Node, Verdict] = field(default_factory=dict)


def place(model: ir.Model, verdicts: ProbedRuntime, provider: Provider, samples: Sequence[Sample]) -> Placed:
    """Hide the nodes of a cleaned model that the provider must not run, in a copy of it.

    Args:
        model: the model, with static sizes, inferred types and named nodes.
        verdicts: the verdicts on its nodes, the provider's included.
        provider: the provider.
        samples: inputs on which sessions must be right.

    Raises:
        InputError: ONNX Runtime does not take the model even if it runs all nodes on the CPU.
    """
    with tempfile.TemporaryDirectory(prefix="onnx-bridge-") as folder:
        return _Placing(model, verdicts, Trial.of(model, provider, samples, Path(folder))).run()


class _Placing:
    def __init__(self, model: ir.Model, verdicts: ProbedRuntime, trial: Trial) -> None:
        self.model, self.verdicts, self.trial = model, verdicts, trial
        self.reasons: dict[str, str] = {}

    def run(self) -> Placed:
        judged = judge(self.model, self.verdicts)
        self.reasons = {str(node.name): why for node, why in hosted(self.model, judged.reasons).items()}
        while True:
            model, hidden = self._hidden()
            session, problem = self.trial.open(model)
            if problem is None:
                break
            nodes = [node for node in model.graph if HIDDEN not in node.metadata_props and not is_constant(node)]
            if self._converted():
                return self.run()
            few = len(self.reasons) <= _MOST
            failing = [self.trial.first_failing(model, nodes)] if few and nodes else nodes
            names = {str(node.name) for node in failing}
            if names <= self.reasons.keys():  # no Scan can hold what fails
                model, session = self._on_cpu()
                break
            self.reasons |= dict.fromkeys(names, problem)
        verdicts = {str(node.name): verdict for node, verdict in judged.verdicts.items()}
        kept = model if session is None else self._with_kept_runs(model, session)
        known = {node: verdicts[str(node.name)] for node in kept.graph if str(node.name) in verdicts}
        return Placed(kept, {name: why for name, why in self.reasons.items() if name in hidden}, known)

    def _on_cpu(self) -> tuple[ir.Model, Session | None]:
        """Return a copy of the model of which the provider claims nothing, and its session; raises InputError."""
        model = self.model.clone()
        claim_nothing(Scope(model, model.graph))
        session, problem = self.trial.open(model)
        if problem is not None:
            raise InputError(f"ONNX Runtime does not run the model even without its provider: {problem}")
        self.reasons |= {str(node.name): "the provider has to claim nothing" for node in model.graph}
        return model, session

    def _converted(self) -> bool:
        """Convert a model whose opset has no sequences; return whether that was needed. Raises InputError."""
        if Scope(self.model, self.model.graph).opset() >= LEAST_OPSET:
            return False
        ConvertOpset(LEAST_OPSET).run(self.model, Context())
        with_inferred_types(self.model)
        return True

    def _hidden(self) -> tuple[ir.Model, set[str]]:
        """Return a copy of the model in which the nodes with reasons are hidden, and the names of hidden nodes."""
        model = self.model.clone()
        scope = Scope(model, model.graph)
        reasons = {node: self.reasons[str(node.name)] for node in model.graph if str(node.name) in self.reasons}
        if scope.opset() < LEAST_OPSET and (reasons or any(map(_is_scalar, model.graph.outputs))):
            self._converted()
            return self._hidden()
        names: set[str] = set()
        for partition in plan(model, reasons).partitions:
            if partition.side is Side.HOST and hide(partition.nodes, scope):
                names |= {str(node.name) for node in partition.nodes}
        shape_scalars({str(node.name) for node in model.graph}, scope)
        return model, names | self.reasons.keys()

    def _with_kept_runs(self, model: ir.Model, session: Session) -> ir.Model:
        """Return a model whose runs are kept if the provider drops them, they are worth it, and they stay right."""
        if session.whole:
            return model
        dropped = {node.name for node in session.nodes if node.provider != MIGRAPHX}
        unclaimed = self.reasons.keys()
        kept = model.clone()
        scope, changed = Scope(kept, kept.graph), False
        for run in list(runs(kept.graph, lambda node: node.name not in unclaimed and node.op_type != "Scan")):
            on_cpu = all(node.name in dropped for node in run)
            if on_cpu and sum(map(estimate, run)) >= _WORTH:
                changed |= keep(run, scope)
        with_runs, problem = self.trial.open(kept) if changed else (None, None)
        if with_runs is None or problem is not None:
            return model
        return kept if len(with_runs.on_provider) > len(session.on_provider) else model


def _is_scalar(value: ir.Value) -> bool:
    return value.shape is not None and not len(value.shape)
