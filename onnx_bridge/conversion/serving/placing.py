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
from onnx_bridge.provider.hidden import HIDDEN, LEAST_OPSET, hide, is_tensor, shape_scalar
from onnx_bridge.provider.provider import MIGRAPHX, Provider, ProviderError, Session
from onnx_bridge.samples.inputs import Sample
from onnx_bridge.verdicts.probed_runtime import ProbedRuntime
from passes.graphs.scopes import Scope
from passes.graphs.traversal import has_subgraphs
from passes.isolation.failure import NativeFailure
from passes.probing.partition import hosted, is_constant
from passes.probing.probe import Probe
from passes.rewriting.base import Context, Verdict
from passes.specialize.convert_opset import ConvertOpset

_MOST = 64
"""The number of nodes that are hidden one by one; then all of the rest are."""


@dataclass
class Placed:
    """A model whose sessions with the provider are right.

    Attributes:
        model: the model, with its hidden nodes.
        reasons: why nodes are hidden, by name.
        verdicts: the verdicts on the nodes that are not.
    """

    model: ir.Model
    reasons: dict[str, str] = field(default_factory=dict)
    verdicts: Mapping[ir.Node, Verdict] = field(default_factory=dict)


def place(model: ir.Model, verdicts: ProbedRuntime, provider: Provider, samples: Sequence[Sample]) -> Placed:
    """Hide the nodes of a cleaned model that the provider must not run, in place.

    Args:
        model: the model, with static sizes, inferred types and named nodes.
        verdicts: the verdicts on its nodes, the provider's included.
        provider: the provider.
        samples: inputs on which sessions must be right.

    Raises:
        InputError: ONNX Runtime does not take the model even if it runs all nodes on the CPU.
    """
    with tempfile.TemporaryDirectory(prefix="onnx-bridge-") as folder:
        return _Placing(model, verdicts, Trial(provider, samples, Path(folder))).run()


class _Placing:
    def __init__(self, model: ir.Model, verdicts: ProbedRuntime, trial: Trial) -> None:
        self.placed, self.verdicts, self.trial = Placed(model), verdicts, trial
        self.scope = Scope(model, model.graph)

    def run(self) -> Placed:
        model = self.placed.model
        judged = judge(model, self.verdicts)
        self.placed.verdicts = judged.verdicts
        claimed = {node: why for node, why in hosted(model, judged.reasons).items() if self._is_claimed(node)}
        if claimed and self._converted():
            return self.run()
        for node, why in claimed.items():
            self._hide(node, why)
        while (problem := self._problem()) is not None:
            if self._converted():
                return self.run()
            nodes = self._visible_nodes()
            if not nodes:
                raise InputError(f"ONNX Runtime cannot open the model even without the provider: {problem}")
            few = len(self.placed.reasons) <= _MOST
            for node in [self.trial.first_failing(model, nodes)] if few else nodes:
                self._hide(node, problem)
        return self.placed

    def _converted(self) -> bool:
        """Convert a model whose opset has no sequences; return whether that was needed. Raises InputError."""
        if self.scope.opset() >= LEAST_OPSET:
            return False
        model = self.placed.model
        ConvertOpset(LEAST_OPSET).run(model, Context())
        self.scope = Scope(with_inferred_types(model), model.graph)
        return True

    def _is_claimed(self, node: ir.Node) -> bool:
        """Return whether the provider claims a node, alone with its constants; a session that fails claims it."""
        if not has_subgraphs(node) and not all(map(is_tensor, (*filter(None, node.inputs), *node.outputs))):
            return False
        probe = Probe.of([node], self.scope)
        if probe.problem is not None:
            return True
        try:
            session = self.trial.provider.session(probe.to_proto(full=False).SerializeToString())
        except (ProviderError, NativeFailure):
            return True
        return any(placed.provider == MIGRAPHX for placed in session.nodes)

    def _hide(self, node: ir.Node, why: str) -> None:
        self.placed.reasons[str(node.name)] = why
        hide(node, self.scope)

    def _visible_nodes(self) -> list[ir.Node]:
        return [
            node
            for node in self.scope.graph
            if str(node.name) not in self.placed.reasons and HIDDEN not in node.metadata_props and not is_constant(node)
        ]

    def _problem(self) -> str | None:
        """Return what is wrong with a session of the whole, whose scalars are shaped first; None if nothing is."""
        try:
            session = self.trial.session(self.placed.model)
            if self.scope.opset() >= LEAST_OPSET and self._shape_scalars(session):
                session = self.trial.session(self.placed.model)
            return self.trial.difference(session)
        except (ProviderError, NativeFailure) as error:
            return error.what

    def _shape_scalars(self, session: Session) -> bool:
        """Let what the provider returns as (1,) be a scalar again; return whether there was a scalar to shape."""
        on_provider = {placed.name for placed in session.on_provider}
        shaped = False
        for node in list(self.scope.graph):
            for value in node.outputs if node.name in on_provider else ():
                users = {user for user, _ in value.uses() if user.name not in on_provider}
                scalar = value.shape is not None and not value.shape and is_tensor(value)
                if scalar and (users or value.is_graph_output()):
                    shape_scalar(value, users, self.scope)
                    shaped = True
        return shaped
