"""Limits on what a model asks of everything that walks it: functions that end, and sizes that are known before.

Functions that call functions describe exponentially many nodes: 25 of them that call each other twice stand for 2²⁴
calls. And a file holds only so many subgraphs within subgraphs, since protobuf reads 100 messages within messages.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

import onnx_ir as ir

from passes.core.errors import InputError
from passes.graphs.traversal import subgraphs, with_nested

MAX_NODES = 2**18
"""The most nodes of a model after its functions are inlined."""
MAX_DEPTH = 31
"""The most subgraphs within subgraphs of a model that can be written, and read again."""
MAX_TEXT = 2**28
"""The most characters of names after functions are inlined: each name begins with those of the calls around it."""
MAX_METADATA = 2**31
"""The most characters of metadata after functions are inlined, as nodes inherit it from calls: no message has more."""

MAX_RANK = 64
"""The most dimensions of a tensor; numpy and the runtimes have no more."""
MAX_ELEMENTS = 2**40
"""The most elements of an input or output: more than fit into the memory of any machine."""
MAX_BYTES = 2**40
"""The most bytes of a value that is computed: no device has more memory."""
MAX_VERSION = 2**31 - 1
"""The greatest version of ONNX's format or of an opset that libraries read."""


@dataclass
class _Size:
    """The size of the main graph or a function, with its subgraphs.

    Attributes:
        depth: how deep subgraphs are nested.
        names: the number of nodes and of the values that have a name.
        text: the characters of these names.
        metadata: the characters of the metadata of nodes, at most.
    """

    nodes: int = 0
    depth: int = 0
    names: int = 0
    text: int = 0
    metadata: int = 0


@dataclass(frozen=True)
class _Body:
    """The main graph or a function.

    Attributes:
        own: its size, without the functions that it calls.
        calls: for each call the function, the depth of the call, and the characters of its name and metadata.
    """

    own: _Size
    calls: list[tuple[ir.OperatorIdentifier, int, int, int]]


def check_limits(model: ir.Model, where: str | None = None) -> None:
    """Refuse a model that nothing can process.

    Args:
        model: with its functions.
        where: its file, for the error.

    Raises:
        InputError: a function calls itself, there are more than `MAX_NODES` nodes after inlining all functions,
            `MAX_TEXT` or `MAX_METADATA` characters, or subgraphs are nested deeper than `MAX_DEPTH`.
    """
    size = _inlined(model, where)
    if size.depth > MAX_DEPTH:
        raise InputError(f"the subgraphs are nested {size.depth} deep, and ONNX files hold {MAX_DEPTH}", where=where)
    if not model.functions:
        return
    for count, limit, what in (
        (size.nodes, MAX_NODES, "nodes"),
        (size.text, MAX_TEXT, "characters of names"),
        (size.metadata, MAX_METADATA, "characters of metadata"),
    ):
        if count > limit:
            number = f"{count:,}" if count < 10**12 else f"about 2^{count.bit_length() - 1}"
            raise InputError(f"the functions stand for {number} {what}, and at most {limit:,} are inlined", where=where)


def inlined_nodes(model: ir.Model) -> int:
    """Return how many nodes a model has after its functions are inlined, with those of subgraphs."""
    return _inlined(model, None).nodes


def called_functions(nodes: Iterable[ir.Node], model: ir.Model) -> dict[ir.OperatorIdentifier, ir.Function]:
    """Return the functions that nodes and their subgraphs call, directly or through other functions."""
    called: dict[ir.OperatorIdentifier, ir.Function] = {}
    pending = [nodes] if model.functions else []
    while pending:
        for node in with_nested(pending.pop()):
            identifier = node.op_identifier()
            if identifier in model.functions and identifier not in called:
                called[identifier] = model.functions[identifier]
                pending.append(called[identifier])
    return called


def _inlined(model: ir.Model, where: str | None) -> _Size:
    """Return the main graph after all functions are inlined."""
    bodies = {identifier: _body(function, model) for identifier, function in model.functions.items()}
    sizes: dict[ir.OperatorIdentifier, _Size] = {}
    for identifier in _callees_first(bodies, where):
        sizes[identifier] = _size(bodies[identifier], sizes)
    return _size(_body(model.graph, model), sizes)


def _body(graph: Iterable[ir.Node], model: ir.Model) -> _Body:
    own, calls = _Size(), []
    pending = [(graph, 0)]
    while pending:
        current, depth = pending.pop()
        own.depth = max(own.depth, depth)
        for node in current:
            own.nodes += 1
            inner = list(subgraphs(node))
            pending += [(graph, depth + 1) for graph in inner]
            if not model.functions:
                continue
            parameters = (value for graph in inner for value in (*graph.inputs, *graph.initializers.values()))
            names = [len(value.name) for value in (*node.outputs, *parameters) if value.name]
            text, metadata = len(node.name or node.op_type), sum(map(len, node.metadata_props.values()))
            own.names += 1 + len(names)
            own.text += text + sum(names)
            own.metadata += metadata
            if node.op_identifier() in model.functions:
                calls.append((node.op_identifier(), depth, text, metadata))
    return _Body(own, calls)


def _size(body: _Body, sizes: dict[ir.OperatorIdentifier, _Size]) -> _Size:
    """Return the size of a body after the functions that it calls are inlined."""
    total = replace(body.own)
    for identifier, depth, text, metadata in body.calls:
        size = sizes[identifier]
        total.nodes += size.nodes - 1
        total.depth = max(total.depth, depth + size.depth)
        total.names += size.names
        total.text += size.text + size.names * text
        total.metadata += size.metadata + size.nodes * metadata
    return total


def _callees_first(bodies: dict[ir.OperatorIdentifier, _Body], where: str | None) -> list[ir.OperatorIdentifier]:
    """Return the functions, each after those that it calls."""
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
        for called, *_ in bodies[identifier].calls:
            if called in path:
                what = f"the function {called[0]}::{called[1]} calls itself, which ONNX does not allow"
                raise InputError(what, where=where)
            if called not in order:
                pending.append(called)
    return list(order)
