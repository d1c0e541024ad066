"""The model after each single application of a pass: the prefixes of a cleaning."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import onnx_ir as ir

from onnx_bridge.bundle.difference import diff
from onnx_bridge.conversion import cleaning
from onnx_bridge.conversion.cleaning import Cleaned
from onnx_bridge.requests.conversion import ConvertRequest
from passes.rewriting.base import Budget, Context, Rewrite, Target
from passes.rewriting.pipeline import Pipeline


@dataclass(frozen=True)
class Application:
    """One application of a pass.

    Attributes:
        number: the number of the application, from 1; 0 for a pass that cannot be stopped between its applications.
        count: how many applications of the pass there are.
        before: the nodes that it removed or changed, as the pass reports.
        after: the nodes that it added, as the pass reports.
        changed: the nodes that are new or changed, by comparison of the models before and after it.
        removed: the names of those that are gone.
    """

    name: str
    number: int
    count: int
    before: tuple[str, ...]
    after: tuple[str, ...]
    changed: tuple[ir.Node, ...]
    removed: tuple[str, ...]


class PassApplications:
    """The applications of a cleaning, in order; a pass that reports no rewrites counts as one application."""

    def __init__(
        self,
        model: ir.Model,
        target: Target | None,
        request: ConvertRequest,
        progress: Callable[[str], None] | None = None,
    ) -> None:
        self._model, self._target = model, target
        self.cleaned: Cleaned = cleaning.run(model, None, request.cleaning, target, progress)
        self._steps = self.cleaned.steps
        self._places = [
            (place, number)
            for place, step in enumerate(self._steps)
            for number in (range(1, len(step.result.rewrites) + 1) if step.result.rewrites else [0])
        ]

    def __len__(self) -> int:
        return len(self._places)

    def model(self, count: int) -> ir.Model:
        """Return the model after the first ``count`` applications."""
        return self._run(count)[0]

    def application(self, count: int) -> Application:
        """Return the application with which a prefix of ``count`` applications ends."""
        place, number = self._places[count - 1]
        (before, _), (after, rewrites) = self._run(count - 1), self._run(count)
        own = rewrites[number - 1 : number]
        if len(rewrites) != number:  # the pass ignores the budget, so all of its rewrites are here
            number, own = 0, rewrites
        difference = diff(before, after)
        changed = {node.name for node in (*difference.added, *difference.changed)} | _reweighted(before, after)
        return Application(
            self._steps[place].name,
            number,
            len(self._steps[place].result.rewrites),
            tuple(name for rewrite in own for name in rewrite.before),
            tuple(name for rewrite in own for name in rewrite.after),
            tuple(node for node in after.graph.all_nodes() if node.name in changed),
            tuple(node.name for node in (*difference.removed, *difference.replaced)),
        )

    def maker(self, node: str) -> tuple[str, int, int] | None:
        """Return the pass that made a node, the number of the application, and of how many; None if no pass did."""
        for step in reversed(self._steps):
            for number, rewrite in enumerate(step.result.rewrites, 1):
                if node in rewrite.after:
                    return step.name, number, len(step.result.rewrites)
        return None

    def _run(self, count: int) -> tuple[ir.Model, list[Rewrite]]:
        """Return the model after ``count`` applications, and the rewrites so far of the pass of the last of them."""
        if count == 0:
            return self._model.clone(), []
        place, number = self._places[count - 1]
        budget = Budget(number + sum(len(step.result.rewrites) for step in self._steps[:place]))
        steps = Pipeline(self.cleaned.pipeline.passes[: place + 1]).run(
            self._model.clone(), Context(self._target, budget=budget)
        )
        return steps[-1].result.model, steps[-1].result.rewrites


def _reweighted(before: ir.Model, after: ir.Model) -> set[str]:
    """Return the names of the nodes that use an initializer whose elements changed under the same name."""
    old = {name: value.const_value for name, value in before.graph.initializers.items()}
    users = set()
    for name, value in after.graph.initializers.items():
        tensor, other = value.const_value, old.get(name)
        if tensor is None or other is None or tensor is other:
            continue
        if tensor.dtype != other.dtype or tensor.shape != other.shape or tensor.tobytes() != other.tobytes():
            users |= {str(use.node.name) for use in value.uses()}
    return users
