"""Whether a value can be named where another is used: subgraphs may hide it behind a value of their own."""

from __future__ import annotations

from collections import Counter
from weakref import WeakKeyDictionary

import onnx_ir as ir

from passes.core.graphs import Scope

_bearers: WeakKeyDictionary[Scope, Counter[str]] = WeakKeyDictionary()


def can_stand_for(new: ir.Value, old: ir.Value, graph: ir.Graph | None, scope: Scope) -> bool:
    """Whether ``new``, by its name, means itself wherever ``old`` is used.

    Values are objects here and names in a file, where a subgraph may use a name again. Only a name that one value bears
    can be hidden nowhere; names that are made while a pass runs are of that kind.

    Args:
        new: what shall be used instead; where ``old`` is an output of its graph, ``new`` would take its name.
        old: what is used now.
        graph: a graph whose nodes can name ``new``.
        scope: where all of this is.
    """
    uses = [*old.uses(), *(new.uses() if old.is_graph_output() else ())]
    if all(use.node.graph is graph for use in uses):
        return True
    names = [new.name, old.name] if old.is_graph_output() else [new.name]
    return all(_is_unique(name, scope) for name in names)


def is_visible(value: ir.Value, graph: ir.Graph | ir.Function | None, scope: Scope) -> bool:
    """Whether ``value``, by its name, means itself in ``graph``, which is its own or a subgraph of it."""
    return value.graph is graph or _is_unique(value.name, scope)


def _is_unique(name: str | None, scope: Scope) -> bool:
    if scope not in _bearers:
        _bearers[scope] = Counter(name for each in scope.graphs() for name in _names(each))
    return _bearers[scope][str(name)] < 2


def _names(graph: ir.Graph) -> set[str]:
    values = [*graph.inputs, *graph.initializers.values(), *(value for node in graph for value in node.outputs)]
    return {value.name for value in values if value.name}
