"""Run a function on the graphsurgeon graph of a model, and apply what it changed as one rewrite."""

from __future__ import annotations

from collections.abc import Callable

import onnx_graphsurgeon as gs
import onnx_ir as ir

from passes.core.errors import InputError
from passes.core.text import counted
from passes.graphs.scopes import Scope, name_nodes, scopes
from passes.rewriting.base import Context, Result, Rewrite, Skip
from passes.surgeon.changes import Changes, invalidate, stamp
from passes.surgeon.exporter import Exporter
from passes.surgeon.importer import Importer
from passes.surgeon.tags import GraphTag, tag_of
from passes.surgeon.tensors import ArraySources


def operate(
    function: Callable[[gs.Graph], gs.Graph | None], model: ir.Model, context: Context, *, maker: str, where: str
) -> Result:
    """Run a function on a model, and apply its changes as one rewrite.

    Args:
        function: changes the main graph in place, or returns another.
        model: its graph and functions are replaced if the function changed anything.
        context: its budget is charged with one rewrite.
        where: how errors call the function.

    Raises:
        InputError: the function left an invalid graph.
    """
    result = Result(model)
    nodes = [node for scope in map(name_nodes, scopes(model)) for node in scope.nodes()]
    try:
        after, changes = _run(function, model)
    except InputError as error:
        raise InputError(error.what, where=error.where or where, hint=error.hint) from error.__cause__
    functions = after.functions.values()
    unchanged = {node for function in functions for node in Scope(model, function.graph, function).nodes()}
    removed = set(nodes) - changes.kept - unchanged
    if not changes.count() and not removed:
        return result

    for scope in scopes(after):
        stamp(list(scope.nodes()), changes, removed, maker)
    disputed, failure = invalidate(after, changes)
    unknown = next((value.name for value in after.graph.outputs if value.type is None), None)
    if unknown is not None:
        raise InputError(f"the dtype of the output {unknown} is unknown", where=where, hint="set it in the script")
    if not context.budget.take():
        return result
    _commit(model, after)
    if failure:
        result.skips.append(Skip(f"ONNX's shape inference fails on the changed model: {failure}"))
    elif disputed:
        result.skips.append(Skip(f"the types or shapes of {disputed} values cannot be confirmed by inference"))
    old = {*removed, *(node for node in changes.new.values() if node is not None), *changes.rewired.values()}
    note = where + (f"; {counted(len(changes.other), 'other change')}" if changes.other else "")
    before = tuple(node.name or "" for node in nodes if node in old)
    result.rewrites.append(Rewrite(before, tuple(node.name or "" for node in (*changes.new, *changes.rewired)), note))
    return result


def _run(function: Callable[[gs.Graph], gs.Graph | None], model: ir.Model) -> tuple[ir.Model, Changes]:
    sources = ArraySources()
    graph = Importer(model, sources).run()
    shown: GraphTag = tag_of(graph)
    returned = function(graph)
    graph = graph if returned is None else returned
    if not isinstance(graph, gs.Graph):
        raise InputError(f"the script returned {type(graph).__name__}, not a graphsurgeon graph or None")
    exporter = Exporter(model, sources)
    main, functions = exporter.graph(graph), exporter.functions(graph)
    changes = exporter.changes
    if [function.identifier() for function in functions] != list(model.functions):
        changes.other.append("the list of functions")
    producer = (graph.producer_name, graph.producer_version)
    if (producer, graph.ir_version) != (shown.producer, shown.ir_version):
        changes.other.append("producer or IR version")
    name, version = producer if producer != shown.producer else (model.producer_name, model.producer_version)
    after = ir.Model(
        main,
        ir_version=graph.ir_version or model.ir_version,
        producer_name=name,
        producer_version=version,
        functions=functions,
    )
    return after, changes


def _commit(model: ir.Model, after: ir.Model) -> None:
    """Replace the contents of a model by those of another; metadata and description stay."""
    model.graph, model.ir_version = after.graph, after.ir_version
    model.producer_name, model.producer_version = after.producer_name, after.producer_version
    model.functions.clear()
    model.functions.update(after.functions)
