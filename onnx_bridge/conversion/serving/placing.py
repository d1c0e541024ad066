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

import numpy as np
import onnx_ir as ir

from onnx_bridge.conversion.compiling.partition import judge
from onnx_bridge.core.delta_debug import bisect_first
from onnx_bridge.core.errors import InputError
from onnx_bridge.core.values import Value
from onnx_bridge.model import io as models
from onnx_bridge.provider.hidden import HIDDEN, hide, is_tensor, shape_scalar
from onnx_bridge.provider.provider import MIGRAPHX, Provider, ProviderError, Session
from onnx_bridge.reference.comparison.compare import compare
from onnx_bridge.reference.reference import Reference
from onnx_bridge.samples.inputs import Sample
from onnx_bridge.verdicts.probed_runtime import ProbedRuntime
from passes.graphs.scopes import Scope
from passes.graphs.traversal import has_subgraphs
from passes.isolation.failure import NativeFailure
from passes.probing.partition import extract, hosted, is_constant
from passes.probing.probe import Probe
from passes.rewriting.base import Verdict

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
        model: the model, with static sizes and named nodes.
        verdicts: the verdicts on its nodes, the provider's included.
        provider: the provider.
        samples: inputs on which sessions must be right.
    """
    with tempfile.TemporaryDirectory(prefix="onnx-bridge-") as folder:
        return _Placing(model, verdicts, provider, samples, Path(folder)).run()


class _Placing:
    def __init__(
        self, model: ir.Model, verdicts: ProbedRuntime, provider: Provider, samples: Sequence[Sample], folder: Path
    ) -> None:
        self.placed = Placed(model)
        self.provider, self.verdicts, self.samples, self.folder = provider, verdicts, samples, folder
        self.scope = Scope(model, model.graph)

    def run(self) -> Placed:
        model = self.placed.model
        judged = judge(model, self.verdicts)
        self.placed.verdicts = judged.verdicts
        for node, why in hosted(model, judged.reasons).items():
            if self._is_claimed(node):
                self._hide(node, why)
        while (problem := self._problem(model)) is not None:
            nodes = self._visible_nodes()
            if not nodes:
                raise InputError(f"ONNX Runtime cannot open the model even without the provider: {problem}")
            if len(self.placed.reasons) > _MOST:
                for node in nodes:
                    self._hide(node, problem)
                continue
            self._hide(self._first_failing(nodes), problem)
        return self.placed

    def _is_claimed(self, node: ir.Node) -> bool:
        """Return whether the provider claims a node, alone with its constants; a session that fails claims it."""
        if not has_subgraphs(node) and not all(map(is_tensor, (*filter(None, node.inputs), *node.outputs))):
            return False
        probe = Probe.of([node], self.scope)
        if probe.problem is not None:
            return True
        try:
            session = self.provider.session(probe.to_proto(full=False).SerializeToString())
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

    def _shape_scalars(self, session: Session) -> bool:
        """Let what the provider returns as (1,) be a scalar again; return whether there was a scalar to shape."""
        on_provider = {placed.name for placed in session.on_provider}
        shaped = False
        for node in list(self.scope.graph):
            for value in node.outputs if node.name in on_provider else ():
                users = {user for user, _ in value.uses() if user.name not in on_provider}
                scalar = value.shape is not None and not value.shape and isinstance(value.type, ir.TensorType)
                if scalar and (users or value.is_graph_output()):
                    shape_scalar(value, users, self.scope)
                    shaped = True
        return shaped

    def _first_failing(self, nodes: Sequence[ir.Node]) -> ir.Node:
        def fails(count: int) -> bool:
            if count == len(nodes):
                return True
            wanted = [str(value.name) for value in nodes[count - 1].outputs if value.name]
            inputs = [str(value.name) for value in self.scope.graph.inputs]
            part = extract(self.placed.model, inputs, wanted)
            return self._problem(part) is not None

        return nodes[bisect_first(range(1, len(nodes) + 1), fails) - 1]

    def _problem(self, model: ir.Model) -> str | None:
        """Return what is wrong with a session of a model, or with what it computes; None if nothing is."""
        path = self.folder / "model.onnx"
        models.save(model, path)
        names = {str(value.name) for value in model.graph.inputs}
        try:
            session = self.provider.session(path)
            if model is self.placed.model and self._shape_scalars(session):
                return self._problem(model)
            reference = Reference(path)
            for sample in self.samples:
                given = {name: value for name, value in sample.items() if name in names}
                outputs, expected = session.run(given), reference.run(given)
                if model is not self.placed.model:  # of which scalars are not shaped yet
                    outputs = {name: _shaped_as(output, expected[name]) for name, output in outputs.items()}
                comparison = compare(outputs, expected)
                if not comparison.passed:
                    return next(str(output) for output in comparison.outputs if not output.passed)
        except (ProviderError, NativeFailure) as error:
            return error.what
        return None


def _shaped_as(value: Value, expected: Value) -> Value:
    """Return (1,) as a scalar if a scalar is expected."""
    if (
        isinstance(value, np.ndarray)
        and isinstance(expected, np.ndarray)
        and (value.shape, expected.shape) == ((1,), ())
    ):
        return value.reshape(())
    return value
