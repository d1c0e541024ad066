"""Placing the nodes of a cleaned model: what the provider gets wrong is hidden from it, until all sessions are right.

A node is hidden if MIGraphX, or the provider, cannot run it, or if its shapes depend on the data; then the whole model
is asked. If no session can be created, or an output is wrong, the first node is hidden with which it is so: the model
up to that node fails, and up to the one before it does not.

The branches of a hidden If are left to the provider if they are worth it.
"""

from __future__ import annotations

import contextlib
import copy
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import onnx_ir as ir

from onnx_bridge.conversion.compiling.partition import judge, with_inferred_types
from onnx_bridge.conversion.serving.trial import Served, Trial
from onnx_bridge.core.errors import BridgeError, InputError
from onnx_bridge.core.files.atomic_write import write_text
from onnx_bridge.core.files.code_digest import code_digest
from onnx_bridge.core.files.digest import json_digest
from onnx_bridge.core.files.regular_file import read_regular
from onnx_bridge.core.files.user_cache import cache_dir
from onnx_bridge.core.schema import JsonRecord, read_as
from onnx_bridge.provider.hidden import HIDDEN, LEAST_OPSET, claim_nothing, hide, shape_scalars
from onnx_bridge.provider.provider import MIGRAPHX
from onnx_bridge.provider.runs import keep, runs
from onnx_bridge.verdicts.probed_runtime import ProbedRuntime
from passes.core.doubts import Doubts
from passes.graphs.cost import estimate
from passes.graphs.scopes import Scope
from passes.graphs.traversal import with_nested
from passes.probing.node_verdicts import NodeVerdicts
from passes.probing.partition import Side, can_cross, hosted, is_constant, plan
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
        served: its file, and a session.
        reasons: why nodes run on the CPU, by name; those between them are hidden, too.
        verdicts: the verdicts on the nodes that are not.
    """

    model: ir.Model
    served: Served
    reasons: dict[str, str] = field(default_factory=dict)
    verdicts: Mapping[ir.Node, Verdict] = field(default_factory=dict)


def place(model: ir.Model, verdicts: ProbedRuntime, trial: Trial, content: Sequence[str]) -> Placed:
    """Hide the nodes of a cleaned model that the provider must not run, in a copy of it.

    Args:
        model: the model, with static sizes, inferred types and named nodes.
        verdicts: the verdicts on its nodes, the provider's included.
        trial: its sessions, in whose folder the file is left.
        content: the digests of the model's file and of its external data.

    Raises:
        InputError: ONNX Runtime does not take the model even if it runs all nodes on the CPU.
    """
    file = cache_dir() / "placements" / json_digest([*content, trial.provider.identity, code_digest(__name__)])
    doubts, learned = Doubts(), _Learned.read(file)
    placing = _Placing(model, verdicts, trial, copy.deepcopy(learned))
    placed = placing.run()
    if not doubts and placing.learned != learned:
        with contextlib.suppress(OSError, InputError):
            file.parent.mkdir(parents=True, exist_ok=True)
            write_text(file, json.dumps(placing.learned.to_json()))
    return placed


@dataclass
class _Learned(JsonRecord):
    """The result of a search with the same model before: where to begin, since its sessions are run anyway.

    Attributes:
        reasons: why nodes failed in sessions, by name.
        kept: the names of the last nodes of runs that are kept.
        closed: whether sessions in which branches are left to the provider are not right.
    """

    reasons: dict[str, str] = field(default_factory=dict)
    kept: list[str] = field(default_factory=list)
    closed: bool = False

    @classmethod
    def read(cls, file: Path) -> _Learned:
        with contextlib.suppress(OSError, ValueError, BridgeError):
            return read_as(cls, json.loads(read_regular(file)))
        return cls()


class _Placing:
    def __init__(self, model: ir.Model, verdicts: ProbedRuntime, trial: Trial, learned: _Learned) -> None:
        self.model, self.verdicts, self.trial, self.learned = model, verdicts, trial, learned
        self.reasons: dict[str, str] = {}
        self.open: set[str] = set()

    def run(self) -> Placed:
        judged = judge(self.model, self.verdicts)
        self.reasons = {str(node.name): why for node, why in hosted(self.model, judged.reasons).items()}
        self.reasons |= self.learned.reasons
        self.open = set() if self.learned.closed else self._worthy_branches()
        while True:
            model, hidden = self._hidden()
            self._keep_runs(model, lambda run: run[-1].name in self.learned.kept)
            served, problem = self.trial.serve(model)
            if served is not None and problem is None:
                break
            if self.learned.kept:
                self.learned.kept = []
                continue
            if self.open:
                self.open, self.learned.closed = set(), True
                continue
            nodes = [node for node in model.graph if HIDDEN not in node.metadata_props and not is_constant(node)]
            if self._converted():
                return self.run()
            few = len(self.reasons) <= _MOST
            failing = [self.trial.first_failing(model, nodes)] if few and nodes else nodes
            names = {str(node.name) for node in failing}
            if names <= self.reasons.keys():  # no Scan can hold what fails
                model, served = self._on_cpu()
                break
            failures = dict.fromkeys(names, f"a session in which the provider runs it is not right: {problem}")
            self.reasons |= failures
            self.learned.reasons |= failures
        verdicts = {str(node.name): verdict for node, verdict in judged.verdicts.items()}
        if not self.learned.kept:
            model, served = self._with_kept_runs(model, served)
        known = {node: verdicts[str(node.name)] for node in model.graph if str(node.name) in verdicts}
        return Placed(model, served, {name: why for name, why in self.reasons.items() if name in hidden}, known)

    def _worthy_branches(self) -> set[str]:
        """Return the names of the hidden Ifs whose branches are right, and worth it.

        Sessions run only the branches that samples choose, so all nodes in them are judged.
        """
        verdicts, names = NodeVerdicts(self.verdicts, Scope(self.model, self.model.graph)), set()
        for node in self.model.graph:
            if str(node.name) not in self.reasons or node.op_type != "If" or estimate(node) < _WORTH:
                continue
            inner = [part for part in with_nested([node]) if part is not node and not is_constant(part)]
            if all(map(_can_be_claimed, inner)) and not verdicts.failing_nodes(inner):
                names.add(str(node.name))
        return names

    def _on_cpu(self) -> tuple[ir.Model, Served]:
        """Return a copy of the model of which the provider claims nothing, and its session; raises InputError."""
        model = self.model.clone()
        claim_nothing(Scope(model, model.graph))
        served, problem = self.trial.serve(model)
        if served is None or problem is not None:
            raise InputError(f"ONNX Runtime does not run the model even without its provider: {problem}")
        self.reasons |= {str(node.name): "the provider has to claim nothing" for node in model.graph}
        return model, served

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
            if partition.side is Side.HOST and hide(partition.nodes, scope, self.open):
                names |= {str(node.name) for node in partition.nodes}
        shape_scalars({str(node.name) for node in model.graph}, scope)
        return model, names | self.reasons.keys()

    def _with_kept_runs(self, model: ir.Model, served: Served) -> tuple[ir.Model, Served]:
        """Return a model whose runs are kept if the provider drops them, they are worth it, and they stay right."""
        if served.session.whole:
            return model, served
        dropped = {node.name for node in served.session.nodes if node.provider != MIGRAPHX}

        def is_dropped(run: Sequence[ir.Node]) -> bool:
            return all(node.name in dropped for node in run) and sum(map(estimate, run)) >= _WORTH

        kept = model.clone()
        names = self._keep_runs(kept, is_dropped)
        better, problem = self.trial.serve(kept) if names else (None, None)
        if better is None or problem is not None:
            return model, served
        if len(better.session.on_provider) <= len(served.session.on_provider):
            return model, served
        self.learned.kept = names
        return kept, better

    def _keep_runs(self, model: ir.Model, is_kept: Callable[[Sequence[ir.Node]], bool]) -> list[str]:
        """Let the provider keep some runs of a model, in place; return the names of their last nodes."""
        scope, unclaimed = Scope(model, model.graph), self.reasons.keys()
        claimed = runs(model.graph, lambda node: node.name not in unclaimed and node.op_type != "Scan")
        return [str(run[-1].name) for run in list(claimed) if is_kept(run) and keep(run, scope)]


def _can_be_claimed(node: ir.Node) -> bool:
    """Return whether all results have static shapes, and none is a scalar: the provider returns these as (1,)."""
    return all(can_cross(value) and not _is_scalar(value) for value in node.outputs if value.name)


def _is_scalar(value: ir.Value) -> bool:
    return value.shape is not None and not len(value.shape)
