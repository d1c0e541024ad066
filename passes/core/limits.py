"""What a model may ask of everything that walks it: functions that end, and sizes that are known before.

Functions that call functions describe exponentially many nodes: 25 of them that call each other twice stand for 2²⁴
calls. And a file holds only so many subgraphs within subgraphs, since protobuf reads 100 messages within messages.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import onnx_ir as ir

from passes.core import graphs
from passes.core.errors import InputError

MAX_NODES = 2**18
"""The most nodes of a model after its functions are inlined."""
MAX_DEPTH = 31
"""The most subgraphs within subgraphs of a model that can be written, and read again."""


MAX_RANK = 64
"""The most dimensions of a tensor; numpy and the runtimes have no more."""
MAX_ELEMENTS = 2**40
"""The most elements of an input or output: more than fit into the memory of any machine."""
MAX_VERSION = 2**31 - 1
"""The greatest version of ONNX's format or of an opset that libraries read."""


@dataclass(frozen=True)
class _Body:
    """The main graph or a function.

    Attributes:
        nodes: the number of its nodes, with those of subgraphs.
        depth: how deep its subgraphs are nested.
        calls: the functions that it calls, once for each call, with the depth of the call.
    """

    nodes: int
    depth: int
    calls: list[tuple[ir.OperatorIdentifier, int]]


def check_limits(model: ir.Model, where: str | None = None) -> None:
    """Refuse a model that nothing can process.

    Args:
        model: with its functions.
        where: its file, for the error.

    Raises:
        InputError: a function calls itself, there are more than `MAX_NODES` nodes after inlining all functions, or
            subgraphs are nested deeper than `MAX_DEPTH`.
    """
    nodes, depth = _inlined(model, where)
    if depth > MAX_DEPTH:
        raise InputError(f"its subgraphs are nested {depth} deep, and ONNX files hold {MAX_DEPTH}", where=where)
    if model.functions and nodes > MAX_NODES:
        count = f"{nodes:,}" if nodes < 10**12 else f"about 2^{nodes.bit_length() - 1}"
        raise InputError(f"its functions stand for {count} nodes, and at most {MAX_NODES:,} are inlined", where=where)


def inlined_nodes(model: ir.Model) -> int:
    """How many nodes a model has after its functions are inlined, with those of subgraphs."""
    return _inlined(model, None)[0]


def called_functions(nodes: Iterable[ir.Node], model: ir.Model) -> dict[ir.OperatorIdentifier, ir.Function]:
    """The functions that nodes and their subgraphs call, directly or through other functions."""
    found: dict[ir.OperatorIdentifier, ir.Function] = {}
    pending = [nodes] if model.functions else []
    while pending:
        for node in graphs.with_nested(pending.pop()):
            identifier = node.op_identifier()
            if identifier in model.functions and identifier not in found:
                found[identifier] = model.functions[identifier]
                pending.append(found[identifier])
    return found


def _inlined(model: ir.Model, where: str | None) -> tuple[int, int]:
    """The number of nodes, and the depth of subgraphs, after all functions are inlined."""
    bodies = {identifier: _body(function, model) for identifier, function in model.functions.items()}
    sizes: dict[ir.OperatorIdentifier, tuple[int, int]] = {}
    for identifier in _callees_first(bodies, where):
        sizes[identifier] = _size(bodies[identifier], sizes)
    return _size(_body(model.graph, model), sizes)


def _body(graph: Iterable[ir.Node], model: ir.Model) -> _Body:
    nodes = deepest = 0
    calls = []
    pending = [(graph, 0)]
    while pending:
        current, depth = pending.pop()
        deepest = max(deepest, depth)
        for node in current:
            nodes += 1
            if model.functions and node.op_identifier() in model.functions:
                calls.append((node.op_identifier(), depth))
            pending += [(inner, depth + 1) for inner in graphs.subgraphs(node)]
    return _Body(nodes, deepest, calls)


def _size(body: _Body, sizes: dict[ir.OperatorIdentifier, tuple[int, int]]) -> tuple[int, int]:
    """The number of nodes and the depth after inlining."""
    nodes = body.nodes + sum(sizes[identifier][0] - 1 for identifier, _ in body.calls)
    return nodes, max((body.depth, *(depth + sizes[identifier][1] for identifier, depth in body.calls)))


def _callees_first(bodies: dict[ir.OperatorIdentifier, _Body], where: str | None) -> list[ir.OperatorIdentifier]:
    """The functions, each after those that it calls."""
    order: dict[ir.OperatorIdentifier, None] = {}
    path: set[ir.OperatorIdentifier] = set()
    pending = list(bodies)
    while pending:
        identifier = pending[-1]
        if identifier in order or identifier in path:
            pending.pop()
            path.discard(identifier)
            order[identifier] = None
            continue
        path.add(identifier)
        for called, _ in bodies[identifier].calls:
            if called in path:
                what = f"the function {called[0]}::{called[1]} calls itself, which ONNX does not allow"
                raise InputError(what, where=where)
            if called not in order:
                pending.append(called)
    return list(order)
